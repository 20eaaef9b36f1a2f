"""Adapt public benchmarks: load their tasks, convert their actions, and score the results that they recorded."""

__all__ = ["benchmark", "catalogue", "container_recipe", "result_table", "terminal_bench", "terminal_bench_machine"]
