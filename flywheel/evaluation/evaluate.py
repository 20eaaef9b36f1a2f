"""Evaluate a checkpoint on held-out tasks: the same rollout as everywhere, greedy by default."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flywheel.evaluation.gate import EvalResult
from flywheel.policy.protocol import Policy
from flywheel.reward.verifiers import score
from flywheel.rollout.episode import Episode
from flywheel.rollout.pool import Sandbox, Tally, rollout
from flywheel.rollout.scoring import final_state
from flywheel.sandbox.env import Task
from flywheel.settings import Settings

__all__ = ["EvalResult", "evaluate", "grade"]


async def evaluate(
    policy: Policy,
    tasks: Sequence[Task],
    sandbox: Sandbox,
    *,
    iteration: int,
    settings: Settings,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    run_id: str = "",
    tally: Tally | None = None,
) -> tuple[list[EvalResult], list[Episode]]:
    """evaluation.samples episodes of each task at evaluation.temperature; results and episodes, in the same order.

    An episode whose environment crashed in every try counts as a failure here: both models of a comparison must be
    measured on the same tasks. The episodes are for the report; they never enter training. `tally` is added to.
    """
    episodes = await rollout(
        tasks, settings.evaluation.samples, policy, sandbox, iteration=iteration, settings=settings,
        temperature=settings.evaluation.temperature, on_episode=on_episode, run_id=run_id,
        tally=tally,
    )  # fmt: skip
    by_id = {task.task_id: task for task in tasks}
    return [grade(by_id[episode.trajectory["task_id"]], episode) for episode in episodes], episodes


def grade(task: Task, episode: Episode) -> EvalResult:
    """The verifier's score of one episode."""
    state = final_state(episode)
    value = score(task, state) if state is not None else 0.0
    return EvalResult(task.task_id, task.domain, value, value >= task.threshold)
