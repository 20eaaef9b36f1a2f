"""A model plays tasks for the record: its episodes, what the verifiers say of them, and its results, staged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flywheel.evaluation.evaluate import EvalResult, evaluate
from flywheel.policy import open_policy
from flywheel.rollout.pool import Tally
from flywheel.sandbox.env import Task
from flywheel.stages import staged
from flywheel.stages.base import Context


async def play(
    ctx: Context, name: str, model: Path, tasks: Sequence[Task], sandbox: Any, folder: Path
) -> dict[str, Any]:
    """Play evaluation.samples episodes of each task and stage them in the folder; the results, and what went on around.

    name: of the player, for those who watch.
    """
    done, tally = 0, Tally()

    def count(episode) -> None:
        nonlocal done
        done += 1
        ctx.report(f"{name}: {done} of {len(tasks) * ctx.settings.evaluation.samples} episodes")

    policy = open_policy(model, ctx.settings.policy)
    try:
        results, episodes = await evaluate(
            policy, tasks, sandbox, iteration=ctx.iteration, settings=ctx.settings, on_episode=count,
            run_id=ctx.run_id, tally=tally,
        )  # fmt: skip
    finally:
        await policy.close()
    staged.put_episodes(folder, episodes)
    by_id = {task.task_id: task for task in tasks}
    pairs = zip(results, episodes, strict=True)
    staged.put(folder, "scores", [_score(by_id[result.task_id], result, episode.id) for result, episode in pairs])
    return {"results": [vars(result) for result in results], "around": tally.as_dict()}


def _score(task: Task, result: EvalResult, trajectory: str) -> dict[str, Any]:
    return {
        "trajectory_id": trajectory, "scorer": f"verifier:{task.verifier}", "score": result.score,
        "threshold": task.threshold, "v": result.v, "detail": "",
    }  # fmt: skip
