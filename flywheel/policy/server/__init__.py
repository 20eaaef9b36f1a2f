"""Serve the policy of this process over HTTP (`flywheel model serve`)."""
