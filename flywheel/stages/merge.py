"""merge: the specialists of the domains, interpolated in parameter space (section 2.6)."""

from __future__ import annotations

from pathlib import Path

from flywheel.policy.model import digest
from flywheel.stages.base import Context, StageResult, single
from flywheel.store import lineage
from flywheel.training.merge import merge


def _specialists(ctx: Context) -> dict[str, Path]:
    return {domain: ctx.ws.model(ctx.iteration, f"rl-{domain}") for domain in ctx.settings.synthesis.domains}


def _inputs(ctx: Context) -> dict:
    digests = {domain: digest(folder) for domain, folder in _specialists(ctx).items()}
    return {"specialists": digests, "weights": ctx.settings.merge.weights}


def _work(ctx: Context, folder: Path) -> dict:
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


STAGE = single("merge", _inputs, _work, _finish)
