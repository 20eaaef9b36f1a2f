"""Define the game `untangle`: drawings without a crossing, some of whose knots are then moved."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action
from flywheel.envs.base import Task
from flywheel.envs.suites.levels import first_winnable
from flywheel.envs.suites.search import Plans, Way
from flywheel.envs.suites.steps import drag, say
from flywheel.envs.suites.turning import describe_place
from flywheel.envs.suites.untangle.rules import Level, Places, compute_conflicts

# level: (dots a side, knots, lines, knots moved out of place, fewest and most moves)
_LEVELS = {
    1: (5, 5, 6, 3, 2, 3),
    2: (5, 6, 8, 5, 3, 4),
    3: (6, 8, 11, 8, 3, 5),
    4: (6, 10, 14, 10, 4, 7),
    5: (7, 12, 17, 12, 5, 9),
    6: (7, 14, 20, 14, 7, 12),
}
NAMES = (
    "star",
    "heart",
    "moon",
    "bell",
    "drop",
    "bolt",
    "leaf",
    "key",
    "house",
    "circle",
    "square",
    "triangle",
    "diamond",
    "cross",
)
_plans = Plans()


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a tangled drawing; higher levels have more knots and lines, and more knots out of place."""
    return first_winnable(lambda: _attempt(level, rng), f"untangle level {level}")


def solve(params: Mapping[str, Any]) -> Way | None:
    return _level(json.dumps(params, sort_keys=True)).solve()


def _attempt(level: int, rng: random.Random) -> dict[str, Any] | None:
    side, knots, lines, out, fewest, most = _LEVELS[level]
    places = rng.sample(range(side**2), knots)
    edges = _drawn(places, side, lines, rng)
    if edges is None:
        return None
    moving = rng.sample(range(knots), out)
    free = [dot for dot in range(side**2) if dot not in places] + [places[knot] for knot in moving]
    for knot, dot in zip(moving, rng.sample(free, out), strict=True):
        places[knot] = dot
    params = {
        "side": side,
        "knots": [[dot % side, dot // side] for dot in places],
        "edges": edges,
        "names": rng.sample(NAMES, knots),
    }
    made = Level(params)
    if made.crossings(made.start) < 2:
        return None
    way = made.solve()
    return params if way and fewest <= len(way) <= most else None


def _drawn(places: list[int], side: int, lines: int, rng: random.Random) -> list[list[int]] | None:
    """Draw lines between knots that do not cross, mostly short, two to five at each knot; None where that fails."""
    table, count = compute_conflicts(side), side**2

    def length(a: int, b: int) -> float:
        across, down = places[a] % side - places[b] % side, places[a] // side - places[b] // side
        return across**2 + down**2 + rng.random() * side

    pairs = [(a, b) for b in range(len(places)) for a in range(b)]
    drawn: list[tuple[int, int]] = []
    degree = [0] * len(places)
    for a, b in sorted(pairs, key=lambda pair: length(*pair)):
        line = places[a] * count + places[b]
        if max(degree[a], degree[b]) == 5 or any(table[line, places[c] * count + places[d]] for c, d in drawn):
            continue
        drawn.append((a, b))
        degree[a] += 1
        degree[b] += 1
    extra = len(drawn) - lines
    for pair in rng.sample(drawn, len(drawn)):  # remove lines beyond the wanted number
        if extra > 0 and degree[pair[0]] > 2 and degree[pair[1]] > 2:
            drawn.remove(pair)
            degree[pair[0]] -= 1
            degree[pair[1]] -= 1
            extra -= 1
    fits = extra == 0 and min(degree) >= 2 and _connected(drawn, len(places))
    return [list(pair) for pair in sorted(drawn)] if fits else None


def _connected(edges: list[tuple[int, int]], knots: int) -> bool:
    found = [0]
    for knot in found:
        found += [b if a == knot else a for a, b in edges if knot in (a, b) and (a not in found or b not in found)]
    return len(set(found)) == knots


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Return thought and action of the expert: the next knot to drag."""
    if state["terminated"]:
        return None
    level = _level(json.dumps(dict(task.params), sort_keys=True))
    side = level.side
    now: Places = tuple(y * side + x for x, y in state["knots"])
    move = _plans.move(task.task_id, now, lambda places: _way(level, places))
    if move is None:
        return None
    knot, dot = move
    here, there = (now[knot] % side, now[knot] // side), (dot % side, dot // side)
    what, where = task.params["names"][knot], describe_place(there, side, side)
    if not level.crossings((*now[:knot], dot, *now[knot + 1 :])):
        thought = say(rng, f"I move the {what}, and no line crosses.", f"The {what} is the last one.")
    else:
        thought = say(
            rng,
            f"I move the {what} to the {where}.",
            f"The {what} goes to the {where}.",
            f"The lines of the {what} cross others.",
        )
    return thought, drag(state, (here[0] + 0.5, here[1] + 0.5), (there[0] + 0.5, there[1] + 0.5))


def _way(level: Level, places: Places) -> Way | None:
    """Find a way from any places: by search, else by moving the knots to where the solution of the start ends."""
    way = level.solve(places)
    if way is not None or not (first_way := level.solve()):
        return way
    return level.towards(places, first_way[-1][1])


@functools.lru_cache(maxsize=256)
def _level(params: str) -> Level:
    return Level(json.loads(params))
