"""The verifier of any task, as the kind of its environment knows it (section 2.5.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flywheel.environments import kind
from flywheel.environments.env import Task
from flywheel.reward import verifier
from flywheel.reward.verifier import Verifier


def score(task: Task, final_state: Mapping[str, Any]) -> float:
    """The score of a final state by the task's verifier, 0 to 1.

    Raises BadInput for an unknown verifier, DataError for a state that lacks what the verifier reads.
    """
    return verifier.apply(find(task), task.verifier, task.params, final_state, task.task_id)


def find(task: Task) -> Verifier:
    """The task's verifier. Raises BadInput where there is none of that name."""
    return kind.find(task.environment).verifier(task)
