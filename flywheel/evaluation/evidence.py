"""Evidence about the mean of paired differences that holds whenever one stops looking: testing by betting.

A gambler who starts with 1 bets on each difference d in [-1, 1] that the mean is above m: the stake u in (0, 1) turns
the capital by 1 + u (d - m) / (1 + m), which is never negative and, if the mean is m or less, never grows on average.
So by Ville's inequality the capital ever reaches 1/a with a chance of at most a, whatever the distribution, and after
every look anew: no number of tasks need be fixed before. The capital is the mean over stakes from a quarter to three
quarters, and the order of the tasks makes no difference (Waudby-Smith and Ramdas 2024, Journal of the Royal Statistical
Society B 86:1, "Estimating means of bounded random variables by betting"; the mixture is Cover's universal portfolio).
Any stakes keep the promise; these find more out of some tens of tasks than stakes from all of (0, 1) do (one equal
model in three is promoted within 80 tasks, not one in four), and hardly less out of a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_STAKES = 0.25 + 0.5 * (np.arange(32) + 0.5) / 32
_BISECTIONS = 50  # halve [-1, 1] to below what a float can tell


def log_capital_above(differences: Sequence[float] | np.ndarray, mean: float) -> float:
    """Logarithm of the capital won by betting that the mean is above `mean`.

    differences: shape (n,), each in [-1, 1]. -1 < mean < 1. 0 for n = 0.
    """
    return _log_mixture(_STAKES * ((np.asarray(differences, np.float64)[:, None] - mean) / (1 + mean)))


def log_capital_below(differences: Sequence[float] | np.ndarray, mean: float) -> float:
    """The same for betting that the mean is below `mean`."""
    return log_capital_above(-np.asarray(differences, np.float64), -mean)


def log_capitals_of_counts(counts: np.ndarray, mean: float) -> np.ndarray:
    """`log_capital_above` of differences that are -1, 0 or 1, for many samples at once.

    counts: shape (..., 3), how many there are of -1, 0 and 1. Returns shape (...,).
    """
    gains = np.log1p(_STAKES * ((np.array([-1.0, 0.0, 1.0])[:, None] - mean) / (1 + mean)))  # (3, stakes)
    return _log_mean(np.asarray(counts, np.float64) @ gains)


def interval(differences: Sequence[float] | np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """The means that neither bet has refuted: it holds the true mean with `confidence`, at all looks together."""
    data = np.asarray(differences, np.float64)
    refuted = math.log(2 / (1 - confidence))
    return _lowest(data, refuted), -_lowest(-data, refuted)


def _lowest(data: np.ndarray, refuted: float) -> float:
    """The least mean that betting above it has not refuted; the capital falls as the mean rises."""
    low, high = -1.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if middle > -1 and log_capital_above(data, middle) >= refuted:
            low = middle
        else:
            high = middle
    return low


def _log_mixture(changes: np.ndarray) -> float:
    """changes: relative gains, shape (n, stakes). The mean over stakes of the capitals, as a logarithm."""
    return float(_log_mean(np.log1p(changes).sum(axis=0)))


def _log_mean(logarithms: np.ndarray) -> np.ndarray:
    top = logarithms.max(axis=-1, keepdims=True)
    return np.squeeze(top, -1) + np.log(np.exp(logarithms - top).mean(axis=-1))
