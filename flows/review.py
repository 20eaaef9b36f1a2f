"""A person decides a promotion: the flow pauses and Prefect's page shows the form."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Literal

import httpx
from prefect import pause_flow_run
from prefect.client.orchestration import get_client
from prefect.exceptions import FlowPauseTimeout, PrefectException
from prefect.input import RunInput
from prefect.runtime import flow_run
from pydantic import Field

from flows.beside import looking
from flows.notify import notify
from flywheel import settings
from flywheel.errors import FlywheelError
from flywheel.evaluation import case, review
from flywheel.progress import tell
from flywheel.settings import Promotion
from flywheel.stages.base import Context
from flywheel.workspace import label

_POLL_S = 2
_GRACE_S = 60  # after the deadline, for the answer to arrive that nobody decided
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
    longest = rule.review_timeout_s + (_GRACE_S if rule.unanswered == "keep" else 0)
    try:
        with _answered_elsewhere(ctx):
            answer = pause_flow_run(wait_for_input=form, timeout=int(longest), poll_interval=_POLL_S, key="promotion")
    except FlowPauseTimeout:
        raise FlywheelError(
            _nobody(rule), where="promotion.review_timeout_s", fix="decide with `flywheel review`, then run again"
        ) from None
    promote, decided = answer.decision == "promote", review.read(ctx.ws, ctx.iteration)
    if decided is None or (decided.promote, decided.reviewer) != (promote, answer.reviewer):
        decided = review.decide(
            ctx.ws, ctx.iteration, promote=promote, reviewer=answer.reviewer, comment=answer.comment
        )
    tell(ctx.stage, f"decided: {decided.words}")


@contextlib.contextmanager
def _answered_elsewhere(ctx: Context) -> Iterator[None]:
    """While the run is paused, a decision of `flywheel review` fills in the form in the reviewer's stead; and at the
    deadline, where it is so set, that nobody decided: a run whose pause ends by itself could only fail."""
    run_id, rule = flow_run.id, ctx.settings.promotion
    deadline = time.monotonic() + rule.review_timeout_s

    def look() -> None:
        # Prefect rejects answers until it has the form's schema; a file half written is read the next time.
        with contextlib.suppress(FlywheelError, httpx.HTTPError, PrefectException):
            decided = review.read(ctx.ws, ctx.iteration)
            if decided is None and rule.unanswered == "keep" and time.monotonic() > deadline:
                decided = review.decide(ctx.ws, ctx.iteration, promote=False, reviewer=_NOBODY, comment=_nobody(rule))
            if decided is not None:
                _fill_in(run_id, decided)

    with looking(look, _POLL_S):
        yield


def _nobody(rule: Promotion) -> str:
    return f"no reviewer answered in {rule.review_timeout_s:g} s"


def _fill_in(run_id: str, decided: review.Review) -> None:
    decision = "promote" if decided.promote else "keep the old model"
    answer = {"decision": decision, "reviewer": decided.reviewer, "comment": decided.comment}
    with get_client(sync_client=True) as client:
        client.resume_flow_run(run_id, run_input=answer)
