"""Train the outcome reward model on labelled trajectories."""

__all__ = ["trainer"]
