"""Define the game `lasers`: beams that mirrors lead to targets, with the mirrors moved and turned out of place."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action
from flywheel.envs.base import Task
from flywheel.envs.suites.lasers.rules import LIES, Cell, Level, Mirrors, mirrors, other, reflected
from flywheel.envs.suites.levels import first_winnable
from flywheel.envs.suites.search import Plans, SearchLimit, Way
from flywheel.envs.suites.steps import click_cell, drag, say
from flywheel.envs.suites.turning import describe_place

# level: (side, beams, movable and fixed mirrors, targets, walls, fewest and most actions)
_LEVELS = {
    1: (5, 1, 1, 1, 1, 2, 2, 3),
    2: (6, 1, 2, 0, 2, 3, 3, 5),
    3: (6, 1, 2, 1, 3, 4, 4, 6),
    4: (7, 2, 3, 0, 3, 5, 4, 7),
    5: (8, 2, 3, 2, 4, 6, 5, 8),
    6: (9, 2, 3, 4, 5, 8, 6, 10),
}
_COLOURS = ("red", "blue")
_plans = Plans()


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a board; higher levels have more mirrors to move and turn, and from level 4 on two beams."""
    return first_winnable(lambda: _attempt(level, rng), f"lasers level {level}")


def solve(params: Mapping[str, Any]) -> Way | None:
    made = _level(json.dumps(params, sort_keys=True))
    return made.solve(made.start)


def _attempt(level: int, rng: random.Random) -> dict[str, Any] | None:
    side, beams, movable, fixed, count, walls, fewest, most = _LEVELS[level]
    cells = [(x, y) for y in range(side) for x in range(side)]
    rng.shuffle(cells)
    blocks = [cells.pop() for _ in range(walls)]
    colours = rng.sample(_COLOURS, beams)
    sources = [_source(side, colour, cells, rng) for colour in colours]
    params: dict[str, Any] = {
        "cols": side,
        "rows": side,
        "walls": [list(cell) for cell in sorted(blocks)],
        "sources": sources,
        "targets": [],
        "mirrors": [],
    }
    level_ = Level(params)
    lies = _led(level_, movable + fixed, rng)
    if lies is None:
        return None
    targets = _targets(level_, lies, count, rng)
    if targets is None:
        return None
    params["targets"] = targets
    places = list(lies)
    rng.shuffle(places)
    busy = {*places, *((t["x"], t["y"]) for t in targets)}
    free = [cell for cell in cells if cell not in busy]
    if len(free) < movable:
        return None
    for number, cell in enumerate(places):
        moved = number < movable
        x, y = free.pop() if moved else cell
        lie = rng.choice(LIES) if moved else other(lies[cell])
        params["mirrors"].append({"x": x, "y": y, "lie": lie, "fixed": not moved})
    rng.shuffle(params["mirrors"])
    made = Level(params)
    if 2 * len(made.hit(made.start)) > count or (count == 1 and made.hit(made.start)):
        return None
    way = made.solve(made.start, most, limit=3000)
    if not way or not fewest <= len(way) or not any(move[0] == "move" for move, _ in way):
        return None
    return params


def _source(side: int, colour: str, cells: list[Cell], rng: random.Random) -> dict[str, Any]:
    """Draw a laser at the rim that shines inward, and remove its cell from `cells`."""
    rim = {
        "right": lambda c: c[0] == 0,
        "left": lambda c: c[0] == side - 1,
        "down": lambda c: c[1] == 0,
        "up": lambda c: c[1] == side - 1,
    }
    way = rng.choice(list(rim))
    x, y = next(cell for cell in cells if rim[way](cell))
    cells.remove((x, y))
    return {"x": x, "y": y, "way": way, "colour": colour}


def _led(level: Level, count: int, rng: random.Random) -> dict[Cell, str] | None:
    """Place `count` mirrors, each where a beam goes; return orientations by cell, or None where a beam has no room."""
    lies: dict[Cell, str] = {}
    crossed: set[Cell] = set()  # cells that a beam crosses on its way to a mirror stay free
    heads = [(cell, step) for cell, step, _ in level.sources]
    for number in range(count):
        which = number % len(heads)
        cell, step = heads[which]
        ahead: list[Cell] = []
        while True:
            cell = cell[0] + step[0], cell[1] + step[1]
            if not level.inside(cell) or cell in level.stops or cell in lies:
                break
            ahead.append(cell)
        room = [index for index, cell in enumerate(ahead) if cell not in crossed]
        if not room:
            return None
        index = rng.choice(room)
        lie = rng.choice(LIES)
        lies[ahead[index]] = lie
        crossed |= set(ahead[: index + 1])
        heads[which] = ahead[index], reflected(step, lie)
    return lies


def _targets(level: Level, lies: Mapping[Cell, str], count: int, rng: random.Random) -> list[dict[str, Any]] | None:
    """Draw targets on the beams, at least one behind the last mirror of each; None where there is no room."""
    found: list[tuple[Cell, str]] = []
    rest: list[tuple[Cell, str]] = []
    for number, (_, _, colour) in enumerate(level.sources):
        beam = level.beam(number, lies)
        last = max((index for index, cell in enumerate(beam) if cell in lies), default=None)
        if last is None or last + 1 == len(beam):
            return None
        behind = [cell for cell in beam[last + 1 :] if cell not in lies]
        if not behind:
            return None
        found.append((rng.choice(behind), colour))
        rest += [(cell, colour) for cell in beam if cell not in lies]
    rng.shuffle(rest)
    for cell, colour in rest:
        if len(found) < count and all(cell != other_cell for other_cell, _ in found):
            found.append((cell, colour))
    if len(found) != count or len({cell for cell, _ in found}) < count:
        return None
    return [{"x": x, "y": y, "colour": colour} for (x, y), colour in found]


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Return thought and action of the expert: the next click on a mirror, or drag of one."""
    if state["terminated"]:
        return None
    level = _level(json.dumps(dict(task.params), sort_keys=True))
    now = mirrors(state)
    move = _plans.move(task.task_id, now, lambda start: _way(level, start))
    if move is None:
        return None
    mirror = now[move[1]]
    side = describe_place(mirror.cell, level.cols, level.rows)
    more = len(level.hit(level.after(now, move))) > len(level.hit(now))
    if move[0] == "turn":
        thought = say(rng, f"I turn the {side} mirror.", f"The mirror on the {side} has to turn.")
        if more:
            thought = say(rng, "I turn it, and the beam hits.", "Turned, it leads to the target.")
        return thought, click_cell(state, mirror.x, mirror.y)
    x, y = move[2]
    there = describe_place((x, y), level.cols, level.rows)
    if more:
        thought = say(rng, "Here the mirror leads to the target.", f"A mirror on the {there} hits the target.")
    else:
        thought = say(rng, f"I move the {side} mirror to the {there}.", "I move this mirror to the beam.")
    return thought, drag(state, (mirror.x + 0.5, mirror.y + 0.5), (x + 0.5, y + 0.5))


def _way(level: Level, start: Mirrors) -> Way | None:
    """Find a way from any position of the mirrors; None where the search finds none."""
    try:
        return level.solve(start)
    except SearchLimit:
        return None


@functools.lru_cache(maxsize=256)
def _level(params: str) -> Level:
    return Level(json.loads(params))
