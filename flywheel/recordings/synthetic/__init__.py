"""Synthetic sessions, whose truth is known."""
