"""Pause a run until people answer a form: whether to promote a model, and whether routes are right."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import httpx
from prefect import pause_flow_run
from prefect.client.orchestration import get_client
from prefect.exceptions import FlowPauseTimeout, PrefectException
from prefect.input import RunInput
from prefect.runtime import flow_run
from pydantic import Field, create_model

from flows.notifications import notify
from flows.run_progress import StageRecorder
from flywheel import config
from flywheel.config import PromotionSettings, RoutingSettings
from flywheel.config.workspace import iteration_label
from flywheel.evaluation import promotion_review
from flywheel.maintenance import route_review
from flywheel.maintenance.route_review import RouteQuestion
from flywheel.pipeline.stage import StageContext
from flywheel.store import labels
from flywheel.utils.errors import FlywheelError
from flywheel.utils.processes import run_periodically
from flywheel.utils.progress import announce

# A run pauses until a form is filled in: on the run's page, or by a command.

_POLL_S = 2
_GRACE_S = 60  # after the deadline, for `elsewhere` to fill in the form


class InputTimeout(FlywheelError):
    """Signal that nobody filled in the form in time, where the settings make that an error."""


def pause_for_input(
    form: type[RunInput],
    key: str,
    *,
    timeout_s: float,
    unanswered: Literal["keep", "fail"],
    elsewhere: Callable[[bool], dict[str, Any] | None],
) -> Any:
    """Pause this flow until the form is filled in, and return it.

    form: class of the form on the run's page. key: of the pause, unique in the flow run. elsewhere: called every two
    seconds while the run is paused, with whether the deadline has passed; the values that it returns fill in the form,
    None does not. Raises InputTimeout after `timeout_s` seconds where `unanswered` is fail. Where it is keep,
    `elsewhere` must return values after the deadline: a run whose pause ends by itself could only fail.
    """
    longest = timeout_s + (_GRACE_S if unanswered == "keep" else 0)
    try:
        with _answer_elsewhere(elsewhere, time.monotonic() + timeout_s):
            return pause_flow_run(wait_for_input=form, timeout=int(longest), poll_interval=_POLL_S, key=key)
    except FlowPauseTimeout:
        raise InputTimeout(f"nobody answered in {timeout_s:g} s") from None


@contextlib.contextmanager
def _answer_elsewhere(elsewhere: Callable[[bool], dict[str, Any] | None], deadline: float) -> Iterator[None]:
    run_id = flow_run.id

    def look() -> None:
        # Prefect rejects answers until it has the form's schema; a file half written is read the next time.
        with contextlib.suppress(FlywheelError, httpx.HTTPError, PrefectException):
            if (answer := elsewhere(time.monotonic() > deadline)) is not None:
                with get_client(sync_client=True) as client:
                    client.resume_flow_run(run_id, run_input=answer)

    with run_periodically(look, _POLL_S):
        yield


# A person decides a promotion: the flow pauses and Prefect's page shows the form.

_NOBODY = "nobody"


class PromotionReview(RunInput):
    """Hold the form about a promotion that a reviewer fills in."""

    decision: Literal["promote", "keep the old model"]
    reviewer: str = Field(pattern=labels.REVIEWER_INPUT_PATTERN, description="Your name")
    comment: str = Field("", max_length=promotion_review.MAX_COMMENT_LENGTH)


def ask_reviewer(ctx: StageContext, record: StageRecorder) -> None:
    """Pause before the stage `promote`, where the rule is `review` and nobody has decided yet, until someone does.

    ctx: of the stage. record: its recorder, which records that it waits. Returns at once before any other stage, and
    where there is a decision. People are notified; the decision is written to the iteration's `review.json`. When
    promotion.review_timeout_s has passed the old model stays, or FlywheelError is raised (promotion.on_timeout). Raises
    as `build_promotion_report` and `decide_promotion`.
    """
    rule = ctx.settings.promotion
    if (
        ctx.stage != "promote"
        or rule.rule != "review"
        or promotion_review.read_review(ctx.ws, ctx.iteration) is not None
    ):
        return
    command = promotion_review.review_command(ctx.iteration)
    waits = f"waits for a reviewer: open the run's page (`flywheel ui`), or type {command}"
    announce(ctx.stage, waits)
    notify(
        ctx.ws,
        config.load_settings(ctx.ws.params).operations,
        "waiting",
        f"iteration {iteration_label(ctx.iteration)} {waits}",
    )
    form = PromotionReview.with_initial_data(
        description=promotion_review.build_promotion_report(ctx.ws, ctx.iteration, rule).markdown()
    )

    def elsewhere(late: bool) -> dict[str, Any] | None:
        """Return a decision of the command or the explorer; at the deadline, with on_timeout keep, decide as nobody."""
        decided = promotion_review.read_review(ctx.ws, ctx.iteration)
        if decided is None and late and rule.on_timeout == "keep":
            decided = promotion_review.decide_promotion(
                ctx.ws, ctx.iteration, promote=False, reviewer=_NOBODY, comment=_no_answer_text(rule)
            )
        return _form_answer(decided) if decided else None

    try:
        with record.wait_for("a reviewer", command):
            answer = pause_for_input(
                form, "promotion", timeout_s=rule.review_timeout_s, unanswered=rule.on_timeout, elsewhere=elsewhere
            )
    except InputTimeout:
        raise FlywheelError(
            _no_answer_text(rule),
            where="promotion.review_timeout_s",
            fix="decide with `flywheel review promotion`, then run again",
        ) from None
    promote, decided = answer.decision == "promote", promotion_review.read_review(ctx.ws, ctx.iteration)
    if decided is None or (decided.promote, decided.reviewer) != (promote, labels.normalise_reviewer(answer.reviewer)):
        decided = promotion_review.decide_promotion(
            ctx.ws, ctx.iteration, promote=promote, reviewer=answer.reviewer, comment=answer.comment
        )
    announce(ctx.stage, f"decided: {decided.words}")


def _no_answer_text(rule: PromotionSettings) -> str:
    return f"no reviewer answered in {rule.review_timeout_s:g} s"


def _form_answer(decided: promotion_review.PromotionDecision) -> dict[str, Any]:
    decision = "promote" if decided.promote else "keep the old model"
    return {"decision": decision, "reviewer": decided.reviewer, "comment": decided.comment}


# People look at a sample of routes before an iteration trains: the flow pauses, and Prefect's page shows the form.

_UNSEEN = "not looked at"
_ELSEWHERE = "flywheel"  # who fills in the form where all have a label, or the deadline has passed
_Label = Literal["not looked at", "solved", "not solved", "cannot tell"]


def ask_for_route_labels(ctx: StageContext, record: StageRecorder) -> None:
    """Pause before the first stage that trains, until people have labelled the sample of trajectories.

    It does so only where `routing.review` asks for it; before any other stage it returns at once. ctx: of the stage.
    record: its recorder, which records that it waits. People label each trajectory as having solved its task or not;
    then those whose label differs from their route go to the other store. A form that is sent ends the review, also
    with trajectories left out. When routing.review_timeout_s has passed, the labels so far count, or FlywheelError is
    raised (routing.on_timeout). Raises as `open_questions`, `label_trajectory` and `end_route_review`.
    """
    if ctx.stage != route_review.GATED_STAGE or not (asked := route_review.open_questions(ctx.ws, ctx.iteration)):
        return
    rule = ctx.settings.routing
    ended = _wait_for_labels(ctx, asked, rule, record) if _count_unlabelled(asked) else route_review.ALL_LABELLED
    moved = route_review.end_route_review(ctx.ws, ctx.iteration, ended)
    count = moved.count if moved else 0
    announce(ctx.stage, f"{ended}: {count} of {len(asked)} trajectories go to the other store")


def route_review_wait_s(rule: RoutingSettings, stage: str) -> float:
    """Return the seconds that the stage named `stage` may wait for people's labels; 0 where nobody is asked before it.

    rule: block `routing`.
    """
    return rule.review_timeout_s if stage == route_review.GATED_STAGE and rule.review else 0


def _wait_for_labels(
    ctx: StageContext, asked: Sequence[RouteQuestion], rule: RoutingSettings, record: StageRecorder
) -> str:
    """Pause until the review is over; return why it is."""
    command, whom = "`flywheel review routes`", f"labels of {len(asked)} trajectories"
    waits = f"waits for {whom}: open the run's page (`flywheel ui`), or type {command}"
    announce(ctx.stage, waits)
    notify(
        ctx.ws,
        config.load_settings(ctx.ws.params).operations,
        "waiting",
        f"iteration {iteration_label(ctx.iteration)} {waits}",
    )

    seen, lacking = None, len(asked)

    def elsewhere(late: bool) -> dict[str, Any] | None:
        """Fill in the form once all have a label, or at the deadline with on_timeout keep."""
        nonlocal seen, lacking
        if (now := labels.labels_stamp(ctx.ws)) != seen:  # else the catalogue would be queried all day
            seen, lacking = now, _count_unlabelled(route_review.open_questions(ctx.ws, ctx.iteration))
        return {"reviewer": _ELSEWHERE} if not lacking or (late and rule.on_timeout == "keep") else None

    try:
        with record.wait_for(whom, command):
            answer = pause_for_input(
                _route_review_form(asked),
                "routes",
                timeout_s=rule.review_timeout_s,
                unanswered=rule.on_timeout,
                elsewhere=elsewhere,
            )
    except InputTimeout as error:
        lacking = _count_unlabelled(route_review.open_questions(ctx.ws, ctx.iteration))
        raise FlywheelError(
            f"{error.what}, and {lacking} trajectories have no label",
            where="routing.review_timeout_s",
            fix="`flywheel review routes` lists them; then run again",
        ) from None
    for name, one in _form_fields(asked).items():
        if (said := getattr(answer, name)) != _UNSEEN:
            route_review.label_trajectory(
                ctx.ws, ctx.iteration, one.trajectory_id, said, reviewer=answer.reviewer, comment=answer.comment
            )
    lacking = _count_unlabelled(route_review.open_questions(ctx.ws, ctx.iteration))
    if not lacking:
        return route_review.ALL_LABELLED
    if answer.reviewer == _ELSEWHERE:
        return f"nobody labelled {lacking} of {len(asked)} in {rule.review_timeout_s:g} s"
    return f"{answer.reviewer} sent the form, with {lacking} of {len(asked)} not looked at"


def _count_unlabelled(asked: Sequence[RouteQuestion]) -> int:
    return sum(one.label is None for one in asked)


def _form_fields(asked: Sequence[RouteQuestion]) -> dict[str, RouteQuestion]:
    """Map the form's field names to the trajectories without a label."""
    return {f"trajectory_{number}": one for number, one in enumerate(asked, 1) if one.label is None}


def _route_review_form(asked: Sequence[RouteQuestion]) -> type[RunInput]:
    """Make the form: a field for each trajectory without a label, the reviewer's name and a comment."""
    fields: dict[str, Any] = {
        name: (_Label, Field(_UNSEEN, title=f"{name.rpartition('_')[2]}. {one.trajectory_id}"))
        for name, one in _form_fields(asked).items()
    }
    named = Field(pattern=labels.REVIEWER_INPUT_PATTERN, description="Your name")
    fields |= {"reviewer": (str, named), "comment": (str, Field("", max_length=labels.MAX_COMMENT_CHARACTERS))}
    form = create_model("RouteReview", __base__=RunInput, **fields)
    return form.with_initial_data(description=_route_review_markdown(asked))


def _route_review_markdown(asked: Sequence[RouteQuestion]) -> str:
    lines = [
        "Did these trajectories solve their task? What is not looked at stays where it is. Each is replayed by the "
        "command behind it, or in the explorer (`flywheel ui`, Review, queue *Before training*).",
        "",
    ]
    lines += [
        f"- **{one.trajectory_id}** {one.line} (`flywheel data view {one.trajectory_id}`)"
        for one in _form_fields(asked).values()
    ]
    return "\n".join(lines)
