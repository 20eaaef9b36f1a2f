"""Pretraining of the base."""
