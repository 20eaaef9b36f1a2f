"""Score a trajectory's final state by its task's own verifier (scorer `verifier`; UI-TARS-2, section 2.5.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flywheel.config import Settings
from flywheel.envs import base, registry
from flywheel.envs.base import Task, Verifier
from flywheel.rewards.scorer import Need, Score, ScoringInput
from flywheel.utils.errors import DataError

# The task's verifier, found by its back-end (section 2.5.2).


def score_final_state(task: Task, final_state: Mapping[str, Any]) -> float:
    """Score a task's final state by the task's own verifier; return the score, from 0 to 1.

    final_state: as the environment described it at the end of the episode, `info["state"]`. A browser's task without a
    verifier scores 0. Raises BadInput for an unknown verifier or environment, DataError for a state that lacks what the
    verifier reads, and for a score that is not in [0, 1].
    """
    return base.apply_verifier(get_verifier(task), task.verifier, task.params, final_state, task.task_id)


def get_verifier(task: Task) -> Verifier:
    """Find the verifier of `task`; for a browser's task without one, one that scores 0.

    Raises BadInput where there is none of that name, or no such environment.
    """
    return registry.find_backend(task.environment).verifier(task)


# The scorer `verifier`: its verdicts name the verifier that gave the score.


class VerifierScorer:
    """Score by the task's own verifier; see `Scorer`."""

    name = "verifier"
    version = "2"
    needs: frozenset[Need] = frozenset({"final_state"})

    def score(self, case: ScoringInput) -> Score:
        """Score the final state of `case`; no value where the verifier cannot read it.

        It abstains where the task has no verifier. Raises BadInput for a task whose verifier or environment does not
        exist.
        """
        if not case.task.verifier:
            return Score(None, "the task has no verifier", abstained=True)
        try:
            return Score(score_final_state(case.task, case.final_state), rule=case.task.verifier)
        except DataError as error:
            return Score(None, str(error), rule=case.task.verifier)


def open_scorer(settings: Settings) -> VerifierScorer:
    """Open the scorer; it reads nothing of `settings`."""
    return VerifierScorer()
