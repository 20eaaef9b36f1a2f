"""Play the iteration's tasks with the newest model, several times each (stage `rollout`; UI-TARS-2, section 2.3)."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from flywheel.envs.base import Task
from flywheel.envs.registry import EnvProvider
from flywheel.pipeline.stage import BROWSERS, Partition, Record, Stage, StageContext, StageResult, write_episode_shard
from flywheel.policy.protocol import PolicyBackend
from flywheel.rollout.corrections import SOURCE as CORRECTION_SOURCE
from flywheel.rollout.corrections import choose_failures, correct_failures
from flywheel.rollout.episode import RolloutStats, RolloutWorker, open_rollout_worker, run_rollout
from flywheel.rollout.solvers import load_solvers
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
    result = {"seconds": seconds, **vars(stats)}
    if settings.rollout.corrections_per_task:
        by_id = {task.task_id: task for task in tasks}
        solvers = load_solvers(tasks, settings, ctx.ws.root)
        failed = choose_failures(by_id, episodes, settings.rollout.corrections_per_task, solvers)
        ctx.report(f"{shard}: {len(failed)} failed trajectories are corrected by solvers")
        seed = ctx.seed("corrections")
        corrected, counts = await correct_failures(
            by_id, failed, environments, settings, solvers, iteration=ctx.iteration, seed=seed
        )
        episodes, result = [*episodes, *corrected], {**result, "corrections": vars(counts)}
    write_episode_shard(folder, episodes)
    return result


def _finish(ctx: StageContext, results: dict[str, tuple[Path, Any]]) -> StageResult:
    trajectories, steps = (ctx.gather_shards(results, table) for table in ("trajectories", "steps"))
    images = ctx.gather_shards(results, "images", "sha256")
    seconds = sum(result["seconds"] for _, result in results.values())
    names = ["trajectory_id", "status", "source"]
    ended = partitions.read_partition(ctx.ws, "trajectories", ctx.iteration, ctx.stage, names)
    crashed = ended["status"].to_pylist().count("crashed")
    corrections = ended.filter(pc.equal(ended["source"], CORRECTION_SOURCE))["trajectory_id"].combine_chunks()
    corrected = len(corrections)
    rows = partitions.read_partition(ctx.ws, "steps", ctx.iteration, ctx.stage, ["trajectory_id", "parse_error"])
    own = rows.filter(pc.invert(pc.is_in(rows["trajectory_id"], corrections)))  # the model's alone
    played, broken = own.num_rows, own.num_rows - own["parse_error"].null_count
    around = {name: sum(result[name] for _, result in results.values()) for name in vars(RolloutStats())}
    figures = (
        metric_row("trajectories", trajectories.rows - corrected),
        metric_row("steps_per_second", played / max(seconds, 1e-9), n=played),
        fraction_metric_row("parse_error_rate", broken, played),
        *(metric_row(name, value, n=trajectories.rows - corrected) for name, value in around.items()),
        *_correction_metrics(results),
    )
    summary = {
        "trajectories": trajectories.rows - corrected,
        "steps": played,
        "screens": images.rows,
        "crashed": crashed,
        "retried": around["retries"],
        "steps/s": f"{played / max(seconds, 1e-9):.0f}",
    }
    if ctx.settings.rollout.corrections_per_task:
        summary["corrected by solvers"] = corrected
        without = Counter()
        for _, result in results.values():
            without.update(result["corrections"]["without"])
        if without:
            summary["not corrected"] = ", ".join(f"{n}: {why}" for why, n in sorted(without.items()))
    return StageResult((trajectories, steps, images), figures, summary)


def _correction_metrics(results: dict[str, tuple[Path, Any]]) -> list[dict[str, Any]]:
    """Return rows of `metrics` of what corrections took and brought; none where nothing was to be corrected."""
    counted = [result["corrections"] for _, result in results.values() if "corrections" in result]
    if not counted:
        return []
    total = {name: sum(one[name] for one in counted) for name in ("tried", "corrected", "solver_calls", "env_steps")}
    return [metric_row(f"corrections_{name}", value, n=total["tried"]) for name, value in total.items()]


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
