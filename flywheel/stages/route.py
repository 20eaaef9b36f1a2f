"""route: contracts, then V = 1 to the SFT store, the rest to CT, what is broken to quarantine (section 2.3)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from flywheel.stages.base import Context, StageResult, single
from flywheel.store import build, duplicates, manifest, sessions
from flywheel.store.artifacts import Partition, Record
from flywheel.workspace import Workspace


def _work(ctx: Context, folder: Path) -> dict:
    ctx.report("checking contracts")
    return asdict(build.build(ctx.ws, ctx.iteration, ctx.settings, STAGE.partitions(), Workspace(folder)))


def _finish(ctx: Context, folder: Path, result: dict) -> StageResult:
    written = build.publish(ctx.ws, ctx.iteration, Workspace(folder))
    taken = [session.id for session in sessions.listed(ctx.ws, ctx.iteration)]
    data = [one for one in STAGE.partitions() if one[0] != "scores"]  # routes hold what the scores said
    data += [(table, build.STAGE) for table in duplicates.KEPT]
    manifest.write(ctx.ws, ctx.iteration, window=ctx.settings.sft.window, sessions=taken, data=data)
    summary = {f"to {name}": count for name, count in result["routed"].items()}
    if result["orphans"]:
        summary["rows of no trajectory"] = result["orphans"]
    return StageResult(written, tuple(result["metrics"]), summary)


STAGE = single(
    "route",
    reads=(
        Record("sessions"),
        Record("decisions"),
        Record("manifest", previous=True),
        Partition("trajectories", "ingest"),
        Partition("trajectories", "rollout"),
        Partition("steps", "ingest"),
        Partition("steps", "rollout"),
        Partition("thoughts", "ingest"),
        Partition("images", "ingest"),
        Partition("images", "rollout"),
        Partition("images", "synthesize"),
        Partition("general", "synthesize"),
        Partition("tasks", "ingest"),
        Partition("tasks", "synthesize"),
        Partition("scores", "score"),
    ),
    writes=(*build.WRITTEN, Record("manifest")),
    settings=("sft", "routing"),
    work=_work,
    finish=_finish,
    judges=True,
)
INCOMING = [stage for _, stage in STAGE.partitions("trajectories")]  # whose trajectories are routed
