"""Pretrain the base model."""
