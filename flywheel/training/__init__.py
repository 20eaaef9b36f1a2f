"""Train checkpoints (CT, SFT, RL, preference, outcome reward model), and merge them."""

__all__ = [
    "adapter_merging",
    "data",
    "distributed",
    "memory_plan",
    "merge_methods",
    "model_merging",
    "outcome_reward",
    "preference",
    "pretrain",
    "refresh",
    "rl",
    "sft",
]
