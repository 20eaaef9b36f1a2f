"""Serve an embedded policy over HTTP (`flywheel model serve`)."""

__all__ = ["process"]
