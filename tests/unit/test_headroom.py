"""Headroom and live groups: against all draws without replacement, without bias, and what too few samples tell."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import comb

import pytest

from flywheel.evaluation.headroom import measure_headroom


@pytest.mark.parametrize("samples", [2, 3, 4, 9])
@pytest.mark.parametrize("group_size", [1, 2, 4, 16])
def test_it_is_the_share_of_the_draws(samples, group_size):
    for verified in range(samples + 1):
        outcomes = [True] * verified + [False] * (samples - verified)
        found = measure_headroom([(verified, samples)], group_size)
        assert (found.k, found.group_size) == (min(8, samples), min(max(group_size, 2), samples))
        solved = [any(draw) for draw in combinations(outcomes, found.k)]
        live = [len(set(draw)) == 2 for draw in combinations(outcomes, found.group_size)]
        assert found.gains == pytest.approx(sum(solved) / len(solved) - verified / samples, abs=1e-12)
        assert found.live == pytest.approx(sum(live) / len(live), abs=1e-12)
        assert found.gains >= 0
        assert 0 <= found.live <= 1


def test_both_are_right_on_average():
    """Over all outcomes of 10 samples that each succeed with probability 0.3."""
    p, n, group = Fraction(3, 10), 10, 4
    gains = live = 0.0
    for verified in range(n + 1):
        chance = float(comb(n, verified) * p**verified * (1 - p) ** (n - verified))
        found = measure_headroom([(verified, n)], group)
        gains, live = gains + chance * found.gains, live + chance * found.live
    assert gains == pytest.approx(float(1 - (1 - p) ** 8 - p))
    assert live == pytest.approx(float(1 - p**group - (1 - p) ** group))


def test_tasks_count_alike_and_one_sample_tells_nothing():
    found = measure_headroom([(1, 2), (0, 4), (1, 1), (0, 0)], 4)
    assert (found.tasks, found.k, found.group_size) == (2, 4, 4)
    assert (found.gains, found.live) == (pytest.approx(0.5), pytest.approx(1.0))
    nothing = measure_headroom([(1, 1)], 4)
    assert (nothing.tasks, nothing.gains, nothing.live) == (0, 0.0, 0.0)
