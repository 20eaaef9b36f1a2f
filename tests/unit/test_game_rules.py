"""Rules of snake, tile triples and shape fit, as their solvers have them: exact known answers."""

from __future__ import annotations

import dataclasses
import random

import pytest
from fake_env import fake_task

from flywheel.envs.suites import catalogue, levels, references
from flywheel.envs.suites.merge import board as merge
from flywheel.envs.suites.references import Played, References
from flywheel.envs.suites.search import SearchLimit
from flywheel.envs.suites.shapes import rules as shapes
from flywheel.envs.suites.snake import rules as snake
from flywheel.envs.suites.tiles import rules as tiles
from flywheel.utils.errors import DataError


# -- snake -------------------------------------------------------------------------------------------------------------
def snake_level(**changes) -> snake.Level:
    """Four by two: head at (1, 0), an apple right of it, the exit at the right end."""
    params = {
        "cols": 4,
        "rows": 2,
        "walls": [],
        "doors": [],
        "keys": [],
        "apples": [[2, 0]],
        "exit": [3, 0],
        "snake": [[1, 0], [0, 0], [0, 1]],
    }
    return snake.Level({**params, **changes})


def test_a_snake_grows_when_it_eats_and_its_tail_makes_room():
    level = snake_level()
    after = dict(level.moves(level.start))
    assert after["right"].snake == ((2, 0), (1, 0), (0, 0), (0, 1))
    assert after["right"].eaten == {0}
    assert after["down"].snake == ((1, 1), (1, 0), (0, 0))
    assert set(after) == {"right", "down"}  # not into itself, not off the board
    circle = snake_level(snake=[[0, 0], [1, 0], [1, 1], [0, 1]])
    assert "down" in dict(circle.moves(circle.start))  # its own tail leaves that cell


def test_the_exit_opens_with_the_last_apple_and_a_door_with_its_key():
    level = snake_level(apples=[[2, 1]], snake=[[2, 0], [1, 0], [0, 0]])
    assert "right" not in dict(level.moves(level.start))
    assert [key for key, _ in level.solve()] == ["down", "right", "up"]
    locked = snake_level(doors=[[2, 1]], walls=[[2, 0]], apples=[[3, 1]], keys=[[1, 1]])
    assert [key for key, _ in locked.solve()] == ["down", "right", "right", "up"]
    assert snake_level(doors=[[2, 1]], walls=[[2, 0]], apples=[[3, 1]], keys=[[3, 1]]).solve() is None


# -- tile triples ------------------------------------------------------------------------------------------------------
def tile_level(kinds: str, slots: int, covered: bool = False) -> tiles.Level:
    """A tile of each letter in a row; where `covered`, the last lies on the first."""
    placed = [{"kind": kind, "x": 3.0 * number, "y": 0.0, "layer": 0} for number, kind in enumerate(kinds)]
    if covered:
        placed[-1] |= {"x": -1.0, "layer": 1}
    return tiles.Level({"tiles": placed, "slots": slots, "side": 2.9})


def test_three_of_a_kind_vanish_and_a_full_tray_is_no_way():
    level = tile_level("ababab", 4)
    way = level.solve()
    assert sorted(number for number, _ in way) == list(range(6))
    assert way[-1][1] == tiles.State(frozenset())
    assert max(len(state.tray) for _, state in way) < 4
    assert tile_level("aab", 3).solve() is None  # the third would fill the tray
    assert tile_level("aaabbb", 3).is_won_greedily()


def test_a_covered_tile_is_not_free():
    level = tile_level("abb", 9, covered=True)
    assert level.free(level.start) == [1, 2]
    assert level.free(tiles.State(frozenset({0, 1}))) == [0, 1]


def test_the_expert_at_tiles_plays_on_where_its_search_reaches_the_limit(monkeypatch):
    def limited(level, state=None, limit=0):
        raise SearchLimit("too far")

    monkeypatch.setattr(tiles.Level, "solve", limited)
    kinds = ["red heart", "red heart", "blue drop", "blue drop", "blue drop"]
    placed = [{"kind": kind, "x": 3.0 * number, "y": 0.0, "layer": 0} for number, kind in enumerate(kinds)]
    task = dataclasses.replace(fake_task(), params={"tiles": placed, "slots": 4, "side": 2.9})
    state = {
        "terminated": False,
        "tiles": [{"id": 1}, {"id": 4}],
        "tray": ["blue drop", "red heart", "blue drop"],
        "elements": [{"name": f"tile {number}", "x": number / 10, "y": 0.0, "w": 0.1, "h": 0.1} for number in (1, 4)],
    }
    _, action = catalogue.get_world("tiles").module.next_step(task, state, random.Random(1))
    assert action.point.x == pytest.approx(0.45)  # of the kind with most tiles in the tray


