"""sft: supervised fine-tuning on the newest verified window (section 2.3), most of the mix agent data."""

from __future__ import annotations

from pathlib import Path

from flywheel.stages import supervised
from flywheel.stages.base import Context, StageResult, single
from flywheel.store import manifest
from flywheel.store.artifacts import Checkpoint, Record
from flywheel.store.lineage import dataset


def _work(ctx: Context, folder: Path) -> dict:
    return supervised.train(ctx, "sft", ctx.ws.model(ctx.iteration, "ct"), folder, ctx.settings.sft)


def _finish(ctx: Context, folder: Path, result: dict) -> StageResult:
    window = {shard.iteration for shard in manifest.read(ctx.ws, ctx.iteration).sft}
    return supervised.finish(ctx, result, [dataset("sft", k) for k in sorted(window)])


STAGE = single(
    "sft",
    reads=(Record("manifest"), Checkpoint("ct")),
    writes=(Checkpoint("sft"), "lineage"),
    settings=("seed", "policy", "language_model", "sft"),
    work=_work,
    finish=_finish,
)
