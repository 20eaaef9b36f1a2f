"""Train by reinforcement learning (section 2.5)."""
