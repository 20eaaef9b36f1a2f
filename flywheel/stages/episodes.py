"""A model plays tasks for the record: its episodes, what the scorers say of them, and its results, staged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flywheel.environments.env import Task
from flywheel.environments.router import Environments
from flywheel.evaluation.evaluate import evaluate
from flywheel.policy import open_policy
from flywheel.rollout.pool import RolloutStats
from flywheel.stages import shards
from flywheel.stages.base import Context


async def play(
    ctx: Context, name: str, model: Path, tasks: Sequence[Task], environments: Environments, folder: Path
) -> dict[str, Any]:
    """Play evaluation.samples episodes of each task and stage them in the folder; the results, and what went on around.

    name: of the player, for those who watch.
    """
    done, total, stats = 0, len(tasks) * ctx.settings.evaluation.samples, RolloutStats()

    def count(episode) -> None:
        nonlocal done
        done += 1
        ctx.report_part(f"{name}: {done} of {total} episodes", done, total, name)

    policy = open_policy(model, ctx.settings.policy)
    try:
        judged = await evaluate(
            policy,
            tasks,
            environments,
            iteration=ctx.iteration,
            settings=ctx.settings,
            on_episode=count,
            run_id=ctx.run_id,
            stats=stats,
        )
    finally:
        await policy.close()
    shards.write_episodes(folder, [one.episode for one in judged])
    shards.write_shard(folder, "scores", [verdict.row(one.episode.id) for one in judged for verdict in one.verdicts])
    return {"results": [vars(one.result) for one in judged], "around": stats.as_dict()}
