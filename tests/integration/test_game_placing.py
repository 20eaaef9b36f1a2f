"""Wood blocks and the hexagon board: what fits, which lines clear, when a game is lost."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from itertools import pairwise

import pytest
from pages import task_of

from flywheel.agent.actions import Drag
from flywheel.config import SandboxSettings, Settings
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.suites import placing
from flywheel.envs.suites.hexes import world as hexes
from flywheel.envs.suites.placing import PlacingState
from flywheel.envs.suites.steps import spot, where
from flywheel.envs.suites.wood import world as wood

DOT, PAIR = [[0, 0]], [[0, 0], [1, 0]]


def params(shapes, filled, target=9, **board):
    pieces = [{"shape": shape, "colour": "red"} for shape in shapes]
    return {"pieces": pieces, "filled": filled, "target": target, **board}


def cells(level, state):
    return {cell for number, cell in enumerate(level.cells) if state.filled >> number & 1}


def test_a_full_row_and_a_full_column_clear_at_once():
    cross = [[0, 1], [2, 1], [1, 0], [1, 2]]
    level = wood._make(params([DOT], [*cross, [0, 0]], size=3))
    after = dict(level.moves(level.start))[0, (1, 1)]
    assert cells(level, after) == {(0, 0)}
    assert after.lines == 2


def test_pieces_lie_on_free_cells_of_the_board_alone():
    level = wood._make(params([PAIR], [[1, 0]], size=2))
    assert [move for move, _ in level.moves(level.start)] == [(0, (0, 1))]


def test_three_more_pieces_come_once_the_tray_is_empty():
    level = wood._make(params([DOT] * 5, [], size=5))
    state = level.start
    trays = [state.tray]
    for column in range(5):
        piece = state.tray[-1]
        state = dict(level.moves(state))[piece, (column, column)]
        trays.append(state.tray)
    assert trays == [(0, 1, 2), (0, 1), (0,), (3, 4), (3,), ()]
    assert list(level.moves(state)) == []


def test_hexagon_lines_run_in_three_directions():
    board = hexes._cells(3)
    lines = hexes._lines(board)
    assert len(board) == 19
    assert sorted(map(len, lines)) == [3] * 6 + [4] * 6 + [5] * 3
    assert all(sum(cell in line for line in lines) == 3 for cell in board)
    for line in lines:  # neighbours in a line touch
        spots = [(q + r / 2, r * math.sqrt(3) / 2) for q, r in line]
        assert all(math.dist(a, b) == pytest.approx(1) for a, b in pairwise(spots))


def test_a_hexagon_line_clears():
    row = [[q, 0] for q in range(-2, 2)]
    level = hexes._make(params([DOT], row, side=3))
    after = dict(level.moves(level.start))[0, (2, 0)]
    assert (after.filled, after.lines) == (0, 1)


@pytest.mark.parametrize(("world", "counts"), [(wood, {2: 2, 3: 6, 4: 19, 5: 20}), (hexes, {2: 3, 3: 11, 4: 24})])
def test_shapes_are_those_of_each_size_and_begin_at_the_origin(world, counts):
    assert len(set(world._SHAPES)) == len(world._SHAPES)
    assert all(shape[0] == (0, 0) for shape in world._SHAPES)
    assert Counter(map(len, world._SHAPES)) == counts


@pytest.mark.parametrize("name", ["wood", "hexes"])
@pytest.mark.asyncio
async def test_the_page_and_the_search_have_the_same_rules(name):
    """Any pieces anywhere until none fits: the page agrees at each move, and ends as lost."""
    task = task_of(name, "clear", level=2)
    world = {"wood": wood, "hexes": hexes}[name]
    level, rng = world._make(task.params), random.Random(5)
    assert placing.Level is type(level)

    def centre(state, cell):
        if name == "wood":
            return wood.EDGE + cell[0] + 0.5, wood.EDGE + cell[1] + 0.5
        side = task.params["side"]
        height = 2 * (side - 1) * math.sqrt(3) / 2 + 2 / math.sqrt(3) + 2 * hexes.EDGE
        return state["frame"]["cols"] / 2 + cell[0] + cell[1] / 2, height / 2 + cell[1] * math.sqrt(3) / 2

    async with (
        open_browser_pool(Settings(sandbox=SandboxSettings(timeout_s=60, browsers=1, pages=1))) as pool,
        pool.env() as env,
    ):
        result = await env.reset(dataclasses.replace(task, max_steps=100), 0)
        now: PlacingState = level.start
        while moves := sorted(level.moves(now)):
            (piece, (x, y)), now = rng.choice(moves)
            state = result.info["state"]
            assert not state["terminated"]
            spots = [centre(state, (x + dx, y + dy)) for dx, dy in task.params["pieces"][piece]["shape"]]
            middle = [(min(axis) + max(axis)) / 2 for axis in zip(*spots, strict=True)]
            result = await env.step(Drag(where(state, f"piece {piece % 3}"), spot(state, *middle)))
            assert placing.read(level, result.info["state"]) == now
            if level.won(now):
                break
        assert result.info["state"]["lost"] is not level.won(now)
        assert result.terminated
