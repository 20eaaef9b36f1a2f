"""promote: the gate decides whether the merged model becomes the newest, by the paired figures of `evaluate`."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from flywheel.errors import FlywheelError
from flywheel.evaluation import gate, review
from flywheel.policy.model import digest
from flywheel.stages import data
from flywheel.stages.base import Context, StageResult, single
from flywheel.store import contracts, metrics
from flywheel.store.partitions import write_json


def _inputs(ctx: Context) -> dict:
    decided = review.read(ctx.ws, ctx.iteration)
    return {
        "partitions": data.digests(ctx, [("metrics", "evaluate")]), "promotion": ctx.settings.promotion.model_dump(),
        "before": data.newest_model(ctx), "review": asdict(decided) if decided else None,
    }  # fmt: skip


def _work(ctx: Context, folder: Path) -> dict:
    contracts.check_tables(ctx.ws, ctx.iteration)  # once more: of what was trained on and played since `route`
    figures = {(row["domain"], row["name"]): row for row in data.rows(ctx, "metrics", "evaluate")}
    difference = figures[metrics.ALL, "success_difference"]
    decision = gate.by_rule(
        ctx.settings.promotion.rule, ctx.settings.promotion.margin,
        difference["value"], difference["low"], difference["high"],
    )  # fmt: skip
    promote, reason = decision.promote, decision.reason
    if promote is None:
        decided = review.read(ctx.ws, ctx.iteration)
        if decided is None:
            raise FlywheelError(
                "a reviewer has to decide this promotion", where="promotion.rule: review",
                fix=f"type `flywheel review --iteration {ctx.iteration} --promote --reviewer NAME` (or --keep)",
            )  # fmt: skip
        promote, reason = decided.promote, f"{decided.reviewer}: {decided.comment or 'no comment'}"
    return {"promoted": promote, "reason": reason}


def _finish(ctx: Context, folder: Path, result: dict) -> StageResult:
    before = data.newest_model(ctx)
    merged = ctx.ws.model(ctx.iteration, "merged")
    newest = {"model": ctx.ws.relative(merged), "digest": digest(merged)} if result["promoted"] else before
    write_json(
        ctx.ws.promotion(ctx.iteration),
        {**{key: newest[key] for key in ("model", "digest")}, "iteration": ctx.iteration, **result},
    )
    decided, reviews = review.read(ctx.ws, ctx.iteration), []
    if decided:
        reviews.append(
            {
                "subject": ctx.ws.relative(merged),
                "kind": "promotion",
                "reviewer": decided.reviewer,
                "decision": "promote" if decided.promote else "keep",
                "comment": decided.comment,
                "at": datetime.fromisoformat(decided.at),
            }
        )
    figures = (metrics.row("promoted", result["promoted"]),)
    summary = {"promoted": "yes" if result["promoted"] else "no", "because": result["reason"]}
    return StageResult((ctx.write("reviews", reviews),), figures, summary)


STAGE = single("promote", _inputs, _work, _finish)
