"""Rules of pour and sort."""

from __future__ import annotations

import random

from flywheel.envs.suites.pour.rules import finished, pour, poured, run, solve, sorted_out
from flywheel.envs.suites.search import shortest


def test_the_top_run_goes_where_it_fits():
    assert run(("star", "moon", "moon")) == 2
    assert run(()) == 0
    assert poured(("star", "moon", "moon"), ("key", "moon"), 4) == 2
    assert poured(("moon", "moon", "moon"), ("key", "moon"), 3) == 0  # finished tubes stay
    assert poured(("star", "moon", "moon"), ("key", "key", "moon"), 4) == 1  # room for one only
    assert poured(("star",), ("moon",), 4) == 0
    assert poured((), ("moon",), 4) == 0
    assert poured(("star",), (), 4) == 1
    assert pour((("star", "moon", "moon"), ("moon",), ()), (0, 1), 4) == (("star",), ("moon", "moon", "moon"), ())


def test_sorted_means_full_tubes_of_one_kind():
    assert finished(("star",) * 3, 3)
    assert not finished(("star",) * 2, 3)
    assert sorted_out((("star",) * 3, (), ("key",) * 3), 3)
    assert not sorted_out((("star",) * 2, ("star",), ()), 3)


def test_what_cannot_be_sorted_is_known():
    assert solve((("a", "b", "a"), ("b", "a", "b")), 3) is None


def test_a_way_is_as_short_as_one_that_tries_all():
    rng = random.Random(3)
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    for _ in range(25):
        symbols = list("aaabbbccc")
        rng.shuffle(symbols)
        tubes = (*(tuple(symbols[3 * k : 3 * k + 3]) for k in range(3)), ())
        plain = shortest(
            tubes,
            lambda now: ((p, pour(now, p, 3)) for p in pairs if poured(now[p[0]], now[p[1]], 3)),
            lambda now: sorted_out(now, 3),
        )
        found = solve(tubes, 3, weight=1)
        assert (found is None) == (plain is None)
        if found:
            assert len(found) == len(plain)
            for (move, after), before in zip(found, [tubes, *(after for _, after in found)], strict=False):
                assert after == pour(before, move, 3)
            assert sorted_out(found[-1][1], 3)
