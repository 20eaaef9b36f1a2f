"""Parse a model's answer, in any of the forms that models of this field write."""

__all__ = ["lexing", "normalise", "parser"]
