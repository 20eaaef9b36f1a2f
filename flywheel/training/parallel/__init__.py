"""Gradient steps in one process or several."""
