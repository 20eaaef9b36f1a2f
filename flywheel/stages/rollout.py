"""rollout: the newest model acts in real environments, several samples a task (rejection sampling, section 2.3)."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from flywheel.environments.env import Task
from flywheel.environments.router import Environments
from flywheel.policy.protocol import Policy
from flywheel.rollout.players import Players, open_players
from flywheel.rollout.pool import RolloutStats, rollout
from flywheel.stages import inputs, shards
from flywheel.stages.base import BROWSERS, Context, Stage, StageResult
from flywheel.store import metrics, partitions
from flywheel.store.artifacts import Partition, Record


def _tasks(ctx: Context) -> list[Task]:
    return list(inputs.tasks(ctx, "synthesize", "train").values())


def _plan(ctx: Context) -> list[str]:
    count = -(-len(_tasks(ctx)) // ctx.settings.rollout.tasks_per_shard)
    return [f"rollout-{number:03d}" for number in range(count)]


def _players(ctx: Context) -> AbstractContextManager[Players]:
    """The model and the environments: they take longer to open than a short shard to play."""
    return open_players(inputs.newest_folder(ctx), _tasks(ctx), ctx.settings, ctx.ws.root)


def _work(ctx: Context, shard: str, folder: Path) -> dict[str, Any]:
    size = ctx.settings.rollout.tasks_per_shard
    first = int(shard.rpartition("-")[2]) * size
    return ctx.shared.run(
        lambda policy, environments: _act(ctx, policy, environments, _tasks(ctx)[first : first + size], shard, folder)
    )


async def _act(
    ctx: Context, policy: Policy, environments: Environments, tasks: list[Task], shard: str, folder: Path
) -> dict[str, Any]:
    settings, done, stats = ctx.settings, 0, RolloutStats()
    total = len(tasks) * settings.rollout.samples

    def count(episode) -> None:
        nonlocal done
        done += 1
        ctx.report_part(f"{shard}: {done} of {total} trajectories", done, total, shard)

    began = time.monotonic()
    episodes = await rollout(
        tasks,
        settings.rollout.samples,
        policy,
        environments,
        iteration=ctx.iteration,
        settings=settings,
        temperature=settings.rollout.temperature,
        on_episode=count,
        run_id=ctx.run_id,
        stats=stats,
    )
    seconds = time.monotonic() - began
    shards.write_episodes(folder, episodes)
    return {"seconds": seconds, **stats.as_dict()}


def _finish(ctx: Context, results: dict[str, tuple[Path, Any]]) -> StageResult:
    trajectories, steps = (shards.gather(ctx, results, table) for table in ("trajectories", "steps"))
    images = shards.gather(ctx, results, "images", key="sha256")
    seconds = sum(result["seconds"] for _, result in results.values())
    errors = partitions.read(ctx.ws, "steps", ctx.iteration, ctx.stage, ["parse_error"])["parse_error"]
    broken = steps.rows - errors.null_count
    statuses = partitions.read(ctx.ws, "trajectories", ctx.iteration, ctx.stage, ["status"])["status"]
    crashed = statuses.to_pylist().count("crashed")
    around = {name: sum(result[name] for _, result in results.values()) for name in RolloutStats().as_dict()}
    figures = (
        metrics.row("trajectories", trajectories.rows),
        metrics.row("steps_per_second", steps.rows / max(seconds, 1e-9), n=steps.rows),
        metrics.share("parse_error_rate", broken, steps.rows),
        *(metrics.row(name, value, n=trajectories.rows) for name, value in around.items()),
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
