"""Environments of any kind: what a kind is, its worlds, and who lends its environments."""
