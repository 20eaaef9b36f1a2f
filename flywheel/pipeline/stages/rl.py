"""Train a specialist by RL in one domain's environments, from the SFT checkpoint (stage `rl-<domain>`).

UI-TARS-2 report, sections 2.5.3 and 2.5.4.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flywheel.envs.base import INTERFACES, Task, verdicts_from_rows
from flywheel.envs.registry import open_environments
from flywheel.envs.tasks.drawing import ContentDrawer, task_from_row, task_to_row, training_filter
from flywheel.envs.tasks.held_out import is_held_out
from flywheel.evaluation.evaluator import JudgedEpisode
from flywheel.evaluation.headroom import measure_headroom
from flywheel.pipeline.stage import (
    BROWSERS,
    TRAINING,
    Checkpoint,
    Partition,
    Record,
    StageContext,
    StageResult,
    single_shard_stage,
    write_episode_shard,
    write_shard,
)
from flywheel.rewards.scorer import PERSON, ScorerSet, reward_settings
from flywheel.rollout.corrections import SOURCE as CORRECTION_SOURCE
from flywheel.rollout.episode import Episode, read_episode, write_episode
from flywheel.rollout.starts import STORED_FIELDS, KnownSuccess
from flywheel.store import manifest, partitions
from flywheel.store.schema import TABLES, Step, metric_row, record_from_row
from flywheel.training.rl.curriculum import PastOutcomes, describe_curriculum
from flywheel.training.rl.groups import DrawFreshTask
from flywheel.utils.files import write_json
from flywheel.utils.progress import announce


class EpisodeArchive:
    """Store the episodes of RL and their scores for people to look at, one file each; no training store takes them.

    folder: of the shard; the files lie in its subfolder `episodes`, those of tasks that are drawn for RL alone in
    `tasks`. Each is written as its episode ends, since a resumed run does not report finished episodes again. run_id:
    of the Prefect flow run; "": none. every: screens are kept of each `every`-th episode of a task (rl.group_size: one
    per group).
    """

    def __init__(self, folder: Path, run_id: str, every: int) -> None:
        self._folder, self._run_id, self._every = folder / "episodes", run_id, every
        self._tasks = folder / "tasks"
        for one in (self._folder, self._tasks):
            one.mkdir(parents=True, exist_ok=True)

    def add_task(self, task: Task) -> None:
        """Write a task that is drawn for RL alone to its file. Raises DiskFull."""
        write_json(self._tasks / f"{task.task_id}.json", task_to_row(task))

    def add(self, episode: Episode) -> None:
        """Write an episode to its file. Raises DiskFull."""
        images = episode.images if episode.trajectory.sample % self._every == 0 else {}
        trajectory = replace(episode.trajectory, run_id=self._run_id or None)
        steps = tuple(replace(step, sampled_logprobs=()) for step in episode.steps)
        kept = Episode(trajectory, steps, images)
        self._scores(episode).unlink(missing_ok=True)  # of a killed attempt
        write_episode(self._folder / f"{episode.id}.zip", kept, {})

    def add_scores(self, judged: JudgedEpisode) -> None:
        """Write the scores of the episode `judged` to their file. Raises DiskFull."""
        write_json(self._scores(judged.episode), [one.row(judged.episode.id) for one in judged.verdicts])

    def _scores(self, episode: Episode) -> Path:
        return self._folder / f"{episode.id}.json"

    def stage(self, folder: Path) -> None:
        """Write all archived episodes, scores and tasks as rows into the shard's `folder`, by trajectory id.

        Raises DataError for a damaged file, and as `write_episode_shard`.
        """
        write_episode_shard(folder, map(read_episode, sorted(self._folder.glob("*.zip"))))
        write_shard(folder, "scores", itertools.chain.from_iterable(_read_all(self._folder)))
        write_shard(folder, "tasks", _read_all(self._tasks))


def _read_all(folder: Path) -> Iterator[Any]:
    return (json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json")))


# Before a world or an interface.
_OF_A_PART = ("success_", "curriculum_level_", "reward_", "explained_variance_", "audit_false_pay_")
# Columns of `scores` from which V follows, and who says it.
_JUDGED = ["trajectory_id", "scorer", "score", "threshold", "abstained", "current"]
_TABLES = (  # each table with the key columns of its rows
    ("trajectories", "trajectory_id"),
    ("steps",),
    ("images", "sha256"),
    ("scores", "trajectory_id", "scorer"),
    ("tasks", "task_id"),
)


def _work(ctx: StageContext, folder: Path) -> dict[str, Any]:
    from flywheel.training.rl.run import train_rl  # imports torch, which reading the pipeline does not need

    tasks = ctx.read_tasks("synthesize", "train")
    prior = count_past_outcomes(ctx, tasks)
    settings, skipped = ctx.settings, explain_skip(ctx, tasks, prior)
    if skipped:
        announce(ctx.stage, skipped)
        settings = settings.model_copy(update={"rl": settings.rl.model_copy(update={"steps": 0})})
    kept = EpisodeArchive(folder, ctx.run_id, settings.rl.group_size)

    def on_metric(metric: Mapping[str, Any]) -> None:
        if "success" in metric:
            done, total = metric["step"], settings.rl.steps
            ctx.report_part(f"step {done} of {total}, success {metric['success']:.2f}", done, total)

    result = train_rl(
        ctx.ws.model(ctx.iteration, "sft"),
        ctx.ws.model(ctx.iteration, ctx.stage),
        ctx.domain,
        list(tasks.values()),
        settings=settings,
        iteration=ctx.iteration,
        state_folder=folder,
        prior=prior,
        successes=find_successes(ctx),
        draw_fresh=_open_drawer(ctx),
        on_metric=on_metric,
        on_task=kept.add_task,
        on_episode=kept.add,
        on_judged=kept.add_scores,
        open_environments=partial(open_environments, root=ctx.ws.root),
    )
    kept.stage(folder)
    return vars(result) | {"skipped": skipped}


def _open_drawer(ctx: StageContext) -> DrawFreshTask | None:
    if not ctx.settings.rl.fresh_tasks:
        return None
    return ContentDrawer(ctx.settings, f"{ctx.stage} {ctx.iteration}", ctx.ws.root).draw


def _finish(ctx: StageContext, folder: Path, result: dict[str, Any]) -> StageResult:
    out, begin = ctx.ws.model(ctx.iteration, ctx.stage), ctx.ws.model(ctx.iteration, "sft")
    curve, table = result["curve"], result["curriculum"]
    results = {ctx.stage: (folder, result)}
    manifests = [ctx.gather_shards(results, *table) for table in _TABLES]
    earlier = dict(enumerate(result["weights"][1:], 1))
    begun = ctx.read_rows("trajectories", ctx.stage, columns=["trajectory_id", "parent_id"])
    parents = {row["trajectory_id"]: row["parent_id"] for row in begun if row["parent_id"]}
    trained = {"trajectories": result["trajectories"], "earlier": earlier, "restored": parents}
    links = ctx.write_lineage(out, [ctx.model_name(begin)], **trained)
    manifests += [ctx.write("curriculum", table), links]
    figures = tuple(rl_metric_rows(curve, ctx.domain, {row["world"] for row in table}))
    success = [point["success"] for point in curve if "success" in point]
    summary: dict[str, Any] = {"RL steps": len(success), "episodes kept": manifests[0].rows}
    if result["skipped"]:
        summary["skipped"] = result["skipped"]
    if success:
        summary["success of its batches"] = f"{success[0]:.2f} -> {success[-1]:.2f}"
    summary["tasks sampled less"] = describe_curriculum(table)
    if dropped := result["dropped_starts"]:
        summary["starts dropped"] = ", ".join(f"{n}: {why}" for why, n in sorted(dropped.items()))
    less = [row for row in table if row["reason"]]
    return StageResult(tuple(manifests), figures, summary, {"sampled-less": less})


def explain_skip(ctx: StageContext, tasks: Mapping[str, Task], prior: PastOutcomes) -> str:
    """Explain in one line why a domain's RL is skipped: too few live groups, or no scorer can tell; "" if it is not.

    ctx: of the stage, whose domain counts. tasks: of all domains, by id. prior: `count_past_outcomes` of them. A domain
    without a task of two scored rollouts is trained, as nothing is known of its groups.
    """
    rl = ctx.settings.rl
    own = (counts for name, counts in prior.tasks.items() if tasks[name].domain == ctx.domain)
    found = measure_headroom(((int(won), int(n)) for won, n in own), rl.group_size)
    if not found.tasks and not rl.reward and _can_nobody_tell(ctx):
        return "no scorer can tell how a rollout ended: the specialist is the SFT checkpoint"
    if not found.tasks or found.live / found.tasks >= rl.min_live_groups:
        return ""
    measured = f"{found.live / found.tasks:.2f} of the groups of {found.group_size} are live ({found.tasks} tasks)"
    return f"{measured}, below rl.min_live_groups {rl.min_live_groups:g}: the specialist is the SFT checkpoint"


def _can_nobody_tell(ctx: StageContext) -> bool:
    played = ctx.read_rows("trajectories", "rollout", columns=["trajectory_id", "domain"])
    own = {row["trajectory_id"] for row in played if row["domain"] == ctx.domain}
    verdicts = verdicts_from_rows(ctx.read_rows("scores", "score", columns=_JUDGED))
    said = [verdict for name, verdict in verdicts.items() if name in own]
    return bool(said) and all(one.v is None and (one.abstained or one.scorer == PERSON) for one in said)


def count_past_outcomes(ctx: StageContext, tasks: Mapping[str, Task]) -> PastOutcomes:
    """Count how often the iteration's rollouts solved each task, from which the curriculum begins.

    ctx: of the stage. tasks: by id. Solvers' corrections do not count. Raises DataError as `StageContext.read_rows`.
    """
    played = ctx.read_rows("trajectories", "rollout", columns=["trajectory_id", "task_id", "source"])
    task_of = {row["trajectory_id"]: row["task_id"] for row in played if row["source"] != CORRECTION_SOURCE}
    outcomes = []
    for name, verdict in verdicts_from_rows(ctx.read_rows("scores", "score", columns=_JUDGED)).items():
        task = tasks.get(task_of.get(name, ""))
        if task is not None and verdict.v is not None:
            outcomes.append((task.task_id, (task.world, task.template, task.level), verdict.v))
    return PastOutcomes.of(outcomes)


def find_successes(ctx: StageContext) -> list[KnownSuccess]:
    """Read the successful trajectories within which RL's episodes of the domain can begin (restored starts).

    They are verified rollouts of the iteration of `ctx`, solvers' verified corrections of them, and people's verified
    recordings of it and, for fresh contents, of earlier ones, all of tasks that may be trained on: none has a held-out
    template or the content of a held-out task. Returns [] where all episodes begin at their task's beginning
    (`rl.restored_start_fraction` 0). Raises DataError as `StageContext.read_rows`.
    """
    rl = ctx.settings.rl
    if not rl.restored_start_fraction:
        return []
    trained = ctx.read_tasks("synthesize", "train")
    verdicts = verdicts_from_rows(ctx.read_rows("scores", "score", columns=_JUDGED))
    won = {name for name, verdict in verdicts.items() if verdict.v}
    found: list[KnownSuccess] = []
    shown = ctx.read_tasks("ingest")
    for source, stage, tasks in (
        ("rollouts", "rollout", {}),
        ("corrections", "rollout", {}),
        ("recordings", "ingest", shown),
    ):
        if source in rl.start_sources:
            played = ctx.read_rows("trajectories", stage, columns=["trajectory_id", "task_id", "source"])
            corrected = source == "corrections"  # a solver's success, none of the model's own
            played = [row for row in played if (row["source"] == CORRECTION_SOURCE) == corrected]
            rows = ctx.read_rows("steps", stage, columns=[*STORED_FIELDS])
            task_of = {row["trajectory_id"]: row["task_id"] for row in played if row["trajectory_id"] in won}
            found += _collect_successes(ctx, source, task_of, tasks | trained, rows)
    if "recordings" in rl.start_sources and rl.fresh_tasks:
        found += _earlier_recordings(ctx)
    fit = training_filter(ctx.settings, ctx.ws.root)
    may = {one.task.task_id: fit(one.task) and not is_held_out(ctx.settings, one.task) for one in found}
    return [one for one in found if one.task.task_id in trained or may[one.task.task_id]]


def _earlier_recordings(ctx: StageContext) -> list[KnownSuccess]:
    """Read the verified recordings of earlier iterations that the stores hold."""
    earlier = manifest.read_manifest(ctx.ws, ctx.iteration - 1)

    def rows(table: str, stage: str, key: str, wanted: Collection[str], *columns: str) -> list[dict[str, Any]]:
        files = [ctx.ws.resolve(shard.path) for shard in earlier.shards(table) if shard.stage == stage]
        return partitions.find_rows(ctx.ws, table, files, key, wanted, columns).to_pylist()

    names = ("trajectory_id", "task_id", "source", "score")
    held = [row for store in ("sft", "ct") for row in rows(store, "route", "domain", {ctx.domain}, *names)]
    played = {row["trajectory_id"]: row for row in held if row["source"] == "recording" and row["score"] is not None}
    asked = rows("tasks", "ingest", "task_id", {row["task_id"] for row in played.values()}, *TABLES["tasks"].names)
    tasks = {task.task_id: task for task in map(task_from_row, asked)}
    task_of = {
        name: row["task_id"]
        for name, row in played.items()
        if row["task_id"] in tasks and row["score"] >= tasks[row["task_id"]].threshold
    }
    return _collect_successes(
        ctx, "recordings", task_of, tasks, rows("steps", "ingest", "trajectory_id", task_of, *STORED_FIELDS)
    )


def _collect_successes(
    ctx: StageContext,
    source: str,
    task_of: Mapping[str, str],
    tasks: Mapping[str, Task],
    rows: Iterable[Mapping[str, Any]],
) -> Iterator[KnownSuccess]:
    """Yield the successes of the domain's training tasks. task_of: task_id by trajectory. rows: of `steps`, of these
    trajectories and of others."""
    steps: dict[str, list[Step]] = defaultdict(list)
    for row in rows:
        if row["trajectory_id"] in task_of:
            steps[row["trajectory_id"]].append(record_from_row("steps", Step, row))
    for name, task_id in task_of.items():
        task, taken = tasks.get(task_id), sorted(steps[name], key=lambda step: step.step)
        if task is not None and taken and (task.domain, task.split) == (ctx.domain, "train"):
            yield KnownSuccess(name, source, task, tuple(taken))


def rl_metric_rows(curve: Sequence[Mapping[str, Any]], domain: str, worlds: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the figures of a training curve as rows of the table `metrics`.

    curve: one mapping per step, `step` and figures by name. worlds: names of the domain's suites. Figures of one suite
    get the domain `domain/world`, those of one interface `domain/gui` and the like.
    """
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
        *(Partition(table, stage) for table in ("trajectories", "steps") for stage in ("ingest", "rollout")),
        Partition("tasks", "ingest"),
        Record("manifest", previous=True),
        Partition("scores", "score"),
    ),
    writes=(Checkpoint("rl-{domain}"), "trajectories", "steps", "images", "scores", "tasks", "curriculum", "lineage"),
    settings=("seed", "policy", "language_model", "sandbox", "synthesis", "rollout", "routing", "adapter", "rl"),
    work=_work,
    finish=_finish,
    extra=lambda ctx: ScorerSet(reward_settings(ctx.settings)).versions,
    needs=(BROWSERS, TRAINING),
)
