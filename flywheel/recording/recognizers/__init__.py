"""Speech to words with times."""
