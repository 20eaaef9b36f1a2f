"""Train continually on general data, people's steps and unverified trajectories (stage `ct`; UI-TARS-2, section 2.3).

It trains in every `ct.every`-th iteration. In the others it copies a model: the newest, or the last that CT trained
(`ct.sft_init`).
"""

from __future__ import annotations

import shutil
from pathlib import Path

from flywheel.pipeline.stage import TRAINING, Checkpoint, Record, StageContext, StageResult, single_shard_stage
from flywheel.pipeline.stages import sft
from flywheel.store import manifest
from flywheel.utils.errors import BadInput
from flywheel.utils.files import atomic_folder


def _begin(ctx: StageContext) -> Path:
    if _due(ctx) or ctx.settings.ct.sft_init == "latest":
        return ctx.newest_model_folder()
    last = ctx.ws.model(ctx.iteration - _since(ctx), "ct")
    if not last.is_dir():
        raise BadInput(
            "the last model that CT trained is not there", where=ctx.ws.relative(last), fix="set ct.sft_init to latest"
        )
    return last


def _due(ctx: StageContext) -> bool:
    return _since(ctx) == 0


def _since(ctx: StageContext) -> int:
    """Return how many iterations ago CT was last due; 0: it is due."""
    return (ctx.iteration - 1) % ctx.settings.ct.every


def _work(ctx: StageContext, folder: Path) -> dict:
    s, begin = ctx.settings.ct, _begin(ctx)
    if not _due(ctx):
        out = ctx.ws.model(ctx.iteration, "ct")
        with atomic_folder(out) as copy:
            shutil.copytree(begin, copy, dirs_exist_ok=True)
        return {"begin": ctx.model_name(begin)}
    return sft.train_checkpoint(ctx, "ct", begin, folder, s, weights={"rollout": s.rollout_weight})


def _finish(ctx: StageContext, folder: Path, result: dict) -> StageResult:
    if not _due(ctx):
        links = ctx.write_lineage(ctx.ws.model(ctx.iteration, "ct"), [result["begin"]])
        return StageResult((links,), (), {"not due": f"every {ctx.settings.ct.every} iterations"})
    return sft.write_training_record(ctx, result, manifest.read_manifest(ctx.ws, ctx.iteration).datasets("ct"))


STAGE = single_shard_stage(
    "ct",
    reads=(Record("manifest"), Record("promotion", previous=True)),
    writes=(Checkpoint("ct"), "lineage"),
    settings=("seed", "policy", "language_model", "adapter", "ct"),
    work=_work,
    finish=_finish,
    needs=(TRAINING,),
)
