"""What is done to a workspace between runs: deciding again, mending, going back, comparing, pruning, verifying."""
