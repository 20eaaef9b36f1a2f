"""Hold the RL algorithms, a module each, which `training/rl/algorithm.py` finds by their names."""

__all__ = ["grpo"]
