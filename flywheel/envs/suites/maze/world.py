"""Define the game `maze` (light maze): mazes with doors, keys, and gates that a switch flips."""

from __future__ import annotations

import functools
import json
import random
from collections import deque
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action
from flywheel.envs.base import Task
from flywheel.envs.suites.levels import first_winnable
from flywheel.envs.suites.maze.rules import Edge, Level, State, edge
from flywheel.envs.suites.search import Plans, Way
from flywheel.envs.suites.steps import press, say
from flywheel.envs.suites.turning import DOWN, OPPOSITE, RIGHT, STEPS, Cell

# level: (side, doors, gates, share of dead ends that are opened, fewest and most keys to press)
_LEVELS = {
    1: (4, 1, 0, 0.0, 6, 7),
    2: (5, 1, 0, 0.0, 7, 9),
    3: (6, 1, 0, 0.2, 10, 16),
    4: (7, 2, 0, 0.3, 15, 24),
    5: (8, 2, 3, 0.4, 20, 34),
    6: (9, 3, 5, 0.4, 28, 47),
}
_COLOURS = ("blue", "red", "purple")
Passages = dict[Cell, int]
_plans = Plans()


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a maze; higher levels are larger, with more doors, and from level 5 on gates that a switch flips."""
    return first_winnable(lambda: _attempt(level, rng), f"maze level {level}")


def solve(params: Mapping[str, Any]) -> Way | None:
    return _level(json.dumps(params, sort_keys=True)).solve()


def _attempt(level: int, rng: random.Random) -> dict[str, Any] | None:
    side, doors, gates, opened, fewest, most = _LEVELS[level]
    passages = _maze(side, opened, rng)
    start = rng.choice(list(passages))
    path = _path(passages, start)
    cuts = sorted(rng.sample(range(1, len(path) - 1), doors)) if len(path) > doors + 2 else []
    if not cuts:
        return None
    shut = [_between(path[cut], path[cut + 1]) for cut in cuts]
    keys: list[Cell] = []
    before: dict[Cell, None] = {}
    for number in range(doors):
        room = _reached(passages, start, shut[number:])
        if path[-1] in room:
            return None  # a way leads round the door
        free = [cell for cell in room if cell not in keys and cell not in path]
        # a key lies behind the previous door, so that one door leads to the next
        free = [cell for cell in free if cell not in before] or free
        if not free:
            return None
        keys.append(rng.choice(free))
        before = room
    switches: list[Cell] = []
    flips: list[list[int]] = []
    if gates:
        edges = [(x, y, way) for (x, y), piece in passages.items() for way in (RIGHT, DOWN) if piece & way]
        edges = [one for one in edges if one not in shut]
        flips = [[*one, int(number == 0 or rng.random() < 0.5)] for number, one in enumerate(rng.sample(edges, gates))]
        switches = [rng.choice([cell for cell in passages if cell not in (start, path[-1], *keys)])]
    params = {
        "cols": side,
        "rows": side,
        "passages": [[passages[x, y] for x in range(side)] for y in range(side)],
        "light": list(start),
        "star": list(path[-1]),
        "keys": [list(key) for key in keys],
        "doors": [list(door) for door in shut],
        "gates": flips,
        "switches": [list(cell) for cell in switches],
    }
    made = Level(params)
    way = made.solve()
    if not way or not fewest <= len(way) <= most or len(way[-1][1].taken) < doors:
        return None
    if gates and (not any(after.flipped for _, after in way) or not made.never_stuck()):
        return None
    return params


def _maze(side: int, opened: float, rng: random.Random) -> Passages:
    """Dig a maze of `side` x `side` cells, and give the share `opened` of its dead ends a second way out."""
    cells = [(x, y) for y in range(side) for x in range(side)]
    passages: Passages = dict.fromkeys(cells, 0)

    def dig(cell: Cell, way: int) -> Cell:
        there = cell[0] + STEPS[way][0], cell[1] + STEPS[way][1]
        passages[cell] |= way
        passages[there] |= OPPOSITE[way]
        return there

    def ways(cell: Cell) -> list[int]:
        return [way for way, (dx, dy) in STEPS.items() if (cell[0] + dx, cell[1] + dy) in passages]

    stack = [rng.choice(cells)]
    while stack:
        at = stack[-1] if rng.random() < 0.8 else rng.choice(stack)
        fresh = [way for way in ways(at) if not passages[at[0] + STEPS[way][0], at[1] + STEPS[way][1]]]
        if fresh:
            stack.append(dig(at, rng.choice(fresh)))
        else:
            stack.remove(at)
    for cell in cells:
        if passages[cell] in STEPS and rng.random() < opened:
            closed = [way for way in ways(cell) if not passages[cell] & way]
            if closed:
                dig(cell, rng.choice(closed))
    return passages


def _path(passages: Passages, start: Cell) -> list[Cell]:
    """Return the way from `start` to the cell farthest from it."""
    came: dict[Cell, Cell | None] = {start: None}
    queue = deque([start])
    last = start
    while queue:
        last = queue.popleft()
        for there in _beside(passages, last):
            if there not in came:
                came[there] = last
                queue.append(there)
    path: list[Cell] = []
    step: Cell | None = last
    while step is not None:
        path.append(step)
        step = came[step]
    return path[::-1]


def _reached(passages: Passages, start: Cell, shut: list[Edge]) -> dict[Cell, None]:
    """Return the cells that can be reached with these doors shut, in the order in which they are found."""
    open_ = dict(passages)
    for x, y, way in shut:
        open_[x, y] &= ~way
        open_[x + STEPS[way][0], y + STEPS[way][1]] &= ~OPPOSITE[way]
    found = {start: None}
    queue = [start]
    for x, y in queue:
        ways = open_[x, y]
        for way, (dx, dy) in STEPS.items():
            if ways & way and (there := (x + dx, y + dy)) not in found:
                found[there] = None
                queue.append(there)
    return found


def _beside(passages: Passages, cell: Cell) -> list[Cell]:
    return [(cell[0] + dx, cell[1] + dy) for way, (dx, dy) in STEPS.items() if passages[cell] & way]


def _between(cell: Cell, there: Cell) -> Edge:
    return edge(cell, next(way for way, step in STEPS.items() if step == (there[0] - cell[0], there[1] - cell[1])))


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Return thought and action of the expert: the next key of a way to the star."""
    if state["terminated"]:
        return None
    level = _level(json.dumps(dict(task.params), sort_keys=True))
    now = State(tuple(state["light"]), frozenset(state["taken"]), state["flipped"])
    key = _plans.move(task.task_id, now, level.solve)
    if key is None:
        return None
    after = dict(level.moves(now))[key]
    if level.won(after):
        return say(rng, f"I go {key} to the star.", f"The star is {key}.", "Now to the star."), press(key)
    if after.taken > now.taken:
        (number,) = after.taken - now.taken
        colour = _COLOURS[number]
        return say(rng, f"I take the {colour} key.", f"The {colour} key opens the {colour} door."), press(key)
    if after.flipped != now.flipped:
        return say(rng, "I go over the switch.", "The switch flips the gates."), press(key)
    return say(rng, f"I go {key}.", f"I press {key}.", f"The light goes {key}."), press(key)


@functools.lru_cache(maxsize=256)
def _level(params: str) -> Level:
    return Level(json.loads(params))
