"""Define the game `hexes` (hexagon board): boards half full, and pieces of hexagons that clear their lines."""

from __future__ import annotations

import functools
import json
import math
import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action
from flywheel.envs.base import Task
from flywheel.envs.suites import placing
from flywheel.envs.suites.levels import first_winnable
from flywheel.envs.suites.placing import Cell, Level
from flywheel.envs.suites.search import Plans, Way

# level: (cells along an edge, share filled, smallest and largest piece, pieces, lines, fewest and most placements,
# whether greedy play must not win)
_LEVELS = {
    1: (3, 0.45, 2, 3, 6, 2, 2, 3, False),
    2: (3, 0.40, 2, 4, 9, 4, 4, 6, False),
    3: (4, 0.40, 2, 4, 15, 7, 7, 10, False),
    4: (4, 0.40, 3, 4, 24, 11, 11, 16, True),
    5: (5, 0.45, 3, 4, 42, 16, 18, 28, True),
    6: (5, 0.45, 3, 4, 60, 24, 30, 42, True),
}
EDGE = 0.3  # units around the board
_RISE = math.sqrt(3) / 2  # from a row to the next
_plans = Plans()


def _turns(shape: list[Cell]) -> set[tuple[Cell, ...]]:
    """Return the different orientations of a shape in six turns, each with its first cell at the origin."""
    found = set()
    for _ in range(6):
        shape = [(-r, q + r) for q, r in shape]
        q0, r0 = min(shape, key=lambda cell: (cell[1], cell[0]))
        found.add(tuple(sorted(((q - q0, r - r0) for q, r in shape), key=lambda cell: (cell[1], cell[0]))))
    return found


_PICTURES: tuple[list[Cell], ...] = (
    [(0, 0), (1, 0)],
    [(0, 0), (1, 0), (2, 0)],
    [(0, 0), (1, 0), (0, 1)],
    [(0, 0), (1, 0), (1, 1)],
    [(0, 0), (1, 0), (2, 0), (3, 0)],
    [(0, 0), (1, 0), (0, 1), (1, 1)],
    [(0, 0), (1, 0), (2, 0), (2, 1)],
    [(0, 0), (1, 0), (2, 0), (-1, 1)],
    [(0, 0), (1, 0), (1, 1), (0, 2)],
)
_SHAPES = sorted({turned for picture in _PICTURES for turned in _turns(picture)})


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a board, and somewhat more pieces than its target needs."""
    return first_winnable(lambda: _attempt(level, rng), f"hexes level {level}")


def solve(params: Mapping[str, Any]) -> Way | None:
    return _level(json.dumps(params, sort_keys=True)).solve()


def _attempt(level: int, rng: random.Random) -> dict[str, Any] | None:
    side, share, small, large, count, target, fewest, most, thought = _LEVELS[level]
    cells = _cells(side)
    filled = sorted(rng.sample(cells, round(share * len(cells))), key=cells.index)
    if any(set(line) <= set(filled) for line in _lines(cells)):
        return None  # a line is full already
    shapes = [shape for shape in _SHAPES if small <= len(shape) <= large]
    params = {
        "side": side,
        "filled": [list(cell) for cell in filled],
        "pieces": placing.deal(shapes, count, rng),
        "target": target,
    }
    return placing.attempt(_make, params, fewest, most, thought)


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Return thought and action of the expert: the next placement of a way to the target."""
    side = task.params["side"]
    width, height = 2 * side - 1 + 2 * EDGE, 2 * (side - 1) * _RISE + 2 / math.sqrt(3) + 2 * EDGE

    def centre(cell: Cell) -> tuple[float, float]:
        return width / 2 + cell[0] + cell[1] / 2, height / 2 + cell[1] * _RISE

    return placing.step(task, state, rng, _level(json.dumps(dict(task.params), sort_keys=True)), _plans, centre)


def _cells(side: int) -> list[Cell]:
    """List the cells row by row as axial (q, r): r the row, 0 in the middle, q the place along the row."""
    span = range(1 - side, side)
    return [(q, r) for r in span for q in span if abs(q + r) < side]


def _lines(cells: list[Cell]) -> list[list[Cell]]:
    """Group the cells into the lines of the three directions."""
    found: dict[tuple[int, int], list[Cell]] = {}
    for q, r in cells:
        for direction, number in enumerate((r, q, q + r)):
            found.setdefault((direction, number), []).append((q, r))
    return list(found.values())


def _make(params: Mapping[str, Any]) -> Level:
    cells = _cells(params["side"])
    return Level(cells, _lines(cells), params)


@functools.lru_cache(maxsize=256)
def _level(params: str) -> Level:
    return _make(json.loads(params))
