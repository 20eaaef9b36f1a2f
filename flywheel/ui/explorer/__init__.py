"""Serve the explorer: web pages to browse trajectories, query in SQL, review, and compare runs of a task."""

__all__ = ["app", "auth", "catalog_reader", "review", "sql_worker"]
