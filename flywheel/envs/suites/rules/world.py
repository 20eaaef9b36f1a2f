"""Define what is common to all games of rules: their expert and their verifier, from a task's params alone.

A process needs no game's file to play a task of it, so an environment on another machine does not either.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action
from flywheel.envs.base import Task
from flywheel.envs.suites.rules.engine import KEYS, RuleLevel
from flywheel.envs.suites.search import Plans, Way
from flywheel.envs.suites.steps import press, say

_plans = Plans()


def solve(params: Mapping[str, Any]) -> Way | None:
    return RuleLevel(params).solve()


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Return thought and action of the expert: the next key of a shortest way, or R in a dead end."""
    if state["terminated"]:
        return None
    level, cells = _level(json.dumps(dict(task.params), sort_keys=True)), tuple(state["cells"])
    direction = _plans.move(task.task_id, cells, level.solve)
    if direction is None:
        if cells == level.start:
            return None
        return say(rng, "This is a dead end, I begin again.", "I am stuck, I start over."), press("r")
    key = KEYS[direction]
    return say(rng, f"I go {key}.", f"I press {key}.", f"The next move is {key}."), press(key)


def score(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Verify a state: its keys are played again by the rules, and must lead to its board; 1 exactly where it is won."""
    level = _level(json.dumps(dict(params), sort_keys=True))
    cells = tuple(state["cells"])
    return level.score(cells) if level.play(state["keys"]) == cells else 0.0


@functools.lru_cache(maxsize=256)
def _level(params: str) -> RuleLevel:
    return RuleLevel(json.loads(params))
