"""Merge the domains' specialists into one model by a weighted mean (stage `merge`; UI-TARS-2, section 2.6)."""

from __future__ import annotations

from pathlib import Path

from flywheel.pipeline.stage import Checkpoint, StageContext, StageResult, single_shard_stage
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.store.schema import metric_row


def _specialists(ctx: StageContext) -> dict[str, Path]:
    return {domain: ctx.ws.model(ctx.iteration, f"rl-{domain}") for domain in ctx.settings.synthesis.domains}


def _work(ctx: StageContext, folder: Path) -> dict:
    # Imported here because it imports torch, which reading the pipeline does not need.
    from flywheel.training.model_merging import merge_checkpoints

    specialists = _specialists(ctx)
    weights = [ctx.settings.merge.weights[domain] for domain in specialists]
    chosen = ctx.settings.adapter
    rank = (ctx.settings.merge.adapter_rank or chosen.rank) if chosen.method != "none" else None
    merged = merge_checkpoints(list(specialists.values()), weights, ctx.ws.model(ctx.iteration, "merged"), rank)
    return vars(merged) if merged else {}


def _finish(ctx: StageContext, folder: Path, result: dict) -> StageResult:
    merged = ctx.ws.model(ctx.iteration, "merged")
    links = ctx.write_lineage(merged, map(ctx.model_name, _specialists(ctx).values()))
    summary = {f"weight of {domain}": weight for domain, weight in ctx.settings.merge.weights.items()}
    figures = ()
    if result:
        figures = (metric_row("adapter_merge_error", result["error"]),)
        summary |= {"rank": result["rank"], "left out by the rank": f"{result['error']:.2%}"}
        if result["worst"]:
            summary["worst module"] = f"{result['worst']} ({result['worst_error']:.2%})"
    return StageResult((links,), figures, summary | {"weights": checkpoint_digest(merged)})


STAGE = single_shard_stage(
    "merge",
    reads=(Checkpoint("rl-{domain}"),),
    writes=(Checkpoint("merged"), "lineage"),
    settings=("synthesis", "adapter", "merge"),
    work=_work,
    finish=_finish,
)
