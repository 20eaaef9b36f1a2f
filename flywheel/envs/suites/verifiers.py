"""Find the verifier of a browser suite's task: `state:score`, a game's own score, or a function of the suite's Python.

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
    """Score the end `state` of a task by its verifier, in [0, 1].

    Raises BadInput for an unknown verifier, DataError for a state that the verifier cannot read.
    """
    return base.apply_verifier(find_verifier(task), task.verifier, task.params, state, task.task_id)


def find_verifier(task: Task) -> Verifier:
    """Return the verifier that the task names; one that always scores 0 where it names none.

    Raises BadInput where there is none of that name.
    """
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
    """Return the score that a game's state tells, at most 0.999 until the game is won, and 1 then: a verifier."""
    return 1.0 if state["won"] else min(float(state["score"]), _NOT_WON)
