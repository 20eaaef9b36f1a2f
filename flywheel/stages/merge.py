"""merge: the specialists of the domains, interpolated in parameter space (section 2.6)."""

from __future__ import annotations

from pathlib import Path

from flywheel.policy.checkpoint import digest
from flywheel.stages.base import Context, StageResult, single
from flywheel.store import lineage
from flywheel.store.artifacts import Checkpoint


def _specialists(ctx: Context) -> dict[str, Path]:
    return {domain: ctx.ws.model(ctx.iteration, f"rl-{domain}") for domain in ctx.settings.synthesis.domains}


def _work(ctx: Context, folder: Path) -> dict:
    from flywheel.training.merge import merge  # brings torch, which who only asks for the pipeline does not need

    specialists = _specialists(ctx)
    weights = [ctx.settings.merge.weights[domain] for domain in specialists]
    merge(list(specialists.values()), weights, ctx.ws.model(ctx.iteration, "merged"))
    return {}


def _finish(ctx: Context, folder: Path, result: dict) -> StageResult:
    merged = ctx.ws.model(ctx.iteration, "merged")
    parents = [ctx.ws.relative(path) for path in _specialists(ctx).values()]
    rows = lineage.trained(ctx.ws.relative(merged), digest(merged), parents=parents, run_id=ctx.run_id)
    summary = {f"weight of {domain}": weight for domain, weight in ctx.settings.merge.weights.items()}
    return StageResult((ctx.write("lineage", rows),), (), summary | {"weights": digest(merged)})


STAGE = single(
    "merge",
    reads=(Checkpoint("rl-{domain}"),),
    writes=(Checkpoint("merged"), "lineage"),
    settings=("synthesis", "merge"),
    work=_work,
    finish=_finish,
)
