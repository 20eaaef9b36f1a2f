"""Answer with a checkpoint in this process: batching, caches, compiled kernels."""

__all__ = ["cache", "embedded", "engine"]
