"""Define the game `double` (merge and double): columns of numbers that merge into a target number."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action
from flywheel.envs.base import Task
from flywheel.envs.suites.double.rules import NEXT, Level, State
from flywheel.envs.suites.levels import first_winnable
from flywheel.envs.suites.number_words import cardinal, ordinal
from flywheel.envs.suites.search import Plans, Way
from flywheel.envs.suites.steps import click_at, drag, say

# level: (columns, most numbers in one, most in one at the start, largest exponent of 2 of the coming numbers, exponent
# of the target, fewest moves, most moves, whether greedy play must not win)
_LEVELS = {
    1: (3, 4, 2, 3, 5, 3, 4, False),
    2: (3, 4, 2, 3, 6, 5, 6, False),
    3: (4, 4, 3, 4, 7, 8, 12, False),
    4: (3, 4, 2, 3, 7, 14, 26, True),
    5: (4, 4, 3, 4, 8, 27, 40, True),
    6: (4, 4, 3, 4, 9, 55, 76, True),
}
_TOP = 1.5  # units above the columns
_plans = Plans()


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Draw columns and coming numbers from which the target can be made in the level's number of moves."""
    return first_winnable(lambda: _attempt(level, rng), f"double level {level}")


def solve(params: Mapping[str, Any]) -> Way | None:
    return _level(json.dumps(params, sort_keys=True)).solve()


def _attempt(level: int, rng: random.Random) -> dict[str, Any] | None:
    count, high, filled, largest, target, fewest, most, thought = _LEVELS[level]
    # At the start no number lies on a smaller one.
    columns = [
        sorted({2 ** rng.randint(1, largest + 1) for _ in range(rng.randint(1, filled))}, reverse=True)
        for _ in range(count)
    ]
    coming = [2 ** rng.randint(1, largest) for _ in range(most + most // 4 + 2)]
    params = {"columns": columns, "coming": coming, "high": high, "target": 2**target}
    made = Level(params)
    if thought:
        greedy = made.solve(widths=(1,))
        if greedy is not None and len(greedy) <= most:
            return None
    way = made.solve(widths=(10,))
    return params if way and fewest <= len(way) <= most else None


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Return thought and action of the expert: the next drop or join of a way to the target."""
    if state["terminated"]:
        return None
    level = _level(json.dumps(dict(task.params), sort_keys=True))
    now = State(tuple(map(tuple, state["columns"])), state["used"])
    move = _plans.move(task.task_id, now, level.solve)
    if move is None:
        return None
    one, to = move
    left = (state["frame"]["cols"] - len(now.columns)) / 2
    before, after = now.columns[to], dict(level.moves(now))[move].columns[to]
    column, made = f"the {ordinal(to + 1)} column", _word(after[-1])
    if one != NEXT:
        number = _word(now.columns[one][-1])
        spots = [
            (left + place + 0.5, _TOP + task.params["high"] + 0.5 - len(now.columns[place])) for place in (one, to)
        ]
        said = say(rng, f"I drag {number} onto {number}.", f"These two make {made}.", f"I make {made} in {column}.")
        return said, drag(state, *spots)
    number, action = _word(level.next(now) or 0), click_at(state, left + to + 0.5, _TOP + task.params["high"] / 2)
    if not before:
        return say(rng, f"I drop the {number} on {column}.", f"{column.capitalize()} is empty."), action
    if len(after) <= len(before):
        return say(rng, f"In {column} I get {made}.", f"With the {number} I make {made}."), action
    return say(rng, f"I drop the {number} on {column}.", f"I keep the {number} in {column}."), action


def _word(number: int) -> str:
    """Spell a number below ten thousand in short: one twenty eight, ten twenty four."""
    return f"{_word(number // 100)} {_word(number % 100)}" if number >= 100 else cardinal(number)


@functools.lru_cache(maxsize=256)
def _level(params: str) -> Level:
    return Level(json.loads(params))
