"""Train a specialist by RL in one domain's environments, from the SFT checkpoint (stage `rl-<domain>`, sections 2.5.3
and 2.5.4)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flywheel.envs.base import INTERFACES, Task, verdicts_from_rows
from flywheel.envs.registry import open_environments
from flywheel.evaluation.evaluator import JudgedEpisode
from flywheel.pipeline.stage import (
    BROWSERS,
    TRAINING,
    Checkpoint,
    Partition,
    StageContext,
    StageResult,
    single_shard_stage,
    write_episode_shard,
    write_shard,
)
from flywheel.rewards.scorer import ScorerSet
from flywheel.rollout.episode import Episode, read_episode, write_episode
from flywheel.store.schema import metric_row
from flywheel.training.rl.curriculum import PastOutcomes, describe_curriculum
from flywheel.utils.files import write_json


class EpisodeArchive:
    """Store the episodes of RL and their scores for people to look at, one file each; no training store takes them.

    folder: of the shard; the files lie in its subfolder `episodes`. Each is written as its episode ends, since a
    resumed run does not report finished episodes again. every: screens are kept of each `every`-th episode of a task
    (rl.group_size: one per group).
    """

    def __init__(self, folder: Path, run_id: str, every: int) -> None:
        self._folder, self._run_id, self._every = folder / "episodes", run_id, every
        self._folder.mkdir(parents=True, exist_ok=True)

    def add(self, episode: Episode) -> None:
        images = episode.images if episode.trajectory.sample % self._every == 0 else {}
        trajectory = replace(episode.trajectory, run_id=self._run_id or None)
        steps = tuple(replace(step, sampled_logprobs=()) for step in episode.steps)
        kept = Episode(trajectory, steps, images)
        self._scores(episode).unlink(missing_ok=True)  # of a killed attempt
        write_episode(self._folder / f"{episode.id}.zip", kept, {})

    def add_scores(self, judged: JudgedEpisode) -> None:
        write_json(self._scores(judged.episode), [one.row(judged.episode.id) for one in judged.verdicts])

    def _scores(self, episode: Episode) -> Path:
        return self._folder / f"{episode.id}.json"

    def stage(self, folder: Path) -> None:
        """Stage the archived rows in the shard's `folder`, by trajectory id."""
        write_episode_shard(folder, map(read_episode, sorted(self._folder.glob("*.zip"))))
        files = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(self._folder.glob("*.json")))
        write_shard(folder, "scores", itertools.chain.from_iterable(files))


_OF_A_PART = ("success_", "curriculum_level_", "reward_", "explained_variance_")  # before a world or an interface
_JUDGED = ["trajectory_id", "score", "threshold"]  # columns of `scores` from which V follows
_TABLES = (  # each table with the key columns of its rows
    ("trajectories", "trajectory_id"),
    ("steps",),
    ("images", "sha256"),
    ("scores", "trajectory_id", "scorer"),
)


def _work(ctx: StageContext, folder: Path) -> dict[str, Any]:
    from flywheel.training.rl.run import train_rl  # imports torch, which reading the pipeline does not need

    tasks = ctx.read_tasks("synthesize", "train")
    kept = EpisodeArchive(folder, ctx.run_id, ctx.settings.rl.group_size)

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
        prior=count_past_outcomes(ctx, tasks),
        on_metric=on_metric,
        on_episode=kept.add,
        on_judged=kept.add_scores,
        open_environments=partial(open_environments, root=ctx.ws.root),
    )
    kept.stage(folder)
    return vars(result)


def _finish(ctx: StageContext, folder: Path, result: dict[str, Any]) -> StageResult:
    out, begin = ctx.ws.model(ctx.iteration, ctx.stage), ctx.ws.model(ctx.iteration, "sft")
    curve, table = result["curve"], result["curriculum"]
    results = {ctx.stage: (folder, result)}
    manifests = [ctx.gather_shards(results, *table) for table in _TABLES]
    earlier = dict(enumerate(result["weights"][1:], 1))
    links = ctx.write_lineage(out, [ctx.model_name(begin)], trajectories=result["trajectories"], earlier=earlier)
    manifests += [ctx.write("curriculum", table), links]
    figures = tuple(rl_metric_rows(curve, ctx.domain, {row["world"] for row in table}))
    success = [point["success"] for point in curve if "success" in point]
    summary: dict[str, Any] = {"RL steps": len(success), "episodes kept": manifests[0].rows}
    if success:
        summary["success of its batches"] = f"{success[0]:.2f} -> {success[-1]:.2f}"
    summary["tasks sampled less"] = describe_curriculum(table)
    less = [row for row in table if row["reason"]]
    return StageResult(tuple(manifests), figures, summary, {"sampled-less": less})


def count_past_outcomes(ctx: StageContext, tasks: Mapping[str, Task]) -> PastOutcomes:
    """Count how often the rollouts of this iteration solved each task of `tasks`: the curriculum begins from these
    counts."""
    played = ctx.read_rows("trajectories", "rollout", columns=["trajectory_id", "task_id"])
    task_of = {row["trajectory_id"]: row["task_id"] for row in played}
    outcomes = []
    for name, verdict in verdicts_from_rows(ctx.read_rows("scores", "score", columns=_JUDGED)).items():
        task = tasks.get(task_of.get(name, ""))
        if task is not None and verdict.v is not None:
            outcomes.append((task.task_id, (task.world, task.template, task.level), verdict.v))
    return PastOutcomes.of(outcomes)


def rl_metric_rows(curve: Sequence[Mapping[str, Any]], domain: str, worlds: set[str]) -> Iterator[dict[str, Any]]:
    """Yield rows of `metrics` for a training curve. The figures of a suite get the domain `domain/world`, those of an
    interface `domain/gui`. curve: one mapping per step. worlds: names of the suites."""
    parts = {*worlds, *INTERFACES}
    for point in curve:
        for name, value in point.items():
            if name == "step" or not isinstance(value, int | float):
                continue
            place, said = domain, name
            for prefix in _OF_A_PART:
                if name.removeprefix(prefix) in parts and name.startswith(prefix):
                    place, said = f"{domain}/{name.removeprefix(prefix)}", prefix.removesuffix("_")
            yield metric_row(said, value, domain=place, step=point["step"])


STAGE = single_shard_stage(
    "rl-{domain}",
    reads=(
        Checkpoint("sft"),
        Partition("tasks", "synthesize"),
        Partition("trajectories", "rollout"),
        Partition("scores", "score"),
    ),
    writes=(Checkpoint("rl-{domain}"), "trajectories", "steps", "images", "scores", "curriculum", "lineage"),
    settings=("seed", "policy", "language_model", "sandbox", "synthesis", "rollout", "routing", "adapter", "rl"),
    work=_work,
    finish=_finish,
    extra=lambda ctx: ScorerSet(ctx.settings).versions,
    needs=(BROWSERS, TRAINING),
)
