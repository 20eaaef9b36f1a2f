"""Find the verifier of a suite's task: `state:score`, a game's own score, or a function of the suite's Python.

A task names such a function as `shop_cart` or `world:score`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flywheel.envs import base
from flywheel.envs.base import Task, Verifier
from flywheel.envs.suites import catalogue
from flywheel.utils.errors import BadInput

_NOT_WON = 0.999  # the most that a game scores before it is won


def score_state(task: Task, state: Mapping[str, Any]) -> float:
    """Score a state, in [0, 1]. Raises BadInput for an unknown verifier, DataError for a state that it cannot read."""
    return base.apply_verifier(find_verifier(task), task.verifier, task.params, state, task.task_id)


def find_verifier(task: Task) -> Verifier:
    """Return the task's verifier; one that scores 0 where it has none. Raises BadInput where there is none of that
    name."""
    if not task.verifier:
        return base.score_nothing
    if task.verifier == "state:score":
        return game_score
    world = catalogue.get_task_world(task)
    found = world.verifier(task.verifier.removeprefix("world:"))
    if found is None:
        raise BadInput(
            f"no verifier is called {task.verifier!r}",
            where=task.task_id,
            fix=f"name a function of flywheel/envs/suites/{world.folder.name}/world.py, or state:score",
        )
    return found


def game_score(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Return a game's own score; 1 exactly where it is won."""
    return 1.0 if state["won"] else min(float(state["score"]), _NOT_WON)
