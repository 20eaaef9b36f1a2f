"""Turn recorded sessions into trajectories, each thought at its action (stage `ingest`; UI-TARS-2, section 2.4.1)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.envs.tasks import open_levels
from flywheel.envs.tasks.drawing import task_from_row
from flywheel.pipeline.stage import Record, Stage, StageContext, StageResult, read_shards, write_shard
from flywheel.recordings import selection
from flywheel.recordings.asr.recognizer import locate_whisper_checkpoint
from flywheel.recordings.curate import Curation, recording_fingerprint, replay_recordings
from flywheel.recordings.ingest import AsrWorkerPool, find_duplicates, speech_bytes
from flywheel.recordings.reword import SOURCE, augment_recording, open_reworder
from flywheel.recordings.rows import decision_row, review_row
from flywheel.recordings.selection import SessionFolder
from flywheel.recordings.session import load_session_meta
from flywheel.store import manifest, partitions
from flywheel.store.partitions import table_from_rows
from flywheel.store.schema import Step, Trajectory, fraction_metric_row, metric_row, record_from_row, record_to_row
from flywheel.utils import processes
from flywheel.utils.progress import announce

# Most sessions, and bytes of speech (some six minutes in Opus), of a shard: a kill loses no more than a shard.
_PER_SHARD, _SPEECH = 24, 2_000_000
# Table -> the key columns of rows that several shards may write.
_TABLES = {"steps": (), "utterances": (), "events": (), "candidates": (), "images": ("sha256",), "tasks": ("task_id",)}


def _sessions(ctx: StageContext) -> list[SessionFolder]:
    return selection.read_chosen_sessions(ctx.ws, ctx.iteration)


def deferral_rule(ws: Workspace, settings: Settings, iteration: int) -> selection.DeferSession | None:
    """Return a rule by which recordings of tasks above the unlocked levels of difficulty are chosen last.

    None where none is locked (`synthesis.level_unlock_success` is 0). `begin_iteration` takes it. The rule takes a
    session's folder. It is true where the session's task has a level that the training tasks of `iteration` have not
    unlocked, and false for a folder that cannot be read. Raises DataError where the record of open levels is missing or
    damaged; the rule raises as `is_above_open_level`.
    """
    if not settings.synthesis.level_unlock_success:
        return None
    opened = open_levels.read_open_levels(ws, iteration - 1)

    def ahead(folder: Path) -> bool:
        try:
            _, task = load_session_meta(folder)
        except Exception:  # it is chosen in its turn, and ingesting reports the fault
            return False
        return open_levels.is_above_open_level(settings, opened, task)

    return ahead


def _plan(ctx: StageContext) -> list[str]:
    firsts, speech = [0], 0
    sizes = [speech_bytes(ctx.ws.resolve(session.path)) for session in _sessions(ctx)]
    for number, size in enumerate(sizes):
        if number > firsts[-1] and (number == firsts[-1] + _PER_SHARD or speech + size > _SPEECH):
            firsts.append(number)
            speech = 0
        speech += size
    return [f"ingest-{n:03d}-{end - 1:03d}" for n, end in pairwise([*firsts, len(sizes)]) if end]


def _listeners(ctx: StageContext) -> AbstractContextManager[AsrWorkerPool]:
    """Open the recognizers, once per process: that takes as long as recognizing four short sessions."""
    located = locate_whisper_checkpoint(ctx.settings.recording, ctx.ws.root)
    return closing(AsrWorkerPool(ctx.settings.model_copy(update={"recording": located})))


def _work(ctx: StageContext, shard: str, folder: Path) -> list[dict[str, str]]:
    first, last = map(int, shard.split("-")[1:])
    chosen = _sessions(ctx)[first : last + 1]
    selection.check_sessions_unchanged(ctx.ws, chosen)
    ctx.report(f"{shard}: takes in {len(chosen)} recordings")
    ingested = ctx.shared.ingest([ctx.ws.resolve(session.path) for session in chosen], ctx.iteration)
    trajectories = (replace(one.trajectory, run_id=ctx.run_id or None) for one in ingested)
    write_shard(folder, "trajectories", (record_to_row("trajectories", trajectory) for trajectory in trajectories))
    write_shard(folder, "tasks", (one.task_row for one in ingested if one.task_row))
    write_shard(folder, "steps", (record_to_row("steps", step) for one in ingested for step in one.steps))
    write_shard(folder, "utterances", (row for one in ingested for row in one.thought_rows))
    write_shard(folder, "events", (row for one in ingested for row in one.event_rows))
    write_shard(folder, "candidates", (row for one in ingested for row in one.candidate_rows))
    write_shard(folder, "images", {row["sha256"]: row for one in ingested for row in one.image_rows}.values())
    write_shard(folder, "reviews", (row for one in ingested for row in one.review_rows))
    return [{"session": one.session, "fingerprint": one.fingerprint} for one in ingested]


def _finish(ctx: StageContext, results: dict[str, tuple[Path, Any]]) -> StageResult:
    tables = {table: read_shards(results, table, *key) for table, key in _TABLES.items()}
    trajectories, reviews = _without_duplicates(results, _known(ctx, tables["tasks"].to_pylist()))
    replayed = _replay(ctx, tables, trajectories)
    reworded = _reword(ctx, tables, trajectories)
    reviews += [*replayed, *reworded.reviews]
    tables["steps"] = pa.concat_tables([tables["steps"], table_from_rows("steps", reworded.steps)])
    manifests = [ctx.write(table, rows) for table, rows in tables.items()]
    manifests += [ctx.write("trajectories", [*trajectories, *reworded.trajectories]), ctx.write("reviews", reviews)]
    for row in trajectories:
        if row["status"] == "invalid":
            what = f"a recording is not used: {row['error']} (mended, it comes again in the next iteration)"
            announce(ctx.stage, what)
    utterances, count = tables["utterances"].to_pylist(), tables["steps"].num_rows - len(reworded.steps)
    recorded = {row["trajectory_id"] for row in trajectories if row["source"] == "recording"}
    of_recordings = sum(name in recorded for name in tables["steps"]["trajectory_id"].to_pylist())
    usable = sum(row["status"] != "invalid" for row in trajectories)
    understood = [row for row in utterances if not row["low_confidence"]]
    spoken = len({(row["trajectory_id"], row["step"]) for row in understood if row["text"]})
    doubtful = len(utterances) - len(understood)
    figures = [
        metric_row("sessions", len(trajectories)),
        metric_row("utterances", len(utterances)),
        fraction_metric_row("steps_with_a_thought", spoken, of_recordings),
    ]
    if utterances:
        score = sum(row["alignment_score"] for row in utterances) / len(utterances)
        figures.append(metric_row("alignment_score", score, n=len(utterances)))
        figures.append(fraction_metric_row("doubtful_thoughts", doubtful, len(utterances)))
    summary = {
        "sessions": len(trajectories),
        "usable": usable,
        "steps": count,
        "utterances": len(utterances),
        "steps with a thought": spoken,
        "hardly understood": doubtful,
    }
    if replayed:
        told = Counter(row["decision"] for row in replayed)
        figures.append(fraction_metric_row("replayed_alike", told["same"], told["same"] + told["differs"]))
        summary |= {"replayed": ", ".join(f"{number} {decision}" for decision, number in sorted(told.items()))}
    if ctx.settings.curation.rewordings:
        figures.append(metric_row("rewordings", len(reworded.trajectories)))
        summary |= {"rewordings": len(reworded.trajectories)}
    return StageResult(tuple(manifests), tuple(figures), summary)


def _without_duplicates(
    results: dict[str, tuple[Path, Any]], known: Mapping[str, str]
) -> tuple[list[dict], list[dict]]:
    """Return rows of trajectories and reviews; a recording that equals an earlier or a known one becomes invalid."""
    names = [name for _, told in results.values() for name in told]
    rows = read_shards(results, "trajectories").to_pylist()
    reviews = {row["subject"]: row for row in read_shards(results, "reviews").to_pylist()}
    told = zip(names, rows, strict=True)
    recordings = ((name["session"], name["fingerprint"], row["status"] != "invalid") for name, row in told)
    for row, reason in zip(rows, find_duplicates(recordings, known), strict=True):
        if reason:
            row |= {"status": "invalid", "error": reason}
            reviews[row["trajectory_id"]] = review_row(row["trajectory_id"], Curation((reason,)))
    return rows, [reviews[row["trajectory_id"]] for row in rows]


def _steps_of(tables: Mapping[str, pa.Table], names: Collection[str]) -> dict[str, list[Step]]:
    """Return the steps of trajectories, in order. names: their ids."""
    found: dict[str, list[Step]] = {name: [] for name in names}
    for row in tables["steps"].to_pylist():
        if row["trajectory_id"] in found:
            found[row["trajectory_id"]].append(record_from_row("steps", Step, row))
    return {name: sorted(steps, key=lambda one: one.step) for name, steps in found.items()}


def _usable_recordings(trajectories: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        row["trajectory_id"]: row for row in trajectories if row["source"] == "recording" and row["status"] != "invalid"
    }


def _replay(
    ctx: StageContext, tables: Mapping[str, pa.Table], trajectories: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Play usable recordings again (`curation.replay`); return rows of `reviews`. One that differs becomes invalid
    where that is asked for."""
    rows = _usable_recordings(trajectories) if ctx.settings.curation.replay != "none" else {}
    if not rows:
        return []
    ctx.report(f"plays {len(rows)} recordings again")
    tasks = {row["task_id"]: task_from_row(row) for row in tables["tasks"].to_pylist()}
    sizes = tables["images"].select(["sha256", "width", "height"]).to_pylist()
    size_of = {row["sha256"]: (row["width"], row["height"]) for row in sizes}
    recordings = [
        (tasks[rows[name]["task_id"]], steps, size_of[steps[0].image_sha256])
        for name, steps in _steps_of(tables, rows).items()
    ]
    found = processes.run_until_sigterm(replay_recordings(ctx.settings, ctx.ws.root, recordings))
    for row, verdict in zip(rows.values(), found, strict=True):
        if verdict.decision == "differs" and ctx.settings.curation.replay == "refuse":
            row |= {"status": "invalid", "error": f"played again, {verdict.detail}"}
    return [
        decision_row(name, "replay", "sandbox", verdict.decision, verdict.detail)
        for name, verdict in zip(rows, found, strict=True)
    ]