# -- shape fit ---------------------------------------------------------------------------------------------------------
def test_four_turns_are_none_and_a_turn_is_to_the_right():
    hook = frozenset({(0, 0), (0, 1), (1, 1)})  # down, then right
    assert shapes.turned(hook, 1) == {(0, 0), (1, 0), (0, 1)}
    assert shapes.turned(hook, 4) == hook


def test_a_figure_is_filled_with_the_fewest_turns():
    params = {
        "figure": [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1]],
        "pieces": [{"cells": [[0, 0], [0, 1], [0, 2]], "turn": 0}, {"cells": [[0, 0], [1, 0]], "turn": 0}],
    }
    level = shapes.Level(params)
    assert len(list(level.fillings())) == 1
    assert [move for move, _ in level.solve()] == [("turn", 0, None), ("place", 0, (0, 0)), ("place", 1, (0, 1))]
    wrong = shapes.State(((0, None), (0, (0, 0))))  # the short piece where the long one belongs
    assert next(move for move, _ in level.solve(wrong)) == ("back", 1, None)
    assert shapes.Level({**params, "figure": [[0, 0], [1, 0], [2, 0], [3, 0], [3, 2]]}).solve() is None


# -- number merge ------------------------------------------------------------------------------------------------------
def test_merges_score_their_sums():
    start = merge.State(((2, 2, 4, 0), (8, 0, 8, 0), (0, 0, 0, 0), (0, 0, 0, 0)))
    after = merge.step(start, "left", None)
    assert (after.points, after.moves) == (4 + 16, 1)
    assert after.board[:2] == ((4, 4, 0, 0), (16, 0, 0, 0))
    assert merge.step(dataclasses.replace(start, board=((2, 0, 0, 0),) * 1 + ((0,) * 4,) * 3), "left", None) is None


def test_foresight_collects_more_than_chance():
    start = merge.State(((2, 0, 0, 0), (0, 0, 2, 0), (0, 0, 0, 0), (0, 0, 0, 0)))
    most = merge.most_points(start, 5, 40)
    way = merge.collect(start, most, 5, 40)
    assert way[-1][1].points >= most
    assert [state.moves for _, state in way] == list(range(1, len(way) + 1))
    rng = random.Random(1)
    assert sum(merge.random_points(start, 5, 40, rng) for _ in range(20)) / 20 < 0.8 * most


def test_random_play_seldom_wins_a_board_with_a_target():
    """A third of its actions are keys, each of the four as often; exact, over all that it may press."""

    def wins(board: merge.Board, target: int, budget: int) -> float:
        if max(map(max, board)) >= target:
            return 1.0
        if not budget:
            return 0.0
        pressed = (wins(merge.play(board, key, 0, None), target, budget - 1) for key in merge.KEYS)
        return 2 / 3 * wins(board, target, budget - 1) + sum(pressed) / 12

    world = catalogue.get_world("merge")
    for level in (1, 2):
        for _, params in levels.draw_levels(world, "reach", level, 20):
            board = tuple(map(tuple, params["board"]))
            assert wins(board, params["target"], world.budget("reach", level)) < 0.05


# -- references --------------------------------------------------------------------------------------------------------
def test_references_come_back_and_scores_are_told_beside_them(tmp_path):
    world = catalogue.get_world("tiles").model_copy(update={"folder": tmp_path})
    with pytest.raises(DataError, match="no references yet"):
        references.read_references(world)
    expert = Played.of([(1.0, True, 3), (0.5, False, 6)])
    assert expert == Played(0.75, 0.5, 4.5)
    kept = References("tiles", 2, "c", 2, 100, expert, Played(0.15, 0.0, 100.0), {"1": {"expert": expert}})
    references.write_references(world, kept)
    assert references.read_references(world) == kept
    assert kept.normalised(0.15) == pytest.approx(0.2)
    assert kept.normalised(0.9) > 1  # not clipped
    (tmp_path / "references.json").write_text('{"world": 3}')
    with pytest.raises(DataError, match="cannot be read"):
        references.read_references(world)
