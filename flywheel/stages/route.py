"""route: contracts, then V = 1 to the SFT store, the rest to CT, what is broken to quarantine (section 2.3)."""

from __future__ import annotations

from pathlib import Path

from flywheel.stages.base import Context, StageResult, single
from flywheel.store import build, partitions
from flywheel.store.artifacts import Partition, Record


def _work(ctx: Context, folder: Path) -> dict:
    ctx.report("checking contracts")
    built = build.build(ctx.ws, ctx.iteration, ctx.settings, STAGE.partitions())
    return {"metrics": list(built.metrics), "routed": built.routed, "reasons": built.reasons}


def _finish(ctx: Context, folder: Path, result: dict) -> StageResult:
    written = tuple(partitions.manifest_of(ctx.ws, table, ctx.iteration, build.STAGE) for table in _TABLES)
    summary = {f"to {name}": count for name, count in result["routed"].items()}
    return StageResult(written, tuple(result["metrics"]), summary)


_TABLES = ("routes", "sft", "ct", "quarantine", "lineage", "duplicates", "signatures", "screen_hashes")
STAGE = single(
    "route",
    reads=(
        Record("sessions"),
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
    writes=(*_TABLES, Record("manifest")),
    settings=("sft", "routing"),
    work=_work,
    finish=_finish,
    judges=True,
)
INCOMING = [stage for _, stage in STAGE.partitions("trajectories")]  # whose trajectories are routed