@dataclass(frozen=True)
class _Reworded:
    """Hold the rewordings of an iteration's recordings, as rows of the tables. reviews: who made each, and what was
    dropped."""

    trajectories: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    reviews: list[dict[str, Any]] = field(default_factory=list)


def _reword(ctx: StageContext, tables: Mapping[str, pa.Table], trajectories: Iterable[Mapping[str, Any]]) -> _Reworded:
    """Say usable recordings in other words (`curation.rewordings`)."""
    count, made = ctx.settings.curation.rewordings, _Reworded()
    rows = _usable_recordings(trajectories) if count else {}
    if not rows:
        return made
    reworder, tasks = open_reworder(ctx.settings), {row["task_id"]: row for row in tables["tasks"].to_pylist()}
    ctx.report(f"says {len(rows)} recordings in other words, by {reworder.name}")
    for name, steps in _steps_of(tables, rows).items():
        recording = record_from_row("trajectories", Trajectory, rows[name])
        kept, dropped = augment_recording(recording, steps, tasks[recording.task_id], reworder, count)
        for trajectory, reworded in kept:
            made.trajectories.append(record_to_row("trajectories", trajectory))
            made.steps.extend(record_to_row("steps", step) for step in reworded)
            told = f"rewording {trajectory.sample} of {name}"
            made.reviews.append(decision_row(trajectory.trajectory_id, SOURCE, reworder.name, "kept", told))
        for why in dropped:
            announce(ctx.stage, f"{name}: {why}")
            made.reviews.append(decision_row(name, SOURCE, reworder.name, "dropped", why))
    return made


