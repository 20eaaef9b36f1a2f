"""Define the game `tiles` (tile triples): boards of stacked tiles, cleared by threes."""

from __future__ import annotations

import functools
import json
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action
from flywheel.envs.base import Task
from flywheel.envs.suites.levels import first_winnable
from flywheel.envs.suites.search import Plans, Way
from flywheel.envs.suites.steps import click, say
from flywheel.envs.suites.tiles.rules import Level, State

KINDS = ("red heart", "yellow star", "blue drop", "green leaf", "purple moon", "orange bell", "pink key", "black bolt")
_COLUMNS, _ROWS, _PITCH, _PITCH_Y = 4, 3, 3.45, 3.2  # cells of the flat boards of the first levels, in units
_ASIDE = (0.0, 0.05, 0.1, 0.15, 0.2)  # offsets of a tile from its cell, in units
# level of the piled boards: (triples, kinds, side of a tile, tiles of each layer, slots of the tray, whether greedy
# play may win)
_PILES = {
    4: (6, 5, 2.6, (12, 6), 7, True),
    5: (8, 7, 2.35, (12, 8, 4), 7, False),
    6: (12, 8, 2.2, (14, 11, 7, 4), 7, False),
}
_plans = Plans()


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw `level` kinds of three tiles each, few of which lie on others; above level 3, piles.

    The tray is small: picking tiles of mixed kinds loses. From level 5 on, always picking of the kind with most tiles
    in the tray loses too: what lies below matters.
    """
    return first_winnable(lambda: _flat(level, rng) if level <= 3 else _pile(level, rng), f"tiles level {level}")


def _flat(level: int, rng: random.Random) -> dict[str, Any] | None:
    kinds = rng.sample(KINDS, level)
    cells = [(column, row) for row in range(_ROWS) for column in range(_COLUMNS)]
    rng.shuffle(cells)
    bag = [kind for kind in kinds for _ in range(3)]
    rng.shuffle(bag)
    tiles = []
    for number, kind in enumerate(bag):
        stacked = level >= 3 and number >= 6
        column, row = cells[number - 6 if stacked else number]
        shift = 0.5 if stacked else 0.0
        x, y = column * _PITCH + rng.choice(_ASIDE), row * _PITCH_Y + rng.choice(_ASIDE)
        tiles.append(
            {
                "kind": kind,
                "x": round(min(x + shift, 10.8), 2),
                "y": round(min(y + shift, 6.7), 2),
                "layer": int(stacked),
            }
        )
    params = {"tiles": tiles, "slots": {1: 3, 2: 4, 3: 5}[level], "side": 2.9}
    return params if Level(params).solve() else None


def _pile(level: int, rng: random.Random) -> dict[str, Any] | None:
    """Draw layers of tiles, each shifted by half a tile against the one below."""
    triples, kinds, side, layers, slots, careless = _PILES[level]
    bag = [*rng.sample(KINDS, kinds), *rng.choices(KINDS, k=triples - kinds)] * 3
    rng.shuffle(bag)
    tiles = []
    columns, rows = int(13.8 / side), int(9.5 / side)
    left, top = (13.9 - columns * side) / 2, (9.5 - rows * side) / 2
    for layer, count in enumerate(layers):
        odd = layer % 2
        cells = [(column, row) for row in range(rows - odd) for column in range(columns - odd)]
        for column, row in sorted(rng.sample(cells, count), key=lambda cell: cell[::-1]):
            x, y = left + (column + odd / 2) * side, top + (row + odd / 2) * side
            tiles.append({"kind": bag.pop(), "x": round(x, 2), "y": round(y, 2), "layer": layer})
    params = {"tiles": tiles, "slots": slots, "side": side}
    made = Level(params)
    if not careless and made.is_won_greedily():
        return None
    return params if made.solve() else None


def solve(params: Mapping[str, Any]) -> Way | None:
    return Level(params).solve()


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Return thought and action of the expert: the next tile of an order that clears the board.

    Where there is none, a tile of the kind with most tiles in the tray.
    """
    if state["terminated"]:
        return None
    level = _level(json.dumps(dict(task.params), sort_keys=True))
    now = State(frozenset(tile["id"] for tile in state["tiles"]), tuple(sorted(state["tray"])))
    number = _plans.move(task.task_id, now, level.solve)
    tray = Counter(state["tray"])
    if number is None:
        number = max(level.free(now), key=lambda n: (tray[level.kinds[n]], level.kinds[n]))
    colour, shape = level.kinds[number].split()
    thought = say(rng, f"I pick the {colour} {shape}.", f"I click the {colour} tile.", f"Take the {colour} {shape}.")
    return thought, click(state, f"tile {number}")


@functools.lru_cache(maxsize=256)
def _level(params: str) -> Level:
    return Level(json.loads(params))


def tiles_cleared(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Return the share of the triples that are cleared: a verifier."""
    return 3 * state["triples"] / len(params["tiles"])
