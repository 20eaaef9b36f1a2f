"""Compute confidence intervals of success rates, means and paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np


def format_difference(value: float, low: float | None = None, high: float | None = None) -> str:
    """Format a difference of shares, and its interval where neither end is None, as `+0.05 [-0.07, +0.17]`.

    All pages use this function, so that they show equal numbers of digits.
    """
    return f"{value:+.2f}" + ("" if low is None or high is None else f" [{low:+.2f}, {high:+.2f}]")


def wilson_interval(successes: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Compute Wilson's score interval of a proportion (Wilson 1927), as (low, high); (0, 1) where n is 0.

    successes: number of successes in `n` trials, or the sum of `n` values in [0, 1], whose mean varies no more than a
    proportion. confidence: coverage, in (0, 1).
    """
    if n == 0:
        return 0.0, 1.0
    z, p = NormalDist().inv_cdf(0.5 + confidence / 2), successes / n
    centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low, high = (centre - spread) / scale, (centre + spread) / scale
    # Exact at the ends, where rounding would leave 1e-17.
    return (0.0 if successes == 0 else low), (1.0 if successes == n else high)


def newcombe_paired_interval(
    both: int, gained: int, lost: int, neither: int, confidence: float = 0.95
) -> tuple[float, float]:
    """Compute the interval of a paired difference of proportions, new - old, as (low, high).

    both, gained, lost, neither: numbers of pairs with success in both, only in the new, only in the old, in neither.
    confidence: coverage, in (0, 1). Newcombe 1998, Statistics in Medicine 17, method 10: unlike a bootstrap interval it
    has a width above 0 where no pair differs, and covers well for few pairs. (-1, 1) where there are no pairs.
    """
    n = both + gained + lost + neither
    if n == 0:
        return -1.0, 1.0
    new, old = both + gained, both + lost
    low_new, high_new = wilson_interval(new, n, confidence)
    low_old, high_old = wilson_interval(old, n, confidence)
    product = new * (n - new) * old * (n - old)
    cross = both * neither - gained * lost
    if cross > 0:
        cross = max(cross - n / 2, 0)  # the method's continuity correction
    phi = cross / math.sqrt(product) if product else 0.0
    p_new, p_old, difference = new / n, old / n, (gained - lost) / n
    down = _spread(p_new - low_new, high_old - p_old, phi)
    up = _spread(high_new - p_new, p_old - low_old, phi)
    return max(difference - down, -1.0), min(difference + up, 1.0)


def _spread(one: float, other: float, phi: float) -> float:
    return math.sqrt(max(one * one - 2 * phi * one * other + other * other, 0.0))


def bootstrap_mean_interval(
    values: Sequence[float], *, seed: int, confidence: float = 0.95, resamples: int = 10_000
) -> tuple[float, float]:
    """Compute the percentile bootstrap interval of the mean of `values` (n numbers), as (low, high).

    It is for graded scores, or several episodes per task. seed: of the draws. confidence: coverage, in [0, 1], else
    ValueError is raised. resamples: number of draws of n values each, 1 or more. Returns (-inf, inf) for no values.
    """
    data = np.asarray(values, dtype=np.float64)
    if len(data) == 0:
        return -math.inf, math.inf
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    for start in range(0, resamples, 1000):  # in slices: the index array stays small
        count = min(1000, resamples - start)
        means[start : start + count] = data[rng.integers(len(data), size=(count, len(data)))].mean(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
