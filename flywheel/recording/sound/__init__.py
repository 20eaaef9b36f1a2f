"""Sound files: reading, and whether they can be trusted."""
