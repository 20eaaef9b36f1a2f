"""sft: supervised fine-tuning on the newest verified window (section 2.3), most of the mix agent data."""

from __future__ import annotations

from pathlib import Path

from flywheel.policy.model import digest
from flywheel.stages import supervised
from flywheel.stages.base import Context, StageResult, single
from flywheel.store import manifest
from flywheel.store.lineage import dataset
from flywheel.store.partitions import sha256_file


def _inputs(ctx: Context) -> dict:
    s = ctx.settings
    return {
        "manifest": sha256_file(ctx.ws.manifest(ctx.iteration)), "model": digest(ctx.ws.model(ctx.iteration, "ct")),
        "settings": [s.seed, s.policy.model_dump(), s.sft.model_dump()],
    }  # fmt: skip


def _work(ctx: Context, folder: Path) -> dict:
    return supervised.train(ctx, "sft", ctx.ws.model(ctx.iteration, "ct"), folder, ctx.settings.sft)


def _finish(ctx: Context, folder: Path, result: dict) -> StageResult:
    window = {shard.iteration for shard in manifest.read(ctx.ws, ctx.iteration).sft}
    return supervised.finish(ctx, result, [dataset("sft", k) for k in sorted(window)])


STAGE = single("sft", _inputs, _work, _finish)
