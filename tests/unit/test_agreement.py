"""Agreement of reviewers: published examples, other programs' figures, and what must hold of any answers."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from flywheel.recordings.agreement import Agreement, measure_agreement

# Krippendorff, Computing Krippendorff's Alpha-Reliability (2011), example C: four observers, twelve units.
_KRIPPENDORFF = """1 2 3 3 2 1 4 1 2 . . .
1 2 3 3 2 2 4 1 2 5 . 3
. 3 3 3 2 3 4 2 2 5 1 .
1 2 3 3 2 4 4 1 2 5 1 ."""


def by_subject(table: str) -> list[list[str]]:
    return [[one for one in said if one != "."] for said in zip(*map(str.split, table.splitlines()), strict=True)]


def test_the_published_example_of_four_raters():
    """Alpha as Krippendorff gives it; AC1 of the same table as Gwet's irrCAC 1.0 prints it."""
    found = measure_agreement(by_subject(_KRIPPENDORFF), 5)
    assert (found.n, round(found.alpha, 3), round(found.ac1, 5)) == (11, 0.743, 0.77544)


def test_two_raters_who_nearly_always_say_yes():
    """118 of 125 alike, and hardly a no: the case that AC1 is made for (Gwet 2008: kappa about 0, AC1 0.94)."""
    said = [["yes", "yes"]] * 118 + [["yes", "no"]] * 5 + [["no", "yes"]] * 2
    found = measure_agreement(said, 2)
    assert (round(found.ac1, 4), round(found.alpha, 3)) == (0.9408, -0.025)
    assert found.alpha_low <= found.alpha <= found.alpha_high
    assert found.ac1_low <= found.ac1 <= found.ac1_high


@pytest.mark.parametrize(
    ("said", "alpha", "ac1"),
    [([[1, 1], [0, 0]], 1.0, 1.0), ([[1, 1], [1, 1]], None, 1.0), ([[1, 0]] * 50, -0.98, -1.0)],
)
def test_the_ends_of_the_scale(said, alpha, ac1):
    found = measure_agreement(said, 2)
    assert (found.ac1, found.alpha) == (ac1, alpha if alpha is None else pytest.approx(alpha))


def test_nobody_is_compared_with_nobody():
    assert measure_agreement([[], [True]], 2) == Agreement(0)


def test_names_and_order_of_answers_do_not_matter_and_chance_is_nothing():
    rng = random.Random(7)
    said = [[rng.choice("ab"), rng.choice("ab")] for _ in range(2000)]
    found = measure_agreement(said, 2)
    assert (abs(found.alpha) < 0.08, abs(found.ac1) < 0.08) == (True, True)
    turned = measure_agreement([[{"a": "x", "b": "y"}[one] for one in reversed(two)] for two in said], 2)
    whole = dict.fromkeys(("alpha_low", "alpha_high", "ac1_low", "ac1_high"))
    assert replace(turned, **whole) == replace(found, **whole)


def test_other_programs_say_the_same():
    other = pytest.importorskip("krippendorff")
    rng = random.Random(3)
    for _ in range(50):
        table = [[rng.choice((0, 1, 1, None)) for _ in range(20)] for _ in range(rng.choice((2, 3)))]
        said = [[one for one in column if one is not None] for column in zip(*table, strict=True)]
        found = measure_agreement(said, 2)
        if found.alpha is not None:
            numbers = [[float("nan") if one is None else one for one in row] for row in table]
            assert other.alpha(numbers, level_of_measurement="nominal") == pytest.approx(found.alpha)


def test_fewer_than_three_have_figures_and_no_interval():
    found = measure_agreement([[1, 1], [1, 0], [1]], 2)
    assert (found.n, found.ac1 is None, found.ac1_low, found.alpha_high) == (2, False, None, None)
    assert found.words.endswith("(interval not known)")
    assert "[" not in found.words
    assert measure_agreement([[1, 1], [1, 0], [1, 1]], 2).ac1_low is not None