def _known(ctx: StageContext, tasks: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return fingerprint -> trajectory id of usable recordings of earlier iterations whose task has the content of one
    of `tasks`. No other recording can equal a new one, so no others are read."""
    earlier = manifest.read_manifest(ctx.ws, ctx.iteration - 1)

    def rows(table: str, key: str, wanted: Collection[str], *columns: str) -> list[dict[str, Any]]:
        files = [ctx.ws.resolve(shard.path) for shard in earlier.shards(table) if shard.stage == ctx.stage]
        return partitions.find_rows(ctx.ws, table, files, key, wanted, (key, *columns)).to_pylist()

    contents = {(task["world"], task["template"], task["params"]) for task in tasks}
    alike = {
        row["task_id"]: row
        for row in rows("tasks", "params", {params for _, _, params in contents}, "task_id", "world", "template")
        if (row["world"], row["template"], row["params"]) in contents
    }
    recorded = rows("trajectories", "task_id", alike.keys(), "trajectory_id", "status", "source")
    whole = (row for row in recorded if row["status"] != "invalid" and row["source"] != SOURCE)
    task_of = {row["trajectory_id"]: row["task_id"] for row in whole}
    steps: dict[str, list[Step]] = defaultdict(list)
    for row in rows("steps", "trajectory_id", task_of.keys(), "step", "action"):
        steps[row["trajectory_id"]].append(record_from_row("steps", Step, row))
    return {
        recording_fingerprint(alike[task], sorted(steps[name], key=lambda one: one.step)): name
        for name, task in task_of.items()
    }


STAGE = Stage(
    "ingest",
    reads=(Record("sessions"), Record("manifest", previous=True)),
    writes=("trajectories", "steps", "utterances", "events", "candidates", "images", "tasks", "reviews"),
    settings=("policy", "sandbox", "recording", "curation", "language_model", "synthesis"),
    plan=_plan,
    work=_work,
    finish=_finish,
    shares=_listeners,
    needs=(),
)
