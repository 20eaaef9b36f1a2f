"""ct: continual training on all that was ever collected, agent data a small part of the mix (section 2.3).

Runs in each `ct.every`-th iteration; in the others a model is handed on as it is: the newest, or the last that CT made.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from flywheel.errors import BadInput
from flywheel.files import atomic_folder
from flywheel.policy.checkpoint import digest
from flywheel.stages import inputs, supervised
from flywheel.stages.base import TRAINING, Context, StageResult, single
from flywheel.store import lineage, manifest
from flywheel.store.artifacts import Checkpoint, Record


def _begin(ctx: Context) -> Path:
    if _due(ctx) or ctx.settings.ct.hands_on == "newest":
        return inputs.newest_folder(ctx)
    last = ctx.ws.model(ctx.iteration - _since(ctx), "ct")
    if not last.is_dir():
        raise BadInput(
            "the last model that CT trained is not there", where=ctx.ws.relative(last), fix="set ct.hands_on to newest"
        )
    return last


def _due(ctx: Context) -> bool:
    return _since(ctx) == 0


def _since(ctx: Context) -> int:
    """Iterations since CT was due."""
    return (ctx.iteration - 1) % ctx.settings.ct.every


def _work(ctx: Context, folder: Path) -> dict:
    s, begin = ctx.settings.ct, _begin(ctx)
    if not _due(ctx):
        out = ctx.ws.model(ctx.iteration, "ct")
        with atomic_folder(out) as copy:
            shutil.copytree(begin, copy, dirs_exist_ok=True)
        return {"begin": ctx.ws.relative(begin)}
    return supervised.train(ctx, "ct", begin, folder, s, weights={"rollout": s.rollout_weight})


def _finish(ctx: Context, folder: Path, result: dict) -> StageResult:
    if not _due(ctx):
        out = ctx.ws.model(ctx.iteration, "ct")
        rows = lineage.trained(ctx.ws.relative(out), digest(out), parents=[result["begin"]], run_id=ctx.run_id)
        return StageResult((ctx.write("lineage", rows),), (), {"not due": f"every {ctx.settings.ct.every} iterations"})
    return supervised.finish(ctx, result, manifest.read(ctx.ws, ctx.iteration).datasets("ct"))


STAGE = single(
    "ct",
    reads=(Record("manifest"), Record("promotion", previous=True)),
    writes=(Checkpoint("ct"), "lineage"),
    settings=("seed", "policy", "language_model", "ct"),
    work=_work,
    finish=_finish,
    needs=(TRAINING,),
)
