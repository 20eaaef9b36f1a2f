"""Number merge: boards from which the target is a known number of moves away, and the shortest way there."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action, Hotkey
from flywheel.sandbox.env import Task
from flywheel.worlds.merge.board import SIZE, luck, solve
from flywheel.worlds.steps import say

# level: (tiles as shares of the target, moves needed, step budget, most luck that random keys may have, spawns)
_LEVELS = {
    1: ((2, 4, 4), 2, 3, 0.4, False),
    2: ((2, 4, 8, 8), 3, 4, 0.2, False),
    3: ((2, 4, 8, 8), 4, 5, 0.06, True),
}
_ATTEMPTS = 5000


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """A board that needs exactly the level's number of moves, and that random keys seldom solve."""
    shares, needed, budget, most_luck, spawns = _LEVELS[level]
    for _ in range(_ATTEMPTS):
        target = rng.choice((16, 32, 64) if len(shares) > 3 else (8, 16, 32, 64))
        cells = rng.sample(range(SIZE * SIZE), len(shares))
        values = dict(zip(cells, (target // share for share in shares), strict=True))
        board = tuple(tuple(values.get(y * SIZE + x, 0) for x in range(SIZE)) for y in range(SIZE))
        spawn = rng.randrange(2**31) if spawns else None
        keys = solve(board, target, 0, spawn, needed)
        if keys and len(keys) == needed and luck(board, target, spawn, budget) <= most_luck:
            return {"board": [list(row) for row in board], "target": target, "spawn": spawn}
    raise RuntimeError(f"no board of level {level} in {_ATTEMPTS} attempts")


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """The first key of a shortest way to the target."""
    board = tuple(tuple(row) for row in state["board"])
    keys = solve(board, task.params["target"], state["moves"], task.params["spawn"], task.max_steps + 1)
    if not keys:
        return None
    key = keys[0]
    return say(rng, f"I press {key}.", f"Push the tiles {key}.", f"I move them {key}."), Hotkey((key,))
