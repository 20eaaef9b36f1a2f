"""Rules of the light maze."""

from __future__ import annotations

from flywheel.envs.suites.maze.rules import Level, State, edge
from flywheel.envs.suites.turning import DOWN, LEFT, RIGHT, UP

# A corridor of five cells, below its third cell a dead end; and below that of the fifth cell.
CORRIDOR = {
    "passages": [[RIGHT, LEFT | RIGHT, LEFT | RIGHT | DOWN, LEFT | RIGHT, LEFT | DOWN], [0, 0, UP, 0, UP]],
    "light": [0, 0],
    "star": [4, 1],
    "keys": [],
    "doors": [],
    "gates": [],
    "switches": [],
}


def level(**changes) -> Level:
    return Level({**CORRIDOR, **changes})


def test_the_light_runs_to_the_next_crossing_or_wall():
    made = level()
    assert made.run(made.start, RIGHT) == State((2, 0))  # a crossing
    assert made.run(State((2, 0)), RIGHT) == State((4, 0))  # a bend
    assert made.run(State((4, 0)), UP) == State((4, 0))  # a wall: nothing
    assert [key for key, _ in made.moves(State((2, 0)))] == ["left", "right", "down"]
    assert [key for key, _ in made.solve()] == ["right", "right", "down"]


def test_a_side_has_one_name_from_both_cells():
    assert edge((3, 2), LEFT) == edge((2, 2), RIGHT) == (2, 2, RIGHT)
    assert edge((3, 2), UP) == edge((3, 1), DOWN) == (3, 1, DOWN)


def test_a_key_stops_the_light_and_opens_its_door():
    made = level(keys=[[2, 1]], doors=[[3, 0, RIGHT]])
    assert made.run(State((2, 0)), RIGHT) == State((3, 0))  # the door is shut
    taken = made.run(State((2, 0)), DOWN)
    assert taken == State((2, 1), frozenset({0}))
    assert [key for key, _ in made.solve()] == ["right", "down", "up", "right", "down"]
    assert made.never_stuck()


def test_a_switch_flips_every_gate():
    made = level(switches=[[1, 0]], gates=[[2, 0, RIGHT, 1], [0, 0, RIGHT, 0]])
    flipped = made.run(made.start, RIGHT)
    assert flipped == State((1, 0), frozenset(), True)  # it stops there
    assert not made.passes(flipped, LEFT)  # the gate that was open is shut behind it
    assert made.run(State((2, 0), frozenset(), True), RIGHT) == State((4, 0), frozenset(), True)
    assert made.run(State((2, 0)), RIGHT) == State((2, 0))
    # Back over the switch, the gate to the star shuts; the first cell can be reached, and left again.
    assert made.never_stuck()
    assert not level(switches=[[3, 0]], gates=[[3, 0, RIGHT, 0], [2, 0, RIGHT, 0]]).never_stuck()
