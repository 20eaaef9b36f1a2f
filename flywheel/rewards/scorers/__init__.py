"""Hold the scorers, one file each: the file's name is what `routing.scorers` calls it.

Each has `open_scorer(settings)`, which returns a `flywheel.rewards.scorer.Scorer`. A new scorer is a new file here.
"""

__all__ = ["verifier"]
