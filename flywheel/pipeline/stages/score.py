"""Score trajectories by their domain's scorers, measure success and headroom, open levels of tasks (stage `score`).

Scores depend on stored data only, so old trajectories can be scored again when a scorer is corrected. A scorer that
fails on a trajectory gives it no score, with the reason; the other scorers go on. UI-TARS-2 report, sections 2.3, 2.5.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from flywheel.envs.base import Verdict, verdicts_from_rows
from flywheel.envs.tasks import open_levels
from flywheel.evaluation.headroom import measure_headroom
from flywheel.pipeline.stage import (
    Partition,
    Record,
    StageContext,
    StageResult,
    read_shards,
    single_shard_stage,
    write_shard,
)
from flywheel.rewards.scorer import Need, ScorerSet, ScoringInput
from flywheel.rollout.corrections import SOURCE as CORRECTION_SOURCE
from flywheel.store import images as store_images
from flywheel.store import partitions, routing_decisions
from flywheel.store.schema import ALL_DOMAINS, TABLES, Step, Trajectory, fraction_metric_row, record_from_row
from flywheel.store.versioning import dvc_files
from flywheel.training.rl.curriculum import PastOutcomes
from flywheel.utils.progress import announce

_STAGES = ("ingest", "rollout")
_AT_ONCE = 64  # trajectories whose screens are in memory
_THREADS = 8  # of slow scorers, which mostly wait for a server


def _judges(ctx: StageContext) -> dict:
    """Return the scorers' versions, and fingerprints of what they read besides trajectories and tasks."""
    panel = ScorerSet(routing_decisions.current_routing_rule(ctx.ws, ctx.iteration).apply_to(ctx.settings))
    read = [Partition(table, stage) for table in _tables(panel) for stage in _STAGES]
    return {"scorers": panel.versions, "reads": [[repr(one), one.fingerprint(ctx.ws, ctx.iteration)] for one in read]}


def _tables(panel: ScorerSet) -> list[str]:
    """List the tables that are read besides trajectories and tasks. DVC does not track them as inputs: the stage that
    writes them writes the trajectories too."""
    needs = panel.needs()
    return ["steps"] * bool(needs & {"steps", "screens"}) + ["images"] * ("screens" in needs)


def _work(ctx: StageContext, folder: Path) -> dict:
    rule = routing_decisions.current_routing_rule(ctx.ws, ctx.iteration)
    write_shard(folder, "scores", score_trajectories(ctx, rule))
    return {}


def score_trajectories(
    ctx: StageContext, rule: routing_decisions.RoutingRule, which: Set[str] | None = None, *, reuse: bool = False
) -> Iterator[dict[str, Any]]:
    """Score every trajectory that ended, except imported and reworded ones, and yield rows of the table `scores`.

    Crashed, invalid, imported and reworded trajectories get none. There is one row per scorer that was asked (of a
    cascade, up to the one that decides); where the task is not in `tasks`, one row without scorer, score and success.
    ctx: of the iteration's stage `score`. rule: its scorers and threshold, where not None, replace the iteration's own.
    which: ids of the trajectories to score; None: all. reuse: whether stored scores of a scorer's present version stay;
    it is asked again where it failed. It is a generator: errors come as it is read. Raises BadInput for a scorer that
    is unknown or refuses its settings, DataError for a missing or damaged partition, or a missing screen.
    """
    panel = ScorerSet(rule.apply_to(ctx.settings))
    said = _stored_verdicts(ctx, panel) if reuse else {}
    unknown = (Verdict(None, None, detail="its task is not in the table tasks"),)

    def judge(one: tuple[Trajectory, ScoringInput | None]) -> tuple[Verdict, ...]:
        return panel.score_trajectory(one[1], said.get(one[0].trajectory_id)) if one[1] else unknown

    cases = _cases(ctx, panel, which)
    with ThreadPoolExecutor(_THREADS if any(map(panel.is_slow, panel.versions)) else 1) as pool:
        while some := list(islice(cases, _AT_ONCE)):
            for (trajectory, case), verdicts in zip(some, pool.map(judge, some), strict=True):
                for verdict in verdicts:
                    held = (
                        replace(verdict, threshold=rule.threshold) if case and rule.threshold is not None else verdict
                    )
                    yield held.row(trajectory.trajectory_id)


