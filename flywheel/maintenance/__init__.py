"""Inspect and maintain a workspace between runs: status, diff, rollback, garbage collection, rerouting, repair."""
