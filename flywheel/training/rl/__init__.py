"""Train one specialist a domain by reinforcement learning in live environments (section 2.5)."""

__all__ = ["algorithm", "algorithms", "curriculum", "groups", "losses", "run"]
