"""Pieces that turn (power grid, loops): the solvers against every layout there is."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from night import examples

from flywheel.envs.suites.loops.rules import closed, joined
from flywheel.envs.suites.loops.rules import solve as solve_loops
from flywheel.envs.suites.power.rules import Level
from flywheel.envs.suites.turning import (
    DOWN,
    LEFT,
    RIGHT,
    UP,
    connected_layouts,
    describe_place,
    fewest_turns,
    name_piece,
    total_turns,
    turned,
    turns,
    ways_to_lie,
)

boards = st.tuples(st.integers(1, 3), st.integers(1, 3)).flatmap(
    lambda size: st.lists(
        st.lists(st.integers(0, 15), min_size=size[0], max_size=size[0]).map(tuple), min_size=size[1], max_size=size[1]
    ).map(tuple)
)


def layouts(board):
    """Every way that a board can be turned to."""
    rows = [list(product(*(ways_to_lie(piece) for piece in row))) for row in board]
    return list(product(*rows))


def whole(board) -> bool:
    """Whether all pieces hang together."""
    pieces = {(x, y) for y, row in enumerate(board) for x, piece in enumerate(row) if piece}
    found = [min(pieces)] if pieces else []
    for x, y in found:
        for side, there in ((UP, (x, y - 1)), (RIGHT, (x + 1, y)), (DOWN, (x, y + 1)), (LEFT, (x - 1, y))):
            if board[y][x] & side and there in pieces and there not in found:
                found.append(there)
    return len(found) == len(pieces)


def test_a_piece_turns_clockwise():
    assert [turned(UP), turned(RIGHT), turned(DOWN), turned(LEFT)] == [RIGHT, DOWN, LEFT, UP]
    assert turned(UP | RIGHT, 3) == LEFT | UP
    assert (turns(UP, LEFT), turns(UP | DOWN, LEFT | RIGHT), turns(15, 15)) == (3, 1, 0)
    with pytest.raises(ValueError, match="not in list"):
        turns(UP, UP | DOWN)


def test_pieces_and_places_have_names():
    assert [name_piece(piece) for piece in (LEFT, UP | DOWN, LEFT | UP, 15 - LEFT, 15)] == [
        "end",
        "straight piece",
        "bend",
        "fork",
        "cross",
    ]
    corners = [describe_place(cell, 5, 5) for cell in ((0, 0), (4, 0), (2, 2), (0, 4), (4, 4))]
    assert corners == ["upper left", "upper right", "middle", "lower left", "lower right"]
    assert [describe_place(cell, 5, 5) for cell in ((2, 0), (0, 2), (4, 2), (2, 4))] == [
        "top",
        "left",
        "right",
        "bottom",
    ]


@given(boards)
@settings(max_examples=examples(40), deadline=None)
def test_fewest_turns_is_the_least_of_all_layouts(board):
    fit = [layout for layout in layouts(board) if closed(layout)] if len(layouts(board)) < 5000 else None
    found = fewest_turns(board)
    if fit is None:
        assert found is None or closed(found)
    elif not fit:
        assert found is None
    else:
        assert closed(found)
        assert total_turns(board, found) == min(total_turns(board, layout) for layout in fit)


@given(boards)
@settings(max_examples=examples(40), deadline=None)
def test_connected_layouts_are_all_there_are(board):
    every = layouts(board)
    if len(every) < 3000 and any(map(any, board)):
        assert set(connected_layouts(board)) == {layout for layout in every if closed(layout) and whole(layout)}


def test_loops_are_closed_by_the_fewest_clicks():
    ring = ((RIGHT | DOWN, LEFT | UP), (UP | RIGHT, UP | LEFT))  # the upper right piece lies wrong
    assert not joined(ring, (1, 0))
    assert joined(ring, (0, 1))
    way = solve_loops(ring)
    assert [cell for cell, _ in way] == [(1, 0)] * 3
    assert closed(way[-1][1])
    assert solve_loops(((UP, 0),)) is None


def test_light_goes_where_wires_meet():
    level = Level({"pieces": [[RIGHT, LEFT | RIGHT, LEFT], [RIGHT, LEFT | RIGHT, UP]], "source": [1, 0]})
    assert level.lit(level.start) == [(1, 0), (2, 0), (0, 0)]
    assert level.lamps == [(0, 0), (2, 0), (0, 1), (2, 1)]
    assert not level.won(level.start)
    assert level.solve(level.start) is None  # no layout joins the upper line and the lower one


def test_power_is_led_outward_with_one_layout():
    level = Level({"pieces": [[DOWN, LEFT | RIGHT | DOWN, LEFT], [0, DOWN, 0]], "source": [1, 0]})
    way = level.solve(level.start)
    assert [cell for cell, _ in way] == [(1, 1)] * 2 + [(0, 0)] * 3
    assert level.won(way[-1][1])
    assert not level.won(way[-2][1])
