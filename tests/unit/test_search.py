"""Search over a game's states: shortest ways, limits, and experts that go along a way once found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.envs.suites import levels
from flywheel.envs.suites.prng import prng
from flywheel.envs.suites.search import Plans, SearchLimit, best_first, shortest
from flywheel.utils.errors import DataError

SIDE = 7
cells = st.tuples(st.integers(0, SIDE - 1), st.integers(0, SIDE - 1))


def moves_among(walls):
    def moves(cell):
        x, y = cell
        for name, dx, dy in (("left", -1, 0), ("right", 1, 0), ("up", 0, -1), ("down", 0, 1)):
            after = (x + dx, y + dy)
            if 0 <= after[0] < SIDE and 0 <= after[1] < SIDE and after not in walls:
                yield name, after

    return moves


@given(st.frozensets(cells, max_size=25), cells)
def test_both_searches_find_ways_of_the_same_length(walls, goal):
    moves = moves_among(walls - {(0, 0), goal})
    one = shortest((0, 0), moves, goal.__eq__)
    other = best_first((0, 0), moves, goal.__eq__, lambda cell: abs(cell[0] - goal[0]) + abs(cell[1] - goal[1]))
    assert (one is None) == (other is None)
    for way in (one, other):
        if way is not None:
            assert len(way) == len(one)
            at = (0, 0)
            for move, after in way:  # each step is a move there is
                assert (move, after) in set(moves(at))
                at = after
            assert at == goal


def test_a_known_way():
    way = shortest((0, 0), moves_among({(1, 0)}), (2, 0).__eq__)
    assert [move for move, _ in way] == ["down", "right", "right", "up"]
    assert shortest((0, 0), moves_among({(1, 0)}), (0, 0).__eq__) == []
    assert shortest((0, 0), moves_among({(1, 0), (0, 1)}), (2, 0).__eq__) is None


@pytest.mark.parametrize("search", [shortest, lambda *of, limit: best_first(*of, lambda _: 0.0, limit)])
def test_a_search_without_end_is_a_named_error(search):
    with pytest.raises(SearchLimit, match="among 50 states"):
        search(0, lambda n: [("more", n + 1)], lambda n: False, limit=50)


def test_a_plan_is_followed_and_made_anew_beside_it():
    asked = []

    def solve(state):
        asked.append(state)
        return shortest(state, lambda n: [("one", n + 1), ("two", n + 2)], lambda n: n >= 6)

    plans = Plans()
    assert [plans.move("a", n, solve) for n in (0, 2, 4)] == ["two", "two", "two"]
    assert asked == [0]
    assert plans.move("a", 5, solve) == "one"  # beside the way
    assert plans.move("b", 0, solve) == "two"  # of another task
    assert plans.move("a", 6, solve) is None
    assert asked == [0, 5, 0, 6]


def test_a_search_that_reaches_its_limit_plans_nothing():
    def solve(state):
        raise SearchLimit("too far")

    assert Plans().move("a", 0, solve) is None


def test_levels_that_do_not_come_are_a_named_error():
    def limited():
        raise SearchLimit("too far")

    with pytest.raises(DataError, match=r"no level in 3 tries.*snow level 2"):
        levels.first_winnable(limited, "snow level 2", tries=3)
    assert levels.first_winnable(iter([None, None, 7]).__next__, "snow") == 7


def test_equal_content_has_one_digest():
    assert (
        levels.level_digest({"a": 1, "b": [2]})
        == levels.level_digest({"b": [2], "a": 1})
        != levels.level_digest({"a": 1, "b": [3]})
    )


def test_the_seeded_generator_takes_any_integer():
    first = prng(42)
    assert [round(first(), 6) for _ in range(3)] == [0.601104, 0.448291, 0.852466]
    assert prng(-1)() == prng(2**32 - 1)()
    assert 0 <= prng(10**30)() < 1
