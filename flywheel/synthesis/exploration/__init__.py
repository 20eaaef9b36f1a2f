"""Explore sites and desktop applications that nobody wrote tasks for, and make tasks of what their controls change."""

__all__ = ["desktop_explorer", "page_view", "site_explorer", "site_source", "site_tasks"]
