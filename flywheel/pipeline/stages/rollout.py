"""Play the iteration's tasks with the newest model, several samples each (stage `rollout`: rejection sampling, 2.3)."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from flywheel.envs.base import Task
from flywheel.envs.registry import EnvProvider
from flywheel.pipeline.stage import BROWSERS, Partition, Record, Stage, StageContext, StageResult, write_episode_shard
from flywheel.policy.protocol import PolicyBackend
from flywheel.rollout.episode import RolloutStats, RolloutWorker, open_rollout_worker, run_rollout
from flywheel.store import partitions
from flywheel.store.schema import fraction_metric_row, metric_row


def _tasks(ctx: StageContext) -> list[Task]:
    return list(ctx.read_tasks("synthesize", "train").values())


def _plan(ctx: StageContext) -> list[str]:
    count = -(-len(_tasks(ctx)) // ctx.settings.rollout.tasks_per_shard)
    return [f"rollout-{number:03d}" for number in range(count)]


def _players(ctx: StageContext) -> AbstractContextManager[RolloutWorker]:
    """Open the model and the environments, once per process: that takes longer than playing a short shard."""
    return open_rollout_worker(ctx.newest_model_folder(), _tasks(ctx), ctx.settings, ctx.ws.root)


def _work(ctx: StageContext, shard: str, folder: Path) -> dict[str, Any]:
    size = ctx.settings.rollout.tasks_per_shard
    first = int(shard.rpartition("-")[2]) * size
    return ctx.shared.run(
        lambda policy, environments: _act(ctx, policy, environments, _tasks(ctx)[first : first + size], shard, folder)
    )


async def _act(
    ctx: StageContext, policy: PolicyBackend, environments: EnvProvider, tasks: list[Task], shard: str, folder: Path
) -> dict[str, Any]:
    settings, stats = ctx.settings, RolloutStats()
    total = len(tasks) * settings.rollout.n_rollouts

    began = time.monotonic()
    episodes = await run_rollout(
        tasks,
        settings.rollout.n_rollouts,
        policy,
        environments,
        iteration=ctx.iteration,
        settings=settings,
        temperature=settings.rollout.temperature,
        on_episode=ctx.count_episodes(shard, total, "trajectories"),
        run_id=ctx.run_id,
        stats=stats,
    )
    seconds = time.monotonic() - began
    write_episode_shard(folder, episodes)
    return {"seconds": seconds, **vars(stats)}


def _finish(ctx: StageContext, results: dict[str, tuple[Path, Any]]) -> StageResult:
    trajectories, steps = (ctx.gather_shards(results, table) for table in ("trajectories", "steps"))
    images = ctx.gather_shards(results, "images", "sha256")
    seconds = sum(result["seconds"] for _, result in results.values())
    errors = partitions.read_partition(ctx.ws, "steps", ctx.iteration, ctx.stage, ["parse_error"])["parse_error"]
    broken = steps.rows - errors.null_count
    statuses = partitions.read_partition(ctx.ws, "trajectories", ctx.iteration, ctx.stage, ["status"])["status"]
    crashed = statuses.to_pylist().count("crashed")
    around = {name: sum(result[name] for _, result in results.values()) for name in vars(RolloutStats())}
    figures = (
        metric_row("trajectories", trajectories.rows),
        metric_row("steps_per_second", steps.rows / max(seconds, 1e-9), n=steps.rows),
        fraction_metric_row("parse_error_rate", broken, steps.rows),
        *(metric_row(name, value, n=trajectories.rows) for name, value in around.items()),
    )
    summary = {
        "trajectories": trajectories.rows,
        "steps": steps.rows,
        "screens": images.rows,
        "crashed": crashed,
        "retried": around["retries"],
        "steps/s": f"{steps.rows / max(seconds, 1e-9):.0f}",
    }
    return StageResult((trajectories, steps, images), figures, summary)


STAGE = Stage(
    "rollout",
    reads=(Partition("tasks", "synthesize"), Record("promotion", previous=True)),
    writes=("trajectories", "steps", "images"),
    settings=("policy", "language_model", "sandbox", "rollout", "synthesis"),
    plan=_plan,
    work=_work,
    finish=_finish,
    shares=_players,
    needs=(BROWSERS,),
)
