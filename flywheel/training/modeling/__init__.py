"""Run a policy forward over training samples, padded or packed, and load and save trained policies."""
