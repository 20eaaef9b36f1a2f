"""Serve an embedded policy over HTTP (`flywheel model serve`)."""
