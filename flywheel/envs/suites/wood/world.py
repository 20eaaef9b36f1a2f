"""Define the game `wood` (wood blocks): boards half full, and pieces that clear their rows and columns."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action
from flywheel.envs.base import Task
from flywheel.envs.suites import placing
from flywheel.envs.suites.levels import first_winnable
from flywheel.envs.suites.placing import Cell, Level
from flywheel.envs.suites.search import Plans, Way

# level: (side of the board, share filled, smallest and largest piece, pieces, lines, fewest and most placements,
# whether greedy play must not win)
_LEVELS = {
    1: (5, 0.55, 2, 3, 6, 2, 2, 3, False),
    2: (5, 0.50, 2, 4, 9, 4, 4, 6, False),
    3: (6, 0.45, 2, 4, 15, 6, 7, 10, False),
    4: (7, 0.45, 2, 5, 24, 9, 11, 16, True),
    5: (8, 0.45, 3, 5, 42, 14, 18, 28, True),
    6: (8, 0.50, 3, 5, 60, 22, 30, 42, True),
}
EDGE = 0.25  # units of the frame around the board
_plans = Plans()


def _turns(shape: list[Cell]) -> set[tuple[Cell, ...]]:
    """Return the different orientations of a shape, turned and mirrored, each with its first square at the origin."""
    found = set()
    for _ in range(4):
        shape = [(-y, x) for x, y in shape]
        for turned in (shape, [(-x, y) for x, y in shape]):
            x0, y0 = min(turned, key=lambda square: (square[1], square[0]))
            found.add(tuple(sorted(((x - x0, y - y0) for x, y in turned), key=lambda square: (square[1], square[0]))))
    return found


_PICTURES = (
    "xx",
    "xxx",
    "xx/x",
    "xxxx",
    "xx/xx",
    "xxx/x",
    "xxx/.x",
    "xx/.xx",
    "xxx/xx",
    "xxx/x/x",
    "xxx/.x/.x",
    "x.x/xxx",
)
_SHAPES = sorted(
    turned
    for picture in _PICTURES
    for turned in _turns([(x, y) for y, row in enumerate(picture.split("/")) for x, c in enumerate(row) if c == "x"])
)


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a board, and somewhat more pieces than its target needs."""
    return first_winnable(lambda: _attempt(level, rng), f"wood level {level}")


def solve(params: Mapping[str, Any]) -> Way | None:
    return _level(json.dumps(params, sort_keys=True)).solve()


def _attempt(level: int, rng: random.Random) -> dict[str, Any] | None:
    side, share, small, large, count, target, fewest, most, thought = _LEVELS[level]
    cells = _cells(side)
    filled = sorted(rng.sample(cells, round(share * side * side)))
    if any(sum(cell[axis] == n for cell in filled) == side for axis in (0, 1) for n in range(side)):
        return None  # a line is full already
    shapes = [shape for shape in _SHAPES if small <= len(shape) <= large]
    params = {
        "size": side,
        "filled": [list(cell) for cell in filled],
        "pieces": placing.deal(shapes, count, rng),
        "target": target,
    }
    return placing.attempt(_make, params, fewest, most, thought)


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Return thought and action of the expert: the next placement of a way to the target."""
    level = _level(json.dumps(dict(task.params), sort_keys=True))
    return placing.step(task, state, rng, level, _plans, lambda cell: (EDGE + cell[0] + 0.5, EDGE + cell[1] + 0.5))


def _cells(side: int) -> list[Cell]:
    return [(x, y) for y in range(side) for x in range(side)]


def _make(params: Mapping[str, Any]) -> Level:
    cells, span = _cells(params["size"]), range(params["size"])
    lines = [[cell for cell in cells if cell[axis] == n] for axis in (1, 0) for n in span]
    return Level(cells, lines, params)


@functools.lru_cache(maxsize=256)
def _level(params: str) -> Level:
    return _make(json.loads(params))
