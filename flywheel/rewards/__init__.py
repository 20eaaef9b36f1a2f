"""Turn trajectories into scores, verdicts and rewards."""
