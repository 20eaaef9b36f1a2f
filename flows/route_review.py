"""People look at a sample of routes before an iteration trains: the flow pauses, and Prefect's page shows the form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from prefect.input import RunInput
from pydantic import Field, create_model

from flows.asking import Unanswered, ask
from flows.notify import notify
from flywheel import settings
from flywheel.errors import FlywheelError
from flywheel.progress import tell
from flywheel.settings import Routing
from flywheel.stages.base import Context
from flywheel.store import labels
from flywheel.upkeep import route_review
from flywheel.upkeep.route_review import Asked
from flywheel.workspace import label

_UNSEEN = "not looked at"
_ELSEWHERE = "flywheel"  # who fills in the form where all has been said, or the deadline has passed
_Label = Literal["not looked at", "solved", "not solved", "cannot tell"]


def ask_about_routes(ctx: Context) -> None:
    """Before the first stage that trains, where `routing.review` asks for it: pause until people have said of each
    trajectory of the sample whether it solved its task, then move those that are to be moved.

    A form that is sent ends the look, with what it leaves out. When routing.review_timeout_s has passed, what was said
    so far counts, or FlywheelError is raised (routing.unanswered).
    """
    if ctx.stage != route_review.STAGE or not (asked := route_review.asked(ctx.ws, ctx.iteration)):
        return
    rule = ctx.settings.routing
    ended = _answered(ctx, asked, rule) if _lacking(asked) else route_review.ALL
    moved = route_review.end(ctx.ws, ctx.iteration, ended)
    count = moved.count if moved else 0
    tell(ctx.stage, f"{ended}: {count} of {len(asked)} trajectories go to the other store")


def may_wait_s(rule: Routing, stage: str) -> float:
    """Seconds that the stage may wait for people."""
    return rule.review_timeout_s if stage == route_review.STAGE and rule.review else 0


def _answered(ctx: Context, asked: Sequence[Asked], rule: Routing) -> str:
    """Pause until it is over; returns why it is."""
    waits = f"waits for labels of {len(asked)} trajectories: open the run's page (`flywheel ui`), or `flywheel label`"
    tell(ctx.stage, waits)
    notify(ctx.ws, settings.load(ctx.ws.params).operations, "waiting", f"iteration {label(ctx.iteration)} {waits}")

    seen, lacking = None, len(asked)

    def elsewhere(late: bool) -> dict[str, Any] | None:
        """By `flywheel label` or the explorer; at the deadline, where it is so set, by nobody."""
        nonlocal seen, lacking
        if (now := labels.stamp(ctx.ws)) != seen:  # else the catalogue would be asked all day
            seen, lacking = now, _lacking(route_review.asked(ctx.ws, ctx.iteration))
        return {"reviewer": _ELSEWHERE} if not lacking or (late and rule.unanswered == "keep") else None

    try:
        answer = ask(
            _form(asked), "routes", timeout_s=rule.review_timeout_s, unanswered=rule.unanswered, elsewhere=elsewhere
        )
    except Unanswered as error:
        raise FlywheelError(
            f"{error.what}, and {_lacking(route_review.asked(ctx.ws, ctx.iteration))} trajectories have no label",
            where="routing.review_timeout_s",
            fix="`flywheel label` lists them; then run again",
        ) from None
    for name, one in _fields(asked).items():
        if (said := getattr(answer, name)) != _UNSEEN:
            route_review.label_one(
                ctx.ws, ctx.iteration, one.trajectory_id, said, reviewer=answer.reviewer, comment=answer.comment
            )
    lacking = _lacking(route_review.asked(ctx.ws, ctx.iteration))
    if not lacking:
        return route_review.ALL
    if answer.reviewer == _ELSEWHERE:
        return f"nobody labelled {lacking} of {len(asked)} in {rule.review_timeout_s:g} s"
    return f"{answer.reviewer} sent the form, with {lacking} of {len(asked)} not looked at"


def _lacking(asked: Sequence[Asked]) -> int:
    return sum(one.label is None for one in asked)


def _fields(asked: Sequence[Asked]) -> dict[str, Asked]:
    """Of the form, by their names."""
    return {f"trajectory_{number}": one for number, one in enumerate(asked, 1) if one.label is None}


def _form(asked: Sequence[Asked]) -> type[RunInput]:
    """A field a trajectory, those left out that have a label."""
    fields: dict[str, Any] = {
        name: (_Label, Field(_UNSEEN, title=f"{name.rpartition('_')[2]}. {one.trajectory_id}"))
        for name, one in _fields(asked).items()
    }
    named = Field(pattern=labels.TYPED, description="Your name: letters, digits, dots, dashes")
    fields |= {"reviewer": (str, named), "comment": (str, Field("", max_length=labels.COMMENT))}
    form = create_model("RouteReview", __base__=RunInput, **fields)
    return form.with_initial_data(description=_markdown(asked))


def _markdown(asked: Sequence[Asked]) -> str:
    lines = [
        "Did these trajectories solve their task? What is not looked at stays where it is. Each is replayed by the "
        "command behind it, or in the explorer (`flywheel ui`, Review, queue *Before training*).",
        "",
    ]
    lines += [
        f"- **{one.trajectory_id}** {one.line} (`flywheel view {one.trajectory_id}`)" for one in _fields(asked).values()
    ]
    return "\n".join(lines)
