"""RL (section 2.5)."""
