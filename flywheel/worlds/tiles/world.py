"""Tile triples: how a board is drawn, and how it is played."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action
from flywheel.sandbox.env import Task
from flywheel.worlds.steps import click, say

KINDS = ("red heart", "yellow star", "blue drop", "green leaf", "purple moon", "orange bell", "pink key", "black bolt")
_COLUMNS, _ROWS, _PITCH, _PITCH_Y = 4, 3, 3.45, 3.2  # cells of the board, in rem


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Level n has n kinds, three tiles each. At level 3 tiles may lie on one another.

    The tray is small: it is lost by picking tiles of mixed kinds.
    """
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
        x, y = column * _PITCH + rng.choice((0.0, 0.2)), row * _PITCH_Y + rng.choice((0.0, 0.2))
        tiles.append(
            {"kind": kind, "x": round(min(x + shift, 10.5), 2), "y": round(y + shift, 2), "layer": int(stacked)}
        )
    return {"tiles": tiles, "slots": {1: 3, 2: 4, 3: 5}[level]}


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Finish the kind that is furthest in the tray; among equals, the kind with most free tiles."""
    if state["terminated"]:
        return None
    tray = Counter(state["tray"])
    free = [tile for tile in state["tiles"] if tile["free"]]
    count = Counter(tile["kind"] for tile in free)
    tile = max(free, key=lambda tile: (tray[tile["kind"]], count[tile["kind"]], tile["kind"]))
    colour, shape = tile["kind"].split()
    thought = say(rng, f"I pick the {colour} {shape}.", f"I click the {colour} tile.", f"Take the {colour} {shape}.")
    return thought, click(state, f"tile {tile['id']}")
