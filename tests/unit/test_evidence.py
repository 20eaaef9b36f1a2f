"""Testing by betting: exact answers, and that the bets hold what they promise whenever one stops."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from night import examples

from flywheel.evaluation.gate import betting_interval, log_capital_above, log_capital_below, log_capitals_of_counts

STAKES = [Fraction(1, 4) + Fraction(2 * n + 1, 128) for n in range(32)]
differences = st.lists(st.integers(-4, 4).map(lambda n: n / 4), max_size=40)


def exactly(some: list[float], mean: Fraction) -> float:
    """The capital by its definition, in fractions."""
    total = Fraction(0)
    for stake in STAKES:
        capital = Fraction(1)
        for value in some:
            capital *= 1 + stake * (Fraction(value) - mean) / (1 + mean)
        total += capital
    return float(total / len(STAKES))


def test_known_answers():
    """One gain at a mean of 0 turns 1 into 1 + u: 3/2 on average over the stakes; a loss into 1/2; none leaves it."""
    assert math.exp(log_capital_above([1], 0)) == pytest.approx(1.5)
    assert math.exp(log_capital_above([-1], 0)) == pytest.approx(0.5)
    assert math.exp(log_capital_above([0, 0, 0], 0)) == pytest.approx(1)
    assert math.exp(log_capital_above([], 0.3)) == 1
    assert math.exp(log_capital_above([0], -0.5)) == pytest.approx(1.5)  # 0 is 0.5 above the mean, and 0.5 the scale


@settings(deadline=None, max_examples=examples(50))
@given(differences, st.integers(-9, 9).map(lambda n: Fraction(n, 10)))
def test_the_definition_in_whatever_order(some, mean):
    got = log_capital_above(some, float(mean))
    assert got == pytest.approx(math.log(exactly(some, mean)), abs=1e-9)
    assert log_capital_above(some[::-1], float(mean)) == pytest.approx(got, abs=1e-9)
    assert log_capital_below([-value for value in some], -float(mean)) == pytest.approx(got, abs=1e-9)


@given(st.tuples(*[st.integers(0, 30)] * 3))
def test_counts_say_the_same(counts):
    some = [value for value, n in zip((-1, 0, 1), counts, strict=True) for _ in range(n)]
    assert log_capitals_of_counts(np.array(counts), -0.1) == pytest.approx(log_capital_above(some, -0.1), abs=1e-9)


@settings(deadline=None, max_examples=examples(30))
@given(differences)
def test_the_interval_is_where_neither_bet_has_won(some):
    low, high = betting_interval(some)
    assert -1 <= low <= high <= 1
    if some:
        assert low <= np.mean(some) <= high
    won = math.log(2 / 0.05)
    if low > -0.999:
        assert log_capital_above(some, low + 1e-6) < won <= log_capital_above(some, low - 1e-6)
    if high < 0.999:
        assert log_capital_below(some, high - 1e-6) < won <= log_capital_below(some, high + 1e-6)


@pytest.mark.parametrize("values", [(-1.0, 0.0, 1.0), (-1.0, 0.5, 0.75), (-0.25, 0.0, 0.25)])
def test_it_is_wrong_no_more_often_than_promised_at_all_looks_together(values):
    """500 series of 200 differences of mean m, looked at after each: the interval of 95% misses m in 5% at most."""
    rng, chances = np.random.default_rng(5), np.array([0.2, 0.5, 0.3])
    mean, missed = float(chances @ values), 0
    for _ in range(500):
        some = rng.choice(values, size=200, p=chances)
        above = np.cumsum(np.log1p(np.outer(some - mean, STAKES_F) / (1 + mean)), axis=0)
        below = np.cumsum(np.log1p(np.outer(mean - some, STAKES_F) / (1 - mean)), axis=0)
        capitals = np.maximum(np.exp(above).mean(axis=1), np.exp(below).mean(axis=1))
        missed += capitals.max() >= 2 / 0.05
    assert missed <= 0.05 * 500


STAKES_F = np.array([float(stake) for stake in STAKES])
