"""Explore sites and desktop applications that nobody wrote tasks for, and make tasks of what their controls change."""
