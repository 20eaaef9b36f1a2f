"""Rules of untangle."""

from __future__ import annotations

import random

from flywheel.envs.suites import catalogue
from flywheel.envs.suites.untangle.rules import Level, compute_conflicts, moved


def test_lines_are_in_the_way_where_they_cross_touch_or_overlap():
    table = compute_conflicts(5)

    def meet(*ends) -> bool:
        a, b, c, d = (y * 5 + x for x, y in ends)
        assert table[a * 25 + b, c * 25 + d] == table[c * 25 + d, b * 25 + a]
        return bool(table[a * 25 + b, c * 25 + d])

    assert meet((0, 0), (2, 2), (0, 2), (2, 0))  # cross
    assert not meet((0, 0), (2, 0), (0, 1), (2, 1))
    assert meet((0, 0), (4, 0), (2, 0), (2, 3))  # a knot on a line that is not its own
    assert meet((0, 0), (3, 0), (1, 0), (4, 0))  # on each other
    assert not meet((0, 0), (1, 0), (2, 0), (4, 0))  # one behind the other
    assert not meet((0, 0), (2, 2), (0, 0), (2, 1))  # from one knot
    assert meet((0, 0), (2, 2), (0, 0), (1, 1))  # from one knot, on each other
    assert not meet((1, 1), (2, 2), (1, 1), (0, 0))  # from one knot, away from each other


def test_moves_are_counted_as_they_leave_the_board():
    for seed in range(3):
        level = Level(catalogue.get_world("untangle").draw("free", 3, seed))
        for count, knot, dot in level._best(level.start):
            assert level.crossings(moved(level.start, knot, dot)) == count


def test_knots_get_to_their_places_from_any_others():
    params = catalogue.get_world("untangle").draw("free", 4, 1)
    level = Level(params)
    rng = random.Random(2)
    for _ in range(20):
        wanted = rng.sample(range(36), 10)
        start = [*wanted[1:], wanted[0]] if rng.random() < 0.5 else rng.sample(range(36), 10)
        places = tuple(start)
        for (knot, dot), after in level.towards(places, tuple(wanted)):
            assert dot not in places
            assert after == moved(places, knot, dot)
            places = after
        assert places == tuple(wanted)
