"""Promotions that wait for a person: what a decision rests on, and the decision, as `flywheel review` makes it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, StrictBool

from flywheel import run_lock
from flywheel.evaluation import case, review
from flywheel.store import frozen
from flywheel.workspace import Workspace


class Decision(BaseModel):
    """As a page sends it."""

    promote: StrictBool
    reviewer: str
    comment: str = ""


def waiting(ws: Workspace) -> list[dict[str, Any]]:
    """Each with the decisions so far, oldest first, and whether a run waits for it."""
    return [{"iteration": k, "decisions": _decisions(ws, k), "running": run_lock.held(ws)} for k in review.waiting(ws)]


def open_case(ws: Workspace, iteration: int) -> dict[str, Any]:
    """What the decision rests on. Raises BadInput where nobody is asked, or not any more."""
    if why := review.refused(ws, iteration):
        raise why
    return asdict(case.of(ws, iteration, frozen.load(ws, iteration).promotion)) | {
        "decisions": _decisions(ws, iteration),
        "running": run_lock.held(ws),
    }


def decide(ws: Workspace, iteration: int, decision: Decision) -> dict[str, Any]:
    """Raises BadInput, as `review.decide`."""
    review.decide(ws, iteration, **decision.model_dump())
    return {"decisions": _decisions(ws, iteration), "running": run_lock.held(ws)}


def _decisions(ws: Workspace, iteration: int) -> list[dict[str, Any]]:
    decided = review.read(ws, iteration)
    return (
        [{name: getattr(one, name) for name in ("promote", "reviewer", "comment", "at")} for one in decided.all]
        if decided
        else []
    )
