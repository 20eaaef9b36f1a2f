"""Maintain a workspace between runs: status, diff, rollback, garbage collection, verification, rerouting, repair."""
