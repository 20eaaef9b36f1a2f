"""The verifiers of the worlds' tasks: `state:score`, what any game says of itself, or the name of a function of the
world's own Python (`shop_cart` or `world:score`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flywheel.environments.env import Task
from flywheel.errors import BadInput
from flywheel.reward import verifier
from flywheel.reward.verifier import Verifier
from flywheel.worlds import catalogue

_NOT_WON = 0.999  # the most that a game scores before it is won


def score(task: Task, state: Mapping[str, Any]) -> float:
    """The score of a state. Raises as `find` and `reward.verifier.apply` do."""
    return verifier.apply(find(task), task.verifier, task.params, state, task.task_id)


def find(task: Task) -> Verifier:
    """The task's verifier. Raises BadInput where there is none of that name."""
    if task.verifier == "state:score":
        return state_score
    found = catalogue.get(task.world).verifier(task.verifier.removeprefix("world:"))
    if found is None:
        raise BadInput(
            f"no verifier is called {task.verifier!r}",
            where=task.task_id,
            fix=f"name a function of worlds/{task.world}/world.py, or state:score",
        )
    return found


def state_score(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """A game's own score; 1 exactly where it is won."""
    return 1.0 if state["won"] else min(float(state["score"]), _NOT_WON)
