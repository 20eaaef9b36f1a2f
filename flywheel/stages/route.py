"""route: contracts, then V = 1 to the SFT store, the rest to CT, what is broken to quarantine (section 2.3)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from flywheel.stages import data
from flywheel.stages.base import Context, StageResult, single
from flywheel.store import build, partitions, sessions
from flywheel.store.partitions import sha256_file

_READ = (
    ("trajectories", "ingest"), ("trajectories", "rollout"), ("steps", "ingest"), ("steps", "rollout"),
    ("images", "ingest"), ("images", "rollout"), ("scores", "score"), ("tasks", "ingest"), ("tasks", "synthesize"),
)  # fmt: skip


def _inputs(ctx: Context) -> dict:
    return {
        "partitions": data.digests(ctx, _READ), "before": sha256_file(ctx.ws.manifest(ctx.iteration - 1)),
        "sessions": [asdict(session) for session in sessions.listed(ctx.ws, ctx.iteration)],
        "settings": [ctx.settings.routing.model_dump(), ctx.settings.sft.window],
    }  # fmt: skip


def _work(ctx: Context, folder: Path) -> dict:
    ctx.report("checking contracts")
    built = build.build(ctx.ws, ctx.iteration, ctx.settings)
    return {"metrics": list(built.metrics), "routed": built.routed, "reasons": built.reasons}


def _finish(ctx: Context, folder: Path, result: dict) -> StageResult:
    written = tuple(
        partitions.manifest_of(ctx.ws, table, ctx.iteration, build.STAGE)
        for table in ("routes", "sft", "ct", "quarantine", "lineage")
    )
    summary = {f"to {name}": count for name, count in result["routed"].items()}
    return StageResult(written, tuple(result["metrics"]), summary)


STAGE = single("route", _inputs, _work, _finish)
