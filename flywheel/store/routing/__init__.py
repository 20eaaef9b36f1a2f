"""Divide trajectories among the stores of SFT, CT and quarantine, under data contracts."""
