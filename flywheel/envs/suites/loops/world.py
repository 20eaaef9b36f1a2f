"""Define the game `loops`: pieces of closed lines, turned out of place."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action
from flywheel.envs.base import Task
from flywheel.envs.suites.levels import first_winnable
from flywheel.envs.suites.loops.rules import closed, joined
from flywheel.envs.suites.loops.rules import solve as search
from flywheel.envs.suites.search import Plans, Way
from flywheel.envs.suites.steps import click_cell, say
from flywheel.envs.suites.turning import (
    DOWN,
    LEFT,
    RIGHT,
    UP,
    Board,
    describe_place,
    name_piece,
    replaced,
    turned,
    ways_to_lie,
)

# level: (columns, rows, share of neighbouring cells that are joined, share of pieces turned, fewest and most clicks)
_LEVELS = {
    1: (4, 3, 0.6, 0.3, 3, 5),
    2: (4, 4, 0.6, 0.4, 5, 7),
    3: (4, 4, 0.6, 0.9, 8, 13),
    4: (5, 5, 0.6, 0.95, 15, 24),
    5: (6, 6, 0.6, 1.0, 25, 37),
    6: (7, 7, 0.6, 1.0, 38, 53),
}
_plans = Plans()


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a board; higher levels are larger, with more pieces out of place."""
    return first_winnable(lambda: _attempt(level, rng), f"loops level {level}")


def solve(params: Mapping[str, Any]) -> Way | None:
    return search(_board(params))


def _attempt(level: int, rng: random.Random) -> dict[str, Any] | None:
    cols, rows, joins, share, fewest, most = _LEVELS[level]
    pieces = [[0] * cols for _ in range(rows)]
    for y in range(rows):
        for x in range(cols):
            if x + 1 < cols and rng.random() < joins:
                pieces[y][x] |= RIGHT
                pieces[y][x + 1] |= LEFT
            if y + 1 < rows and rng.random() < joins:
                pieces[y][x] |= DOWN
                pieces[y + 1][x] |= UP
    for row in pieces:
        for x, piece in enumerate(row):
            if rng.random() < share:
                row[x] = rng.choice(ways_to_lie(piece))
    board: Board = tuple(map(tuple, pieces))
    way = search(board)
    if not way or not fewest <= len(way) <= most:
        return None
    return {"cols": cols, "rows": rows, "pieces": pieces}


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Return thought and action of the expert: the next click, line by line."""
    if state["terminated"]:
        return None
    board = _board(state)
    cell = _plans.move(task.task_id, board, search)
    if cell is None:
        return None
    x, y = cell
    after = replaced(board, cell, turned(board[y][x]))
    what, side = name_piece(board[y][x]), describe_place(cell, len(board[0]), len(board))
    if closed(after):
        thought = say(rng, f"I turn the last {what}.", "Now no end is open.")
    elif joined(after, cell):
        thought = say(rng, f"Now this {what} fits.", f"I turn the {what}, now it fits.")
    else:
        thought = say(rng, f"I turn the {what}.", f"I turn the {what} on the {side}.", f"This {what} is open.")
    return thought, click_cell(state, x, y)


def _board(holder: Mapping[str, Any]) -> Board:
    return tuple(map(tuple, holder["pieces"]))
