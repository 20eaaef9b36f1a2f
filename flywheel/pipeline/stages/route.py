"""Route verified rollouts to SFT, failed ones and demonstrations to CT, unusable ones to quarantine (stage `route`).

UI-TARS-2 report, section 2.3.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from flywheel.config.workspace import Workspace
from flywheel.pipeline.stage import Partition, Record, StageContext, StageResult, single_shard_stage
from flywheel.recordings import selection
from flywheel.store import manifest
from flywheel.store.dedup import near_duplicates
from flywheel.store.routing import training_stores


def _work(ctx: StageContext, folder: Path) -> dict:
    ctx.report("checking contracts")
    read, staged = STAGE.partitions(), Workspace(folder)
    return asdict(training_stores.build_training_stores(ctx.ws, ctx.iteration, ctx.settings, read, staged))


def _finish(ctx: StageContext, folder: Path, result: dict) -> StageResult:
    written = training_stores.publish_training_stores(ctx.ws, ctx.iteration, Workspace(folder))
    taken = [session.id for session in selection.read_chosen_sessions(ctx.ws, ctx.iteration)]
    data = [one for one in STAGE.partitions() if one[0] != "scores"]  # routes contain the scores
    data += [(table, training_stores.ROUTE_STAGE) for table in near_duplicates.SIGNATURE_TABLES]
    data.append(("candidates", "ingest"))  # routes do not depend on them, and earlier versions wrote none
    manifest.write_manifest(ctx.ws, ctx.iteration, window=ctx.settings.sft.window, sessions=taken, data=data)
    summary = {f"to {name}": count for name, count in result["routed"].items()}
    if result["orphans"]:
        summary["rows of no trajectory"] = result["orphans"]
    return StageResult(written, tuple(result["metrics"]), summary)


STAGE = single_shard_stage(
    "route",
    reads=(
        Record("sessions"),
        Record("decisions"),
        Record("manifest", previous=True),
        Partition("trajectories", "ingest"),
        Partition("trajectories", "rollout"),
        Partition("steps", "ingest"),
        Partition("steps", "rollout"),
        Partition("utterances", "ingest"),
        Partition("images", "ingest"),
        Partition("images", "rollout"),
        Partition("images", "synthesize"),
        Partition("grounding_examples", "synthesize"),
        Partition("tasks", "ingest"),
        Partition("tasks", "synthesize"),
        Partition("scores", "score"),
    ),
    writes=(*training_stores.WRITTEN_TABLES, Record("manifest")),
    settings=("sft", "routing"),
    work=_work,
    finish=_finish,
)
INCOMING = [stage for _, stage in STAGE.partitions("trajectories")]  # the stages whose trajectories are routed
