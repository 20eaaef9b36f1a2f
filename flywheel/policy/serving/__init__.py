"""`flywheel serve`: the policy of this process behind an OpenAI-compatible HTTP server."""
