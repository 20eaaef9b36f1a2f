"""Define the game `snake` (snake puzzle): rooms with walls, doors and apples that a snake eats its way through."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from flywheel.agent.actions import Action
from flywheel.envs.base import Task
from flywheel.envs.suites.levels import first_winnable
from flywheel.envs.suites.search import Plans, Way
from flywheel.envs.suites.snake.rules import STEPS, Cell, Level, State
from flywheel.envs.suites.steps import press, say

# level: (side of the board, doors, single walls, apples, length of the snake, fewest and most steps to the exit)
_LEVELS = {
    1: (5, 0, 3, 1, 3, 5, 8),
    2: (6, 0, 5, 2, 3, 8, 12),
    3: (7, 1, 4, 2, 3, 12, 19),
    4: (8, 1, 8, 3, 4, 17, 29),
    5: (9, 2, 7, 4, 5, 27, 47),
    6: (10, 2, 12, 6, 6, 36, 64),
}
_COLOURS = ("blue", "purple", "orange")
_plans = Plans()


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw rooms in a row, each behind a door whose key is in the room before it; the exit is in the last room."""
    return first_winnable(lambda: _attempt(level, rng), f"snake level {level}")


def solve(params: Mapping[str, Any]) -> Way | None:
    return _level(json.dumps(params, sort_keys=True)).solve()


def _attempt(level: int, rng: random.Random) -> dict[str, Any] | None:
    side, doors, blocks, apples, length, fewest, most = _LEVELS[level]
    lines = sorted(rng.sample(range(2, side - 2), doors)) if doors else []
    if any(b - a < 3 for a, b in pairwise(lines)):
        return None
    gaps = [(line, rng.randrange(side)) for line in lines]
    walls = [(line, y) for line, gap in gaps for y in range(side) if y != gap]
    rooms: list[list[Cell]] = [[] for _ in range(doors + 1)]
    for x in range(side):
        if x not in lines:
            rooms[sum(line < x for line in lines)] += [(x, y) for y in range(side)]
    for room in rooms:
        rng.shuffle(room)
    snake = _body(rooms[0], length, rng)
    if snake is None:
        return None
    for cell in snake:
        rooms[0].remove(cell)
    keys = [rooms[number].pop() for number in range(doors)]
    exit_ = rooms[-1].pop()
    food = [rooms[number % len(rooms)].pop() for number in range(apples)]
    beside = {(gap[0] + dx, gap[1]) for gap in gaps for dx in (-1, 1)}
    free = [cell for room in rooms for cell in room if cell not in beside]
    walls += rng.sample(free, blocks)
    turned = rng.random() < 0.5  # rooms are in a column instead of a row

    def places(cells: list[Cell]) -> list[list[int]]:
        return [[y, x] if turned else [x, y] for x, y in cells]

    params = {
        "cols": side,
        "rows": side,
        "walls": places(sorted(walls)),
        "doors": places(gaps),
        "keys": places(keys),
        "apples": places(food),
        "exit": places([exit_])[0],
        "snake": places(snake),
    }
    made = Level(params)
    way = made.solve(limit=3000) if made.connected() else None
    return params if way and fewest <= len(way) <= most else None


def _body(room: list[Cell], length: int, rng: random.Random) -> list[Cell] | None:
    """Draw a snake that lies in the room, head first; None where it finds no room."""
    body = [rng.choice(room)]
    while len(body) < length:
        x, y = body[-1]
        around = [(x + dx, y + dy) for dx, dy in STEPS.values()]
        around = [cell for cell in around if cell in room and cell not in body]
        if not around:
            return None
        body.append(rng.choice(around))
    return body


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Return thought and action of the expert: the next key of a way out."""
    if state["terminated"]:
        return None
    level = _level(json.dumps(dict(task.params), sort_keys=True))
    now = State(tuple((x, y) for x, y in state["snake"]), frozenset(state["eaten"]), frozenset(state["taken"]))
    key = _plans.move(task.task_id, now, level.solve)
    if key is None:
        return None
    after = dict(level.moves(now))[key]
    if level.out(after):
        return say(rng, "Now out of here.", f"I go {key} to the exit."), press(key)
    if len(after.eaten) > len(now.eaten):
        return say(rng, "I eat the apple.", f"The apple is {key}."), press(key)
    if len(after.taken) > len(now.taken):
        (number,) = after.taken - now.taken
        return say(rng, f"I take the {_COLOURS[number]} key.", "The key opens the door."), press(key)
    return say(rng, f"I go {key}.", f"I press {key}.", f"The snake goes {key}."), press(key)


@functools.lru_cache(maxsize=256)
def _level(params: str) -> Level:
    return Level(json.loads(params))
