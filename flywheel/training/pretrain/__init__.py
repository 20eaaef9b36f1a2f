"""Pretrain the base model, and measure whether a new base is better."""

__all__ = ["figures", "pretrainer"]
