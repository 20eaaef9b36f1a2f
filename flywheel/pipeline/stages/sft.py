"""sft: supervised fine-tuning on the newest verified window (section 2.3), most of the mix agent data."""

from __future__ import annotations

from pathlib import Path

from flywheel.pipeline import supervised_stage
from flywheel.pipeline.artifacts import Checkpoint, Record
from flywheel.pipeline.stage import TRAINING, StageContext, StageResult, single_shard_stage
from flywheel.store import manifest


def _work(ctx: StageContext, folder: Path) -> dict:
    s = ctx.settings.sft
    return supervised_stage.train_checkpoint(
        ctx, "sft", ctx.ws.model(ctx.iteration, "ct"), folder, s, demonstrations=s.demonstrations
    )


def _finish(ctx: StageContext, folder: Path, result: dict) -> StageResult:
    read = manifest.read_manifest(ctx.ws, ctx.iteration)
    drawn = read.datasets("sft")
    if ctx.settings.sft.demonstrations:
        drawn += read.datasets("ct")
    return supervised_stage.write_training_record(ctx, result, drawn)


STAGE = single_shard_stage(
    "sft",
    reads=(Record("manifest"), Checkpoint("ct")),
    writes=(Checkpoint("sft"), "lineage"),
    settings=("seed", "policy", "language_model", "sft"),
    work=_work,
    finish=_finish,
    needs=(TRAINING,),
)
