"""Serve the annotation page, on which people accept or override the model's steps in live environments."""

__all__ = ["desk", "server", "takeover"]