def _stored_verdicts(ctx: StageContext, panel: ScorerSet) -> dict[str, dict[str, Verdict]]:
    """Return trajectory_id -> scorer -> what its present version said, where it did not fail."""
    present = {(name, version) for of_domain in panel.versions.values() for name, version in of_domain}
    found: dict[str, dict[str, Verdict]] = defaultdict(dict)
    for row in ctx.read_rows("scores", "score"):
        name = (row["scorer"] or "").partition(":")[0]
        if (name, row["version"]) in present and (row["score"] is not None or row["abstained"]):
            verdict = Verdict(row["score"], row["threshold"], row["scorer"], row["version"], row["detail"] or "")
            found[row["trajectory_id"]][name] = replace(verdict, abstained=bool(row["abstained"]))
    return found


def _pruned_needs(ctx: StageContext) -> frozenset[Need]:
    """Return what of the trajectories was pruned, so that no scorer can read it."""
    gone = dvc_files.read_pruned(ctx.ws, ctx.iteration)
    steps, images = (
        any(ctx.ws.relative(ctx.ws.partition(table, ctx.iteration, stage)) in gone for stage in _STAGES)
        for table in ("steps", "images")
    )
    return frozenset(["steps"] * steps + ["screens"] * (steps or images))


def _cases(
    ctx: StageContext, panel: ScorerSet, which: Set[str] | None
) -> Iterator[tuple[Trajectory, ScoringInput | None]]:
    """Yield each trajectory that ended, with the input of its scorers; None where its task is not known."""
    tasks = ctx.read_tasks("ingest") | ctx.read_tasks("synthesize")
    columns = [name for name in TABLES["trajectories"].names if name != "final_state" or "final_state" in panel.needs()]
    steps: dict[str, list[Step]] = {}
    lacking = _pruned_needs(ctx)
    if "steps" in _tables(panel) and "steps" not in lacking:
        for row in ctx.read_rows("steps", *_STAGES):
            steps.setdefault(row["trajectory_id"], []).append(record_from_row("steps", Step, row))
    rows = ctx.read_rows("trajectories", *_STAGES, columns=columns)
    # No scorer knows the tasks of other data sets, and imported demonstrations are routed without a score; so are
    # rewordings: what they do is judged with the recording.
    own = [
        row
        for row in rows
        if row["source"] not in ("import", "augmentation") and (which is None or row["trajectory_id"] in which)
    ]
    ended = [
        record_from_row("trajectories", Trajectory, row) for row in own if row["status"] in ("completed", "truncated")
    ]
    for first in range(0, len(ended), _AT_ONCE):
        some = ended[first : first + _AT_ONCE]
        wanted = {one.trajectory_id for one in some if "screens" in panel.needs(one.domain) - lacking}
        shas = {
            one.trajectory_id: {
                one.final_image_sha256,
                *(step.image_sha256 for step in steps.get(one.trajectory_id, ())),
            }
            for one in some
        }
        seen = {sha256 for name in wanted for sha256 in shas[name]} - {None}
        parts = [partitions.partition_files(ctx.ws, "images", ctx.iteration, stage) for stage in _STAGES if seen]
        images = store_images.load_images(ctx.ws, chain(*parts), seen)
        for trajectory in some:
            task, done = tasks.get(trajectory.task_id), tuple(steps.get(trajectory.trajectory_id, ()))
            mine = {name: images[name] for name in shas[trajectory.trajectory_id] if name in images}
            yield trajectory, ScoringInput(task, trajectory, done, mine, lacking) if task else None


