"""Define the stages of an iteration and their order, run them in shards, and plan the iterations of a run."""
