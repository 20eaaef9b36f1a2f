"""Hold the scorers, one file each: the file's name is what `routing.scorers` calls it.

Each has `open_scorer(settings)`, which gives a `flywheel.rewards.scorer.Scorer`. A new one is a new file here.
"""
