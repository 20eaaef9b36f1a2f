"""Find near-duplicates of screens, tasks and episodes."""
