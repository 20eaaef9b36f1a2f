"""Compute the policy's forward pass over training samples, padded or packed."""
