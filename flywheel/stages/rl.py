"""rl-<domain>: PPO from the SFT checkpoint in one domain's environments: a specialist (sections 2.5.3, 2.5.4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flywheel.environments.env import INTERFACES, Task
from flywheel.environments.router import open_environments
from flywheel.policy.checkpoint import digest
from flywheel.reward.verdict import of_rows
from flywheel.scoring.panel import Panel
from flywheel.stages import inputs, shards
from flywheel.stages.base import BROWSERS, TRAINING, Context, StageResult, single
from flywheel.stages.episode_archive import EpisodeArchive
from flywheel.store import lineage, metrics
from flywheel.store.artifacts import Checkpoint, Partition
from flywheel.training.rl.curriculum import PastOutcomes, in_words

_OF_A_PART = ("success_", "curriculum_level_", "reward_", "explained_variance_")  # a world or an interface at their end
_JUDGED = ["trajectory_id", "score", "threshold"]  # of a score: what V is made of
_TABLES = (("trajectories", "trajectory_id"), ("steps", None), ("images", "sha256"))


def _work(ctx: Context, folder: Path) -> dict[str, Any]:
    from flywheel.training.rl.run import train_rl  # brings torch, which who only asks for the pipeline does not need

    tasks = inputs.tasks(ctx, "synthesize", "train")
    kept = EpisodeArchive(folder, ctx.run_id, ctx.settings.rl.samples)

    def on_metric(metric: Mapping[str, Any]) -> None:
        if "success" in metric:
            done, total = metric["step"], ctx.settings.rl.steps
            ctx.report_part(f"step {done} of {total}, success {metric['success']:.2f}", done, total)

    result = train_rl(
        ctx.ws.model(ctx.iteration, "sft"),
        ctx.ws.model(ctx.iteration, ctx.stage),
        ctx.domain,
        list(tasks.values()),
        settings=ctx.settings,
        iteration=ctx.iteration,
        state_folder=folder,
        prior=tally(ctx, tasks),
        on_metric=on_metric,
        on_episode=kept.add,
        open_environments=partial(open_environments, root=ctx.ws.root),
    )
    kept.stage(folder)
    return vars(result)


def _finish(ctx: Context, folder: Path, result: dict[str, Any]) -> StageResult:
    out, begin = ctx.ws.model(ctx.iteration, ctx.stage), ctx.ws.model(ctx.iteration, "sft")
    rows = lineage.trained(
        ctx.ws.relative(out),
        digest(out),
        parents=[ctx.ws.relative(begin)],
        trajectories=result["trajectories"],
        earlier=dict(enumerate(result["weights"][1:], 1)),
        run_id=ctx.run_id,
    )
    curve, table = result["curve"], result["curriculum"]
    results = {ctx.stage: (folder, result)}
    manifests = [shards.gather(ctx, results, name, key) for name, key in _TABLES]
    manifests += [ctx.write("curriculum", table), ctx.write("lineage", rows)]
    figures = tuple(figure_rows(curve, ctx.domain, {row["world"] for row in table}))
    success = [point["success"] for point in curve if "success" in point]
    summary: dict[str, Any] = {"PPO steps": len(success), "episodes kept": manifests[0].rows}
    if success:
        summary["success of its batches"] = f"{success[0]:.2f} -> {success[-1]:.2f}"
    summary["tasks sampled less"] = in_words(table)
    less = [row for row in table if row["reason"]]
    return StageResult(tuple(manifests), figures, summary, {"sampled-less": less})


def tally(ctx: Context, tasks: Mapping[str, Task]) -> PastOutcomes:
    """How often rejection sampling solved each task: the curriculum begins from it."""
    played = inputs.rows(ctx, "trajectories", "rollout", columns=["trajectory_id", "task_id"])
    task_of = {row["trajectory_id"]: row["task_id"] for row in played}
    outcomes = []
    for name, verdict in of_rows(inputs.rows(ctx, "scores", "score", columns=_JUDGED)).items():
        task = tasks.get(task_of.get(name, ""))
        if task is not None and verdict.v is not None:
            outcomes.append((task.task_id, (task.world, task.template, task.level), verdict.v))
    return PastOutcomes.of(outcomes)


def figure_rows(curve: Sequence[Mapping[str, Any]], domain: str, worlds: set[str]) -> Iterator[dict[str, Any]]:
    """Rows of `metrics`. A world's own figure is that figure of `domain/world`, an interface's that of `domain/gui`."""
    parts = {*worlds, *INTERFACES}
    for point in curve:
        for name, value in point.items():
            if name == "step" or not isinstance(value, int | float):
                continue
            place, said = domain, name
            for prefix in _OF_A_PART:
                if name.removeprefix(prefix) in parts and name.startswith(prefix):
                    place, said = f"{domain}/{name.removeprefix(prefix)}", prefix.removesuffix("_")
            yield metrics.row(said, value, domain=place, step=point["step"])


STAGE = single(
    "rl-{domain}",
    reads=(
        Checkpoint("sft"),
        Partition("tasks", "synthesize"),
        Partition("trajectories", "rollout"),
        Partition("scores", "score"),
    ),
    writes=(Checkpoint("rl-{domain}"), "trajectories", "steps", "images", "curriculum", "lineage"),
    settings=("seed", "policy", "language_model", "sandbox", "synthesis", "rollout", "routing", "rl"),
    work=_work,
    finish=_finish,
    extra=lambda ctx: Panel(ctx.settings).versions,
    needs=(BROWSERS, TRAINING),
)
