"""A person decides a promotion: the flow pauses and Prefect's page shows the form."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from prefect import pause_flow_run
from prefect.exceptions import FlowPauseTimeout
from prefect.input import RunInput
from pydantic import Field

from flywheel.errors import FlywheelError
from flywheel.evaluation import review
from flywheel.progress import report
from flywheel.stages.base import Context

_POLL_S = 2


class PromotionReview(RunInput):
    """What the reviewer fills in."""

    decision: Literal["promote", "keep the old model"]
    reviewer: str = Field(min_length=1, description="Your name")
    comment: str = ""


def ask_reviewer(ctx: Context) -> None:
    """Before the stage `promote`, where the rule is `review` and nobody has decided yet: pause until someone does.

    Raises FlywheelError when promotion.review_timeout_s has passed.
    """
    rule = ctx.settings.promotion
    if ctx.stage != "promote" or rule.rule != "review" or review.read(ctx.ws, ctx.iteration) is not None:
        return
    report(ctx.stage, "waits for a reviewer: open the run's page (`flywheel ui`), or type `flywheel review`")
    form = PromotionReview.with_initial_data(description=review.case(ctx.ws, ctx.iteration))
    try:
        answer = pause_flow_run(
            wait_for_input=form, timeout=int(rule.review_timeout_s), poll_interval=_POLL_S, key="promotion"
        )
    except FlowPauseTimeout:
        raise FlywheelError(
            f"no reviewer answered in {rule.review_timeout_s:g} s", where="promotion.review_timeout_s",
            fix="decide with `flywheel review`, then run again",
        ) from None  # fmt: skip
    review.write(
        ctx.ws, ctx.iteration, promote=answer.decision == "promote", reviewer=answer.reviewer,
        comment=answer.comment, at=datetime.now(UTC),
    )  # fmt: skip
