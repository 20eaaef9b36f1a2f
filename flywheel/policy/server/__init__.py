"""Serve the policy of this process over HTTP (`flywheel serve`)."""
