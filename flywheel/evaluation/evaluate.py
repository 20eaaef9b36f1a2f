"""Evaluate a checkpoint on held-out tasks: the same rollout as everywhere, greedy by default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from flywheel.evaluation.gate import EvalResult
from flywheel.policy.embedded import EmbeddedPolicy
from flywheel.reward.verifiers import score
from flywheel.rollout.episode import Episode
from flywheel.rollout.pool import Sandbox, rollout
from flywheel.rollout.scoring import final_state
from flywheel.sandbox.env import Task
from flywheel.settings import Settings

__all__ = ["EvalResult", "evaluate", "grade"]


async def evaluate(
    model_folder: Path,
    tasks: Sequence[Task],
    sandbox: Sandbox,
    *,
    iteration: int,
    settings: Settings,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    run_id: str = "",
) -> list[EvalResult]:
    """evaluation.samples episodes of each task at evaluation.temperature by the checkpoint, in order of trajectory_id.

    An episode whose environment crashed in every try counts as a failure here: both models of a comparison must be
    measured on the same tasks. Episodes are for the report (`on_episode`); they never enter training.
    """
    policy = EmbeddedPolicy(model_folder, settings.policy)
    try:
        episodes = await rollout(
            tasks, settings.evaluation.samples, policy, sandbox, iteration=iteration, settings=settings,
            temperature=settings.evaluation.temperature, on_episode=on_episode, run_id=run_id,
        )  # fmt: skip
    finally:
        await policy.close()
    by_id = {task.task_id: task for task in tasks}
    return [grade(by_id[episode.trajectory["task_id"]], episode) for episode in episodes]


def grade(task: Task, episode: Episode) -> EvalResult:
    """The verifier's score of one episode."""
    state = final_state(episode)
    value = score(task, state) if state is not None else 0.0
    return EvalResult(task.task_id, task.domain, value, value >= task.threshold)