def _finish(ctx: StageContext, folder: Path, result: dict) -> StageResult:
    scores = read_shards({ctx.stage: (folder, result)}, "scores")
    verdicts = verdicts_from_rows(scores.to_pylist())
    # P(V=1) counts the model's own rollouts only, no demonstrations or corrections.
    rollouts = ctx.read_rows("trajectories", "rollout", columns=["trajectory_id", "task_id", "source"])
    tasks = ctx.read_tasks("synthesize", "train")
    own = [row for row in rollouts if row["source"] != CORRECTION_SOURCE and row["trajectory_id"] in verdicts]
    judged = ((row, verdicts[row["trajectory_id"]].v) for row in own)
    known = [(tasks[row["task_id"]], v) for row, v in judged if v is not None]
    by_task: dict[str, list[bool]] = defaultdict(list)
    for task, v in known:
        by_task[task.task_id].append(v)
    counts = [(tasks[name].domain, sum(own), len(own)) for name, own in by_task.items()]
    figures = build_rollout_metrics(counts, ctx.settings.synthesis.domains, ctx.settings.rl.group_size)
    opened = open_levels.raise_open_levels(ctx.settings, open_levels.read_open_levels(ctx.ws, ctx.iteration - 1), known)
    ended = PastOutcomes.of((task.task_id, (task.world, task.template, task.level), v) for task, v in known).kinds
    outcomes = open_levels.read_outcomes(ctx.ws, ctx.iteration - 1) | {ctx.iteration: ended}
    open_levels.write_open_levels(ctx.ws, ctx.iteration, opened, outcomes)
    names = {"p_v1": "P(V=1)", "headroom": "headroom", "live_groups": "live groups"}
    shares = {row["name"]: row["value"] for row in figures if row["domain"] == ALL_DOMAINS}
    told = {words: "none" if shares[name] is None else f"{shares[name]:.2f}" for name, words in names.items()}
    summary: dict[str, Any] = {"scored": len(verdicts), **told}
    unjudged = [verdict for verdict in verdicts.values() if verdict.v is None]
    if unjudged:
        summary["without a verdict"], first = len(unjudged), f"{unjudged[0].scorer}: {unjudged[0].detail}"
        announce(ctx.stage, f"trajectories without a verdict: {len(unjudged)}, the first by {first}")
    return StageResult((ctx.write("scores", scores),), tuple(figures), summary)


def build_rollout_metrics(
    counts: Collection[tuple[str, int, int]], domains: Iterable[str], group_size: int
) -> list[dict[str, Any]]:
    """Build the rows of `metrics` about how the newest model's rollouts ended: `p_v1`, `headroom`, `live_groups`.

    counts: (domain, verified, scored rollouts) of each task. domains: of the rows, besides `all`, which comes first.
    group_size: `rl.group_size`. Each value is a fraction with its 95% interval; null where the domain has no case.
    """
    rows = []
    for domain in (ALL_DOMAINS, *domains):
        chosen = [(verified, samples) for own, verified, samples in counts if domain in (ALL_DOMAINS, own)]
        found = measure_headroom(chosen, group_size)
        rows += [
            fraction_metric_row("p_v1", sum(v for v, _ in chosen), sum(n for _, n in chosen), domain=domain),
            fraction_metric_row("headroom", found.gains, found.tasks, domain=domain),
            fraction_metric_row("live_groups", found.live, found.tasks, domain=domain),
        ]
    return rows


STAGE = single_shard_stage(
    "score",
    reads=(
        Partition("trajectories", "ingest"),
        Partition("trajectories", "rollout"),
        Partition("tasks", "ingest"),
        Partition("tasks", "synthesize"),
        Record("levels", previous=True),
        Record("decisions"),
    ),
    writes=("scores", Record("levels")),
    settings=("synthesis", "routing", "rl"),
    work=_work,
    finish=_finish,
    extra=_judges,
)
