"""Play games that a file of rules declares: rewriting of a grid of objects, as in PuzzleScript (docs/rule-games.md)."""

__all__ = ["engine", "game"]
