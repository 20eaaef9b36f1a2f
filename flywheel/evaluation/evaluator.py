"""Evaluate a policy on held-out tasks, with the code that plays all rollouts, greedy by default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flywheel.config import Settings
from flywheel.envs.base import Task, Verdict, decide_verdict
from flywheel.envs.registry import EnvProvider
from flywheel.evaluation.gate import EvalResult
from flywheel.policy.protocol import PolicyBackend
from flywheel.rewards.scorer import PERSON, ScorerSet, ScoringInput
from flywheel.rollout.episode import Episode, run_rollout
from flywheel.utils.errors import DataError


@dataclass(frozen=True)
class JudgedEpisode:
    """Hold an `episode` of `task` and its verdicts, one a scorer; a crashed one has one verdict without a score."""

    task: Task
    episode: Episode
    verdicts: tuple[Verdict, ...]

    @property
    def result(self) -> EvalResult:
        """Return the episode's result for the gate.

        An episode that crashed in every try, or on which all scorers abstain, is a failure: both models must be
        measured on the same tasks.
        """
        verdict = decide_verdict(self.verdicts)
        score = 0.0 if verdict.score is None else verdict.score
        return EvalResult(self.task.task_id, self.task.domain, score, bool(verdict.v))


async def evaluate_policy(
    policy: PolicyBackend, tasks: Sequence[Task], environments: EnvProvider, *, settings: Settings, **playing: Any
) -> list[JudgedEpisode]:
    """Play `evaluation.n_trials` episodes of each task at `evaluation.temperature`, and judge them.

    policy: the model to be measured. tasks: held-out or fresh ones. environments: lends an environment for each
    episode. playing: further arguments of `run_rollout`: `iteration`, and where wanted `run_id`, `on_episode`, `stats`.
    Returns the judged episodes, sorted by trajectory_id, which are for the report and never enter training; nothing is
    stored. Raises DataError where a scorer failed that a verdict depends on, or for a state that a verifier cannot
    read, PolicyError where the policy fails, BadInput for settings that name a scorer or an environment that is not
    there or that one of them refuses, and where the policy cannot be asked; ModelError for an outcome reward model
    whose weights are missing; what `on_episode` raises.
    """
    panel, chosen = ScorerSet(settings), settings.evaluation
    temperature = chosen.temperature
    episodes = await run_rollout(
        tasks, chosen.n_trials, policy, environments, settings=settings, temperature=temperature, **playing
    )
    by_id = {task.task_id: task for task in tasks}
    return [judge_episode(by_id[episode.trajectory.task_id], episode, panel) for episode in episodes]


def judge_episode(task: Task, episode: Episode, panel: ScorerSet) -> JudgedEpisode:
    """Score one finished episode of `task` by the scorers of its domain in `panel`.

    Returns it with a verdict of each scorer that was asked; where all abstain, or a person is to tell, the one that
    counts (`decide_verdict`) leaves open whether the task was solved: its `v` is None. An episode without a final state
    is not scored, and has one verdict without a score. Raises DataError where the deciding scorer failed, since a model
    is not measured by what nobody judged; BadInput as `ScorerSet` and `ScorerSet.score_trajectory`, and ModelError for
    an outcome reward model whose weights are missing.
    """
    trajectory = episode.trajectory
    if trajectory.final_state in (None, "null"):
        unseen = Verdict(None, task.threshold, detail=f"{trajectory.status}: {trajectory.error or 'no final state'}")
        return JudgedEpisode(task, episode, (unseen,))
    verdicts = panel.score_trajectory(ScoringInput(task, trajectory, episode.steps, episode.images))
    decided = decide_verdict(verdicts)
    if decided.v is None and not decided.abstained and decided.scorer != PERSON:
        raise DataError(
            f"no verdict by {decided.scorer}: {decided.detail}",
            where=f"trajectory {episode.id}",
            fix="mend what the scorer needs, or take it out of routing.scorers",
        )
    return JudgedEpisode(task, episode, verdicts)
