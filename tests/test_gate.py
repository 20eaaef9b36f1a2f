"""Intervals against published values, and the promotion rules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.errors import DataError
from flywheel.evaluation.gate import EvalResult, compare, decide
from flywheel.evaluation.intervals import bootstrap_mean, newcombe_paired, student_mean, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Newcombe 1998 (Statistics in Medicine 17:857), table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson(successes, n, low, high):
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_the_interval_over_three_runs_is_students():
    """Mean 0.2, deviation 0.1: 4.303 x 0.1 / sqrt(3) to each side."""
    assert student_mean([0.1, 0.2, 0.3]) == (pytest.approx(0.2 - 0.24843, abs=1e-5), pytest.approx(0.44843, abs=1e-5))
    assert student_mean([0.1]) == (float("-inf"), float("inf"))


@pytest.mark.parametrize(
    ("cells", "low", "high"),
    # Newcombe 1998 (Statistics in Medicine 17:2635), table II, method 10: e, f, g, h of the published cases.
    [((36, 12, 2, 0), 0.0569, 0.3404), ((0, 0, 0, 0), -1.0, 1.0)],
)
def test_newcombe_paired(cells, low, high):
    assert newcombe_paired(*cells) == pytest.approx((low, high), abs=5e-4)


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=4, max_size=4).filter(any))
def test_newcombe_holds_its_difference_and_mirrors(cells):
    both, gained, lost, neither = cells
    low, high = newcombe_paired(both, gained, lost, neither)
    assert -1 <= low <= (gained - lost) / sum(cells) <= high <= 1
    assert newcombe_paired(both, lost, gained, neither) == pytest.approx((-high, -low))


def test_newcombe_keeps_a_width_where_nothing_differs():
    low, high = newcombe_paired(3, 0, 0, 2)
    assert low < -0.1
    assert high > 0.1


def test_bootstrap_is_seeded_and_close_to_the_normal_interval():
    values = [float(i % 4) for i in range(400)]  # mean 1.5, deviation 1.118: half width 0.1096
    low, high = bootstrap_mean(values, seed=1)
    assert (low, high) == pytest.approx((1.3904, 1.6096), abs=0.01)
    assert bootstrap_mean(values, seed=1) == (low, high)
    assert bootstrap_mean(values, seed=2) != (low, high)
    assert bootstrap_mean([0.5] * 9, seed=1) == (0.5, 0.5)


def results(*outcomes: int) -> list[EvalResult]:
    return [EvalResult(f"k{i}", "games", float(v), bool(v)) for i, v in enumerate(outcomes)]


OLD = results(*[1] * 10 + [0] * 30)
FAR_BETTER = results(*[1] * 30 + [0] * 10)
A_LITTLE_BETTER = results(*[1] * 12 + [0] * 28)
WORSE = results(*[1] * 9 + [0] * 31)


@pytest.mark.parametrize(
    ("new", "rule", "margin", "promote"),
    [
        (FAR_BETTER, "better", 0.0, True),
        (A_LITTLE_BETTER, "better", 0.0, False),
        (A_LITTLE_BETTER, "not_worse", 0.15, True),
        (OLD, "not_worse", 0.15, True),
        (OLD, "not_worse", 0.001, False),
        (WORSE, "not_worse", 0.5, False),
        (WORSE, "always", 0.0, True),
        (FAR_BETTER, "review", 0.0, None),
    ],
)
def test_rules(new, rule, margin, promote):
    decision = decide(OLD, new, rule, margin)
    assert decision.promote is promote
    assert decision.low <= decision.difference <= decision.high
    assert f"{decision.difference:+.3f}" in decision.reason


def test_pairs_by_task_whatever_the_order():
    assert compare(OLD, FAR_BETTER[::-1]) == compare(OLD, FAR_BETTER)
    assert compare(OLD, FAR_BETTER).difference == 0.5


def test_several_episodes_a_task_are_one_case():
    """Four episodes a task: the interval rests on tasks, not on episodes."""
    old = [EvalResult(f"k{i}", "games", 0.0, False) for i in range(10) for _ in range(4)]
    new = [EvalResult(f"k{i}", "games", 1.0, j < 2) for i in range(10) for j in range(4)]
    assert compare(old, new).n == 10
    assert compare(old, new).difference == 0.5


@pytest.mark.parametrize("new", [OLD[:-1], [*OLD, EvalResult("other", "games", 1.0, True)], []])
def test_other_tasks_are_refused(new):
    with pytest.raises(DataError, match="different tasks"):
        compare(OLD, new)
