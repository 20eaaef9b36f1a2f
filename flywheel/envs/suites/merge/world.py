"""Define the game `merge` (number merge): boards a known number of moves from a target, and games for points."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action
from flywheel.envs.base import Task
from flywheel.envs.suites.levels import first_winnable
from flywheel.envs.suites.merge.board import SIZE, Board, State, collect, luck, most_points, random_points, step
from flywheel.envs.suites.merge.board import solve as shortest_keys
from flywheel.envs.suites.search import Plans, Way
from flywheel.envs.suites.steps import press, say

# level: (target divided by each tile, moves needed, step budget, highest `luck` of random keys, whether tiles spawn)
_LEVELS = {
    1: ((2, 4, 4, 8), 2, 3, 0.25, False),
    2: ((2, 4, 8, 8), 3, 4, 0.2, False),
    3: ((2, 4, 8, 8), 4, 5, 0.06, True),
}
# level of the games for points: (moves in which the beam search reaches the goal, step budget)
_POINTS = {4: (36, 40), 5: (55, 60), 6: (84, 90)}
_LUCKY, _PLAYS = 1, 40  # at most _LUCKY of _PLAYS random plays may reach the goal
_MORE = 12  # moves that the expert searches beyond the budget, for boards on which another player has moved
_plans = Plans()


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a board that needs exactly the level's number of moves and that random keys seldom solve.

    Of the games for points, draw a goal that takes foresight to be reached within the budget.
    """
    attempt = _reach if template == "reach" else _points
    return first_winnable(lambda: attempt(level, rng), f"merge level {level}", tries=5000)


def _reach(level: int, rng: random.Random) -> dict[str, Any] | None:
    shares, needed, budget, most_luck, spawns = _LEVELS[level]
    target = rng.choice((16, 32, 64))
    board = _board(rng, [target // share for share in shares])
    spawn = rng.randrange(2**31) if spawns else None
    keys = shortest_keys(board, target, 0, spawn, needed)
    if not keys or len(keys) != needed or luck(board, target, spawn, budget) > most_luck:
        return None
    return {"board": [list(row) for row in board], "target": target, "spawn": spawn}


def _points(level: int, rng: random.Random) -> dict[str, Any] | None:
    moves, budget = _POINTS[level]
    board, spawn = _board(rng, [2, 2]), rng.randrange(2**31)
    start = State(board)
    goal = most_points(start, spawn, moves) // 4 * 4
    lucky = sum(random_points(start, spawn, budget, rng) >= goal for _ in range(_PLAYS))
    return {"board": [list(row) for row in board], "goal": goal, "spawn": spawn} if lucky <= _LUCKY else None


def _board(rng: random.Random, values: list[int]) -> Board:
    on = dict(zip(rng.sample(range(SIZE * SIZE), len(values)), values, strict=True))
    return tuple(tuple(on.get(y * SIZE + x, 0) for x in range(SIZE)) for y in range(SIZE))


def solve(params: Mapping[str, Any]) -> Way | None:
    """Find the keys to the target or to the points; None where none are found."""
    state = State(tuple(map(tuple, params["board"])))
    if "goal" in params:
        return collect(state, params["goal"], params["spawn"], 100)
    way: Way = []
    for key in shortest_keys(state.board, params["target"], 0, params["spawn"], 6) or ():
        state = step(state, key, params["spawn"])
        way.append((key, state))
    return way or None


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Return thought and action of the expert: the first key of a way to the target, or to the points."""
    if state["terminated"]:
        return None
    now = State(tuple(map(tuple, state["board"])), state["moves"], state["points"])
    spawn = task.params["spawn"]
    if "goal" in task.params:
        key = _plans.move(
            task.task_id, now, lambda now: collect(now, task.params["goal"], spawn, task.max_steps + _MORE)
        )
    else:
        keys = shortest_keys(now.board, task.params["target"], now.moves, spawn, task.max_steps + 1)
        key = keys[0] if keys else None
    if key is None:
        return None
    return say(rng, f"I press {key}.", f"Push the tiles {key}.", f"I move them {key}."), press(key)


def merge_reached(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Return 1.0 if a tile of the target's value or more is on the board, else 0.0: a verifier."""
    return float(max(value for row in state["board"] for value in row) >= params["target"])
