"""Define the game `power` (power grid): a tree of wires from a power station to lamps, with its pieces turned."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action
from flywheel.envs.base import Task
from flywheel.envs.suites.levels import first_winnable
from flywheel.envs.suites.power.rules import Level
from flywheel.envs.suites.search import Plans, Way
from flywheel.envs.suites.steps import click_cell, say
from flywheel.envs.suites.turning import (
    OPPOSITE,
    STEPS,
    Board,
    Cell,
    describe_place,
    name_piece,
    replaced,
    total_turns,
    turned,
    ways_to_lie,
)

# level: (columns, rows, share of pieces turned out of place, fewest and most turns to the solution)
_LEVELS = {
    1: (4, 3, 0.25, 3, 5),
    2: (4, 4, 0.3, 5, 7),
    3: (4, 4, 0.6, 9, 14),
    4: (5, 5, 0.7, 17, 25),
    5: (6, 6, 0.75, 28, 40),
    6: (7, 7, 0.75, 42, 60),
}
_plans = Plans()


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a board that exactly one layout connects; higher levels are larger, with more pieces out of place."""
    return first_winnable(lambda: _attempt(level, rng), f"power level {level}")


def solve(params: Mapping[str, Any]) -> Way | None:
    made = _level(json.dumps(params, sort_keys=True))
    return made.solve(made.start)


def _attempt(level: int, rng: random.Random) -> dict[str, Any] | None:
    cols, rows, share, fewest, most = _LEVELS[level]
    wires = _tree(cols, rows, rng)
    inner = [cell for cell, piece in wires.items() if piece not in STEPS]
    source = rng.choice(inner)
    turned_out = {}
    for cell, piece in wires.items():
        others = ways_to_lie(piece)[1:]
        turned_out[cell] = rng.choice(others) if others and rng.random() < share else piece
    board, wanted = _rows(turned_out, cols, rows), _rows(wires, cols, rows)
    if not fewest <= total_turns(board, wanted) <= most:
        return None
    made = Level({"pieces": board, "source": source})
    if 2 * len(set(made.lit(board)) & set(made.lamps)) > len(made.lamps) or made.solution() != wanted:
        return None
    # Fewer clicks are needed where all lamps are lit before the last piece lies right.
    if len(made.solve(board) or []) < fewest:
        return None
    return {"cols": cols, "rows": rows, "source": list(source), "pieces": [list(row) for row in board]}


def _tree(cols: int, rows: int, rng: random.Random) -> dict[Cell, int]:
    """Draw wires that connect all cells without a ring; no cell has four."""
    start = rng.randrange(cols), rng.randrange(rows)
    wires = {start: 0}
    edges = [(start, side) for side in STEPS]
    while edges:
        (x, y), side = edges.pop(rng.randrange(len(edges)))
        there = x + STEPS[side][0], y + STEPS[side][1]
        if not (0 <= there[0] < cols and 0 <= there[1] < rows) or there in wires or (wires[x, y] | side) == 15:
            continue
        wires[x, y] |= side
        wires[there] = OPPOSITE[side]
        edges += [(there, other) for other in STEPS]
    return wires


def _rows(pieces: Mapping[Cell, int], cols: int, rows: int) -> Board:
    return tuple(tuple(pieces.get((x, y), 0) for x in range(cols)) for y in range(rows))


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Return thought and action of the expert: the next click, on the wrong piece nearest to the power station."""
    if state["terminated"]:
        return None
    level = _level(json.dumps(dict(task.params), sort_keys=True))
    board: Board = tuple(map(tuple, state["pieces"]))
    cell = _plans.move(task.task_id, board, level.solve)
    if cell is None:
        return None
    x, y = cell
    after = replaced(board, cell, turned(board[y][x]))
    what, side = _called(level, cell), describe_place(cell, level.cols, level.rows)
    more = set(level.lit(after)) - set(level.lit(board))
    right = level.solution()[y][x] == after[y][x]
    if right and more & set(level.lamps):
        thought = say(rng, "This will light a lamp.", f"I turn the {what}, and a lamp goes on.")
    elif right and more:
        thought = say(rng, f"I turn the {what} to the line.", f"Now the {what} gets power.")
    else:
        thought = say(rng, f"I turn the {what}.", f"I turn the {what} on the {side}.", f"The {what} lies wrong.")
    return thought, click_cell(state, x, y)


def _called(level: Level, cell: Cell) -> str:
    if cell == level.source:
        return "power station"
    return "lamp" if cell in level.lamps else name_piece(level.start[cell[1]][cell[0]])


@functools.lru_cache(maxsize=256)
def _level(params: str) -> Level:
    return Level(json.loads(params))
