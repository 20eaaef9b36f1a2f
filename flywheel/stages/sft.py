"""sft: supervised fine-tuning on the newest verified window (section 2.3), most of the mix agent data."""

from __future__ import annotations

from pathlib import Path

from flywheel.stages import supervised
from flywheel.stages.base import TRAINING, Context, StageResult, single
from flywheel.store import manifest
from flywheel.store.artifacts import Checkpoint, Record


def _work(ctx: Context, folder: Path) -> dict:
    s = ctx.settings.sft
    return supervised.train(ctx, "sft", ctx.ws.model(ctx.iteration, "ct"), folder, s, demonstrations=s.demonstrations)


def _finish(ctx: Context, folder: Path, result: dict) -> StageResult:
    read = manifest.read(ctx.ws, ctx.iteration)
    drawn = read.datasets("sft")
    if ctx.settings.sft.demonstrations:
        drawn += read.datasets("ct")
    return supervised.finish(ctx, result, drawn)


STAGE = single(
    "sft",
    reads=(Record("manifest"), Checkpoint("ct")),
    writes=(Checkpoint("sft"), "lineage"),
    settings=("seed", "policy", "language_model", "sft"),
    work=_work,
    finish=_finish,
    needs=(TRAINING,),
)
