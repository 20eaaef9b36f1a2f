"""ingest: think-aloud recordings become trajectories of people, their thoughts aligned with actions (section 2.4.1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from flywheel.errors import DataError
from flywheel.progress import tell
from flywheel.recording.curate import fingerprint
from flywheel.recording.ingest import IngestedSession, Listeners, mark_duplicates, speech_bytes
from flywheel.recording.recognizers.recognizer import located
from flywheel.recording.session import load_meta
from flywheel.schema import from_row, to_row
from flywheel.settings import Settings
from flywheel.stages import shards
from flywheel.stages.base import Context, Stage, StageResult
from flywheel.store import lookup, manifest, metrics, sessions
from flywheel.store.artifacts import Record
from flywheel.store.sessions import SessionFolder
from flywheel.synthesis import levels
from flywheel.trajectory import Step, Trajectory
from flywheel.workspace import Workspace

# What a kill can lose: so many sessions, or so many bytes of speech (some six minutes in Opus), whichever is less.
_PER_SHARD, _SPEECH = 24, 2_000_000
# Table -> the column by which shards may share a row.
_TABLES = {"steps": None, "thoughts": None, "events": None, "images": "sha256", "tasks": "task_id"}


def _sessions(ctx: Context) -> list[SessionFolder]:
    return sessions.listed(ctx.ws, ctx.iteration)


def later(ws: Workspace, settings: Settings, iteration: int) -> sessions.Later | None:
    """Of a session's folder: its task is of a level that the iteration's training tasks have not reached
    (`synthesis.opens_at`). Such recordings wait while there are others: the model learns what it is asked for. None
    where all levels are open: then no recording need be opened to be chosen."""
    if not settings.synthesis.opens_at:
        return None
    opened = levels.read(ws, iteration - 1)

    def ahead(folder: Path) -> bool:
        try:
            _, task = load_meta(folder)
        except DataError:  # it has its turn, and is told then
            return False
        return levels.above(settings, opened, task)

    return ahead


def _plan(ctx: Context) -> list[str]:
    firsts, speech = [0], 0
    sizes = [speech_bytes(ctx.ws.resolve(session.path)) for session in _sessions(ctx)]
    for number, size in enumerate(sizes):
        if number > firsts[-1] and (number == firsts[-1] + _PER_SHARD or speech + size > _SPEECH):
            firsts.append(number)
            speech = 0
        speech += size
    return [f"ingest-{n:03d}-{end - 1:03d}" for n, end in pairwise([*firsts, len(sizes)]) if end]


def _listeners(ctx: Context) -> AbstractContextManager[Listeners]:
    """The recognizers: opening them takes as long as hearing four short sessions."""
    return closing(
        Listeners(ctx.settings.model_copy(update={"recording": located(ctx.settings.recording, ctx.ws.root)}))
    )


def _work(ctx: Context, shard: str, folder: Path) -> list[dict[str, str]]:
    first, last = map(int, shard.split("-")[1:])
    chosen = _sessions(ctx)[first : last + 1]
    sessions.check(ctx.ws, chosen)
    ctx.report(f"{shard}: takes in {len(chosen)} recordings")
    ingested = ctx.shared.ingest([ctx.ws.resolve(session.path) for session in chosen], ctx.iteration, {})
    trajectories = (replace(one.trajectory, run_id=ctx.run_id or None) for one in ingested)
    shards.write_shard(folder, "trajectories", (to_row("trajectories", one) for one in trajectories))
    shards.write_shard(folder, "tasks", (one.task_row for one in ingested if one.task_row))
    shards.write_shard(folder, "steps", (to_row("steps", step) for one in ingested for step in one.steps))
    shards.write_shard(folder, "thoughts", (row for one in ingested for row in one.thought_rows))
    shards.write_shard(folder, "events", (row for one in ingested for row in one.event_rows))
    shards.write_shard(folder, "images", {row["sha256"]: row for one in ingested for row in one.image_rows}.values())
    shards.write_shard(folder, "reviews", (row for one in ingested for row in one.review_rows))
    return [{"session": one.session, "fingerprint": one.fingerprint} for one in ingested]


def _finish(ctx: Context, results: dict[str, tuple[Path, Any]]) -> StageResult:
    tables = {table: shards.read_shards(results, table, key) for table, key in _TABLES.items()}
    trajectories, reviews = _without_duplicates(results, _known(ctx, tables["tasks"].to_pylist()))
    manifests = [ctx.write(table, rows) for table, rows in tables.items()]
    manifests += [ctx.write("trajectories", trajectories), ctx.write("reviews", reviews)]
    for row in trajectories:
        if row["status"] == "invalid":
            tell(ctx.stage, f"a recording is not used: {row['error']} (mended, it comes again in the next iteration)")
    thoughts = tables["thoughts"].to_pylist()
    usable = sum(row["status"] != "invalid" for row in trajectories)
    spoken = len({(row["trajectory_id"], row["step"]) for row in thoughts if row["text"] and not row["doubtful"]})
    doubtful = sum(bool(row["doubtful"]) for row in thoughts)
    figures = [
        metrics.row("sessions", len(trajectories)),
        metrics.row("utterances", len(thoughts)),
        metrics.share("steps_with_a_thought", spoken, tables["steps"].num_rows),
    ]
    if thoughts:
        score = sum(row["alignment_score"] for row in thoughts) / len(thoughts)
        figures.append(metrics.row("alignment_score", score, n=len(thoughts)))
        figures.append(metrics.share("doubtful_thoughts", doubtful, len(thoughts)))
    summary = {
        "sessions": len(trajectories),
        "usable": usable,
        "steps": tables["steps"].num_rows,
        "utterances": len(thoughts),
        "steps with a thought": spoken,
        "hardly understood": doubtful,
    }
    return StageResult(tuple(manifests), tuple(figures), summary)


def _without_duplicates(
    results: dict[str, tuple[Path, Any]], known: Mapping[str, str]
) -> tuple[list[dict], list[dict]]:
    """Rows of trajectories and reviews; a recording like one of an earlier shard, or one known, becomes invalid."""
    ingested = []
    for folder, names in results.values():
        one_shard = {"shard": (folder, names)}
        rows = shards.read_shards(one_shard, "trajectories").to_pylist()
        said = {row["subject"]: row for row in shards.read_shards(one_shard, "reviews").to_pylist()}
        ingested += [
            IngestedSession(
                name["session"],
                from_row("trajectories", Trajectory, row),
                review_rows=(said[row["trajectory_id"]],),
                fingerprint=name["fingerprint"],
            )
            for name, row in zip(names, rows, strict=True)
        ]
    ingested = mark_duplicates(ingested, known)
    rows = [to_row("trajectories", one.trajectory) for one in ingested]
    return rows, [dict(row) for one in ingested for row in one.review_rows]


def _known(ctx: Context, tasks: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Fingerprints of the usable recordings of earlier iterations -> trajectory: of those whose task has the content of
    one of `tasks`. No others can be like a recording of these, so no others are read."""
    earlier = manifest.read(ctx.ws, ctx.iteration - 1)

    def rows(table: str, key: str, wanted: Collection[str], *columns: str) -> list[dict[str, Any]]:
        files = [ctx.ws.resolve(shard.path) for shard in earlier.shards(table) if shard.stage == ctx.stage]
        return lookup.rows(ctx.ws, table, files, key, wanted, (key, *columns)).to_pylist()

    contents = {(task["world"], task["template"], task["params"]) for task in tasks}
    alike = {
        row["task_id"]: row
        for row in rows("tasks", "params", {params for _, _, params in contents}, "task_id", "world", "template")
        if (row["world"], row["template"], row["params"]) in contents
    }
    recorded = rows("trajectories", "task_id", alike.keys(), "trajectory_id", "status")
    task_of = {row["trajectory_id"]: row["task_id"] for row in recorded if row["status"] != "invalid"}
    steps: dict[str, list[Step]] = defaultdict(list)
    for row in rows("steps", "trajectory_id", task_of.keys(), "step", "action"):
        steps[row["trajectory_id"]].append(from_row("steps", Step, row))
    return {
        fingerprint(alike[task], sorted(steps[name], key=lambda one: one.step)): name for name, task in task_of.items()
    }


STAGE = Stage(
    "ingest",
    reads=(Record("sessions"), Record("manifest", previous=True)),
    writes=("trajectories", "steps", "thoughts", "events", "images", "tasks", "reviews"),
    settings=("policy", "sandbox", "recording", "language_model", "synthesis"),
    plan=_plan,
    work=_work,
    finish=_finish,
    shares=_listeners,
    needs=(),
)
