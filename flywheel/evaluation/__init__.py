"""Evaluate checkpoints on held-out tasks, decide promotions by a paired test, and play public benchmarks."""
