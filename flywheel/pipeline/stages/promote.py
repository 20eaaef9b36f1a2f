"""Decide by the gate, or a reviewer, whether the merged model becomes the newest one (stage `promote`)."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from flywheel.evaluation import gate, promotion_review
from flywheel.pipeline.stage import Checkpoint, Partition, Record, StageContext, StageResult, single_shard_stage
from flywheel.pipeline.stages.route import INCOMING
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.store.routing import contracts
from flywheel.store.schema import metric_row
from flywheel.utils.errors import FlywheelError
from flywheel.utils.files import write_json


def _decision(ctx: StageContext) -> dict | None:
    decided = promotion_review.read_review(ctx.ws, ctx.iteration)
    return asdict(decided) if decided else None


def _work(ctx: StageContext, folder: Path) -> dict:
    # Checked again, since tables were written after `route`.
    contracts.check_table_contracts(ctx.ws, ctx.iteration, INCOMING)
    rule = ctx.settings.promotion
    decided = promotion_review.read_review(ctx.ws, ctx.iteration)
    rows = ctx.read_rows("metrics", "evaluate")
    judged, said = gate.parse_gate_metrics(rows, rule), gate.explain_gate_metrics(rows, rule)
    explanation = ". ".join(filter(None, (*said, gate.explain_disagreement(rows, rule))))
    if rule.rule == "review" or (decided and decided.overrides):
        return _reviewed(ctx, decided, explanation)
    if rule.rule == "always":
        return {"promoted": True, "reason": "the rule promotes always"}
    if not judged:
        return {"promoted": False, "reason": "its weights are those of the model that it would replace"}
    return {"promoted": all(found.verdict == "pass" for found in judged.values()), "reason": explanation}


def _reviewed(ctx: StageContext, decided: promotion_review.PromotionDecision | None, said: str) -> dict:
    """Return the reviewer's decision, with the gate's explanation `said` in its reason. Raises FlywheelError without
    one."""
    if decided is None:
        raise FlywheelError(
            "a reviewer has to decide this promotion",
            where="promotion.rule: review",
            fix=f"type {promotion_review.review_command(ctx.iteration)}",
        )
    reason = f"{decided.reviewer}: {decided.comment or 'no comment'}"
    if decided.overrides:
        reason = f"{decided.reviewer} overrode {decided.overrides}: {decided.comment}"
    return {"promoted": decided.promote, "reason": f"{reason} ({said})" if said else reason}


def _finish(ctx: StageContext, folder: Path, result: dict) -> StageResult:
    before = ctx.newest_model()
    merged = ctx.ws.model(ctx.iteration, "merged")
    made = {"model": ctx.ws.relative(merged), "digest": checkpoint_digest(merged)}
    newest = made if result["promoted"] else before
    outcomes = gate.read_held_out_outcomes(ctx.ws, ctx.iteration)
    best = gate.choose_best_model(before, made, result["promoted"], outcomes)
    write_json(
        ctx.ws.promotion(ctx.iteration),
        {**{key: newest[key] for key in ("model", "digest")}, "best": best, "iteration": ctx.iteration, **result},
    )
    decided = promotion_review.read_review(ctx.ws, ctx.iteration)
    rule = ctx.settings.promotion.rule
    made_by = [(one.reviewer, one.promote, one.comment, one.at) for one in (decided.history if decided else ())]
    by_rule = []
    if decided and decided.overrides:  # what the rule had decided stays
        by_rule = [row for row in ctx.read_rows("reviews", "promote") if row["reviewer"].startswith("rule ")]
    elif rule != "review":
        made_by.append((f"rule {rule}", result["promoted"], result["reason"], datetime.now(UTC).isoformat()))
    reviews = by_rule + [
        {
            "subject": ctx.ws.relative(merged),
            "kind": "promotion",
            "reviewer": reviewer,
            "decision": "promote" if promote else "keep",
            "comment": comment,
            "at": datetime.fromisoformat(at),
        }
        for reviewer, promote, comment, at in made_by
    ]
    figures = (metric_row("promoted", result["promoted"]),)
    summary = {"promoted": "yes" if result["promoted"] else "no", "because": result["reason"]}
    return StageResult((ctx.write("reviews", reviews),), figures, summary)


STAGE = single_shard_stage(
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
)
