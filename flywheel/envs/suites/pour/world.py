"""Define the game `pour` (pour and sort): tubes of mixed symbols that pouring sorts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action
from flywheel.envs.base import Task
from flywheel.envs.suites.levels import first_winnable
from flywheel.envs.suites.pour.rules import Tubes, finished, pour
from flywheel.envs.suites.pour.rules import solve as search
from flywheel.envs.suites.search import Plans, SearchLimit, Way
from flywheel.envs.suites.steps import click, say

_KINDS = ("star", "heart", "moon", "leaf", "drop", "bell", "key", "house", "bolt", "diamond")
# level: (kinds, empty tubes, symbols of a kind, fewest and most pours). Tubes of levels 1 and 2 are a few pours from
# sorted, those of the others are shuffled.
_LEVELS = {
    1: (3, 1, 4, 2, 3),
    2: (3, 2, 4, 4, 4),
    3: (3, 2, 4, 6, 10),
    4: (5, 2, 4, 11, 16),
    5: (7, 2, 4, 17, 24),
    6: (9, 2, 4, 23, 32),
}
_plans = Plans()


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw tubes, none of which is sorted at the start; higher levels have more kinds and take more pours."""
    return first_winnable(lambda: _attempt(level, rng), f"pour level {level}")


def solve(params: Mapping[str, Any]) -> Way | None:
    """Find the clicks of a way: the tube to pour from, then the one to pour into."""
    start = _tubes(params)
    found = search(start, params["size"])
    if found is None:
        return None
    way: Way = []
    for (source, target), after in found:
        way += [(source, start), (target, after)]
        start = after
    return way


def _attempt(level: int, rng: random.Random) -> dict[str, Any] | None:
    count, empty, size, fewest, most = _LEVELS[level]
    kinds = rng.sample(_KINDS, count)
    if level < 3:
        tubes = _tangled(kinds, empty, size, rng)
    else:
        symbols = [kind for kind in kinds for _ in range(size)]
        rng.shuffle(symbols)
        tubes = [symbols[size * k : size * (k + 1)] for k in range(count)] + [[] for _ in range(empty)]
    rng.shuffle(tubes)
    start: Tubes = tuple(map(tuple, tubes))
    if any(finished(tube, size) for tube in start):
        return None
    way = search(start, size, limit=3000, weight=1 if level < 3 else 1.5)
    return {"size": size, "tubes": tubes} if way and fewest <= len(way) <= most else None


def _tangled(kinds: list[str], empty: int, size: int, rng: random.Random) -> list[list[str]]:
    """Return sorted tubes of which some symbols were moved to other tubes."""
    tubes = [[kind] * size for kind in kinds] + [[] for _ in range(empty)]
    for _ in range(len(kinds) + 1):
        source = rng.choice([tube for tube in tubes if tube])
        count = rng.randint(1, 2)
        target = rng.choice(tubes)
        if target is not source and len(set(source[-count:])) == 1 and len(target) + count <= size:
            target += source[-count:]
            del source[-count:]
    return tubes


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Return thought and action of the expert: the next click, on the tube to pour from or on that to pour into."""
    if state["terminated"]:
        return None
    size = task.params["size"]
    tubes = _tubes(state)
    move = _plans.move(task.task_id, tubes, lambda start: _way(start, size))
    if move is None:
        return None
    source, target = move
    kind = tubes[source][-1]
    if state["chosen"] is None:
        return say(rng, f"I take the {kind}.", f"The {kind} can move.", f"I lift the {kind}."), click(
            state, f"tube {source}"
        )
    if state["chosen"] != source:
        return say(rng, "I put this back.", "Not this one."), click(state, f"tube {state['chosen']}")
    after = pour(tubes, move, size)
    if finished(after[target], size):
        thought = say(rng, f"That is every {kind}.", f"This tube of {kind} is full now.")
    elif tubes[target]:
        thought = say(rng, f"It goes on the other {kind}.", f"I pour it on the {kind}.")
    else:
        thought = say(rng, "I pour it in the empty tube.", "It goes in the empty tube.")
    return thought, click(state, f"tube {target}")


def _way(tubes: Tubes, size: int) -> Way | None:
    """Find a way from any tubes; None where the search finds none."""
    try:
        return search(tubes, size)
    except SearchLimit:
        return None


def _tubes(holder: Mapping[str, Any]) -> Tubes:
    return tuple(map(tuple, holder["tubes"]))
