"""Define the game `gems` (gem merge): boards of gems that join into a target's number."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action
from flywheel.envs.base import Task
from flywheel.envs.suites.gems.rules import WILD, Cell, Level, State, gem_at, joined
from flywheel.envs.suites.levels import first_winnable
from flywheel.envs.suites.number_words import cardinal
from flywheel.envs.suites.search import Plans, Way
from flywheel.envs.suites.steps import click_cell, say

# level: (side of the board, highest gem to come, share of wildcards, number to make, fewest and most joins,
# whether greedy play must not win)
_LEVELS = {
    1: (4, 3, 0.0, 4, 2, 2, False),
    2: (4, 3, 0.0, 5, 3, 3, False),
    3: (4, 3, 0.05, 6, 7, 10, False),
    4: (4, 3, 0.05, 7, 15, 27, True),
    5: (5, 4, 0.05, 8, 20, 38, True),
}
_NAMES = ("star", *map(cardinal, range(1, 11)))
_plans = Plans()


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a board on which the target's number can be made in the level's number of joins."""
    return first_winnable(lambda: _attempt(level, rng), f"gems level {level}")


def solve(params: Mapping[str, Any]) -> Way | None:
    return _level(json.dumps(params, sort_keys=True)).solve()


def _attempt(level: int, rng: random.Random) -> dict[str, Any] | None:
    side, high, wild, target, fewest, most, thought = _LEVELS[level]

    def gems(count: int) -> list[int]:
        return [WILD if rng.random() < wild else rng.randint(1, high) for _ in range(count)]

    params = {"side": side, "columns": [gems(side) for _ in range(side)], "coming": gems(2 * most), "target": target}
    made = Level(params)
    if thought and made.solve(widths=(1,), most=most) is not None:
        return None
    way = made.solve(widths=(8,), most=most)
    return params if way and fewest <= len(way) else None


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Return thought and action of the expert: the next click of a join, on the gem that moves or the one it joins."""
    if state["terminated"]:
        return None
    level = _level(json.dumps(dict(task.params), sort_keys=True))
    now = State(tuple(map(tuple, state["columns"])), state["used"])
    move = _plans.move(task.task_id, now, level.solve)
    if move is None:
        return None
    one, other = move
    gems = [gem_at(now.columns, cell) for cell in move]
    names = [_NAMES[min(gem, len(_NAMES) - 1)] for gem in gems]
    picked = tuple(state["picked"]) if state["picked"] else None
    if picked == one:
        made = _NAMES[min(joined(*gems) or 0, len(_NAMES) - 1)]
        return say(rng, f"That makes a {made}.", f"With this {names[1]} I get a {made}."), _click(state, other)
    if picked and _beside(picked, one) and joined(gem_at(now.columns, picked), gems[0]):
        return say(rng, "I let this one go.", "Not this one."), _click(state, picked)
    return say(rng, f"I pick the {names[0]}.", f"I click this {names[0]}.", f"Take the {names[0]}."), _click(state, one)


def _click(state: Mapping[str, Any], cell: Cell) -> Action:
    return click_cell(state, cell[0], int(state["frame"]["rows"]) - 1 - cell[1])


def _beside(one: Cell, other: Cell) -> bool:
    return abs(one[0] - other[0]) + abs(one[1] - other[1]) == 1


@functools.lru_cache(maxsize=256)
def _level(params: str) -> Level:
    return Level(json.loads(params))
