"""A person decides a promotion: the flow pauses and Prefect's page shows the form."""

from __future__ import annotations

from typing import Any, Literal

from prefect.input import RunInput
from pydantic import Field

from flows.asking import Unanswered, ask
from flows.notify import notify
from flywheel import settings
from flywheel.errors import FlywheelError
from flywheel.evaluation import case, review
from flywheel.progress import tell
from flywheel.settings import Promotion
from flywheel.stages.base import Context
from flywheel.workspace import label

_NOBODY = "nobody"


class PromotionReview(RunInput):
    """What the reviewer fills in."""

    decision: Literal["promote", "keep the old model"]
    reviewer: str = Field(min_length=1, max_length=review.REVIEWER, description="Your name")
    comment: str = Field("", max_length=review.COMMENT)


def ask_reviewer(ctx: Context) -> None:
    """Before the stage `promote`, where the rule is `review` and nobody has decided yet: pause until someone does.

    When promotion.review_timeout_s has passed the old model stays, or FlywheelError is raised (promotion.unanswered).
    """
    rule = ctx.settings.promotion
    if ctx.stage != "promote" or rule.rule != "review" or review.read(ctx.ws, ctx.iteration) is not None:
        return
    waits = (
        "waits for a reviewer: open the run's page (`flywheel ui`), or type `flywheel review "
        f"--iteration {ctx.iteration} --promote --reviewer NAME` (or --keep)"
    )
    tell(ctx.stage, waits)
    notify(ctx.ws, settings.load(ctx.ws.params).operations, "waiting", f"iteration {label(ctx.iteration)} {waits}")
    form = PromotionReview.with_initial_data(description=case.of(ctx.ws, ctx.iteration, rule).markdown())

    def elsewhere(late: bool) -> dict[str, Any] | None:
        """By `flywheel review` or the explorer; at the deadline, where it is so set, that nobody decided."""
        decided = review.read(ctx.ws, ctx.iteration)
        if decided is None and late and rule.unanswered == "keep":
            decided = review.decide(ctx.ws, ctx.iteration, promote=False, reviewer=_NOBODY, comment=_nobody(rule))
        return _filled_in(decided) if decided else None

    try:
        answer = ask(
            form, "promotion", timeout_s=rule.review_timeout_s, unanswered=rule.unanswered, elsewhere=elsewhere
        )
    except Unanswered:
        raise FlywheelError(
            _nobody(rule), where="promotion.review_timeout_s", fix="decide with `flywheel review`, then run again"
        ) from None
    promote, decided = answer.decision == "promote", review.read(ctx.ws, ctx.iteration)
    if decided is None or (decided.promote, decided.reviewer) != (promote, answer.reviewer):
        decided = review.decide(
            ctx.ws, ctx.iteration, promote=promote, reviewer=answer.reviewer, comment=answer.comment
        )
    tell(ctx.stage, f"decided: {decided.words}")


def _nobody(rule: Promotion) -> str:
    return f"no reviewer answered in {rule.review_timeout_s:g} s"


def _filled_in(decided: review.Review) -> dict[str, Any]:
    decision = "promote" if decided.promote else "keep the old model"
    return {"decision": decision, "reviewer": decided.reviewer, "comment": decided.comment}
