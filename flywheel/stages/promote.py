"""promote: the gate decides whether the merged model becomes the newest, by what `evaluate` found."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from flywheel.errors import FlywheelError
from flywheel.evaluation import review, rivals, verdicts
from flywheel.files import write_json
from flywheel.policy.checkpoint import digest
from flywheel.stages import inputs
from flywheel.stages.base import Context, StageResult, single
from flywheel.stages.route import INCOMING
from flywheel.store import judging, metrics
from flywheel.store.artifacts import Checkpoint, Partition, Record


def _decision(ctx: Context) -> dict | None:
    decided = review.read(ctx.ws, ctx.iteration)
    return asdict(decided) if decided else None


def _work(ctx: Context, folder: Path) -> dict:
    judging.check_tables(ctx.ws, ctx.iteration, INCOMING)  # once more: of what was trained on and played since `route`
    rule = ctx.settings.promotion
    if rule.rule == "always":
        return {"promoted": True, "reason": "the rule promotes always"}
    rows = inputs.rows(ctx, "metrics", "evaluate")
    judged, said = verdicts.judgements(rows, rule), "; ".join(verdicts.reasons(rows, rule))
    if rule.rule == "review":
        return _reviewed(ctx, said)
    if not judged:
        return {"promoted": False, "reason": "its weights are those of the model that it would replace"}
    return {"promoted": all(found.verdict == "pass" for found in judged.values()), "reason": said}


def _reviewed(ctx: Context, said: str) -> dict:
    """The decision of a person, with what `not_worse` would have said beside it."""
    decided = review.read(ctx.ws, ctx.iteration)
    if decided is None:
        raise FlywheelError(
            "a reviewer has to decide this promotion",
            where="promotion.rule: review",
            fix=f"type `flywheel review --iteration {ctx.iteration} --promote --reviewer NAME` (or --keep)",
        )
    reason = f"{decided.reviewer}: {decided.comment or 'no comment'}"
    return {"promoted": decided.promote, "reason": f"{reason} ({said})" if said else reason}


def _finish(ctx: Context, folder: Path, result: dict) -> StageResult:
    before = inputs.newest_model(ctx)
    merged = ctx.ws.model(ctx.iteration, "merged")
    made = {"model": ctx.ws.relative(merged), "digest": digest(merged)}
    newest = made if result["promoted"] else before
    outcomes = rivals.outcomes(ctx.ws, ctx.iteration)
    best = rivals.best_after(before, made, result["promoted"], outcomes)
    write_json(
        ctx.ws.promotion(ctx.iteration),
        {**{key: newest[key] for key in ("model", "digest")}, "best": best, "iteration": ctx.iteration, **result},
    )
    decided = review.read(ctx.ws, ctx.iteration)
    reviews = [
        {
            "subject": ctx.ws.relative(merged),
            "kind": "promotion",
            "reviewer": one.reviewer,
            "decision": "promote" if one.promote else "keep",
            "comment": one.comment,
            "at": datetime.fromisoformat(one.at),
        }
        for one in (decided.all if decided else ())
    ]
    figures = (metrics.row("promoted", result["promoted"]),)
    summary = {"promoted": "yes" if result["promoted"] else "no", "because": result["reason"]}
    return StageResult((ctx.write("reviews", reviews),), figures, summary)


STAGE = single(
    "promote",
    reads=(
        Partition("metrics", "evaluate"),
        Record("held_out"),
        Checkpoint("merged"),
        Record("promotion", previous=True),
    ),
    writes=("reviews", Record("promotion")),
    settings=("promotion",),
    work=_work,
    finish=_finish,
    extra=_decision,
    judges=True,
)
