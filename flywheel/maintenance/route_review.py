"""Ask people about a sample of an iteration's routes before it trains (`routing.review`), and apply their answers.

An answer is an ordinary label: a line in `reviews/<reviewer>.jsonl`, whose queue names the iteration that asks. The
newest label of a trajectory counts; earlier ones stay in the file. The end of the review stores questions and answers
as a routing decision (`store/routing_decisions.py`), applied as by `flywheel data reroute`: routes, stores, lineage,
manifest. Labels given after it do not count for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import duckdb

from flywheel.config import Settings, run_lock
from flywheel.config.workspace import Workspace, iteration_label, iteration_run_id
from flywheel.maintenance import reroute
from flywheel.pipeline.stages.route import INCOMING
from flywheel.store import labels, routing_decisions
from flywheel.store.catalog import database
from flywheel.store.routing import training_stores
from flywheel.store.versioning import dvc_files, stage_records
from flywheel.utils.errors import BadInput, FlywheelError
from flywheel.utils.files import file_lock

GATED_STAGE = "ct"  # the first stage that trains on routed data: it waits for the review
ALL_LABELLED = "all were labelled"  # why a review ended
_WAIT_S = 120.0  # seconds to wait for a process that ends the review and writes stores

_EVEN, _DOUBTFUL = "even", "doubtful"

_QUERIES = database.read_queries("flywheel.maintenance")


@dataclass(frozen=True)
class RouteQuestion:
    """Hold a trajectory that people are asked to label: its route, with the reason, score and success behind it.

    destination: `sft`, `ct` or `quarantine`. score: 0 to 1; None: no scorer gave one. drawn: how it was sampled, `even`
    or `doubtful`. verdicts: one mapping per scorer (`scorer`, `score`, `threshold`, `success`, `detail`). label,
    reviewer, comment, at: the newest label; None where there is none.
    """

    trajectory_id: str
    domain: str
    world: str
    instruction: str
    destination: str
    reason: str
    score: float | None
    success: bool | None
    drawn: str
    verdicts: tuple[dict[str, Any], ...] = ()
    label: str | None = None
    reviewer: str | None = None
    comment: str | None = None
    at: datetime | None = None

    @property
    def decision_entry(self) -> dict[str, Any]:
        """Return the fields that a routing decision stores of this question (`RoutingDecision.looked`)."""
        names = ("trajectory_id", "domain", "drawn", "destination", "score", "success", "label", "reviewer", "comment")
        return {name: getattr(self, name) for name in names} | {"at": self.at.isoformat() if self.at else None}

    @property
    def line(self) -> str:
        """Describe the question in one line: domain, world, instruction, destination, verdicts."""
        verdicts = ", ".join(map(_verdict_text, self.verdicts))
        instruction = " ".join(self.instruction.split())[:120]
        return f"{self.domain}, {self.world}: {instruction}; went to {self.destination} ({verdicts or self.reason})"


def open_questions(ws: Workspace, iteration: int) -> list[RouteQuestion]:
    """List the trajectories of an iteration that people are asked to label, with their scores and newest labels.

    iteration: the one whose routes are reviewed. Every call gives the same trajectories in the same order; labelled
    ones stay in the list (`label` is None where there is no label yet). Returns [] where nothing is routed yet, no
    review is wanted (`routing.review`), or it has ended. Raises BadInput where the iteration's params.yaml is missing
    or wrong; DataError for damaged decisions, labels or tables; FlywheelError as `run_query`; DiskFull.
    """
    if not iteration or not reroute.is_routed(ws, iteration):
        return []
    settings = stage_records.load_iteration_params(ws, iteration)
    if not settings.routing.review or _has_ended(ws, iteration):
        return []
    with database.connect_catalog(ws, tables_alone=True) as connection:
        rows = _draw_sample(connection, iteration, settings)
        which = [row["trajectory_id"] for row in rows]
        scores = _read_scorer_verdicts(connection, iteration, which)
        newest = _newest_labels(connection, iteration, review_queue(ws, iteration))
    told = zip(which, rows, strict=True)
    return [RouteQuestion(**row, verdicts=tuple(scores.get(k, ())), **newest.get(k, {})) for k, row in told]


def label_trajectory(
    ws: Workspace, iteration: int, trajectory_id: str, said: str, *, reviewer: str, comment: str = ""
) -> None:
    """Record a person's label of a trajectory that is under review, or that waits for a person's verdict.

    Earlier labels stay in the file, the newest counts. said: the label, one of `labels.LABELS`. reviewer: the person's
    name. comment: may be "". Waits up to two minutes for other processes that label. Raises as `open_questions` and
    `labels.append_label`, BadInput where nobody is asked about that trajectory, DataError after the two minutes.
    """
    with _review_lock(ws):
        asked = {one.trajectory_id for one in open_questions(ws, iteration)}
        if trajectory_id not in asked | {row["trajectory_id"] for row in read_waiting(ws, iteration)}:
            raise _not_asked_error(ws, iteration, trajectory_id)
        _append_label(ws, iteration, trajectory_id, said, reviewer, comment)


def read_waiting(ws: Workspace, iteration: int) -> list[dict[str, Any]]:
    """Read the trajectories of an iteration whose verdict a person is to give (the scorer `person`), by id.

    Keys: `trajectory_id`, `domain`, `destination`, `score`, `success`, and of the newest label `label`, `reviewer`,
    `comment` and `at`; these are None where there is none. Returns [] where nothing is routed. Raises DataError for
    damaged labels or tables, FlywheelError as `run_query`.
    """
    if not iteration or not reroute.is_routed(ws, iteration):
        return []
    with database.connect_catalog(ws, tables_alone=True) as connection:
        return database.query_rows(connection, _QUERIES["waiting_for_person"], {"iteration": iteration})


def label_remaining(ws: Workspace, iteration: int, said: str, *, reviewer: str, comment: str = "") -> int:
    """Record the same label for all trajectories under review that have none; return their number, which may be 0.

    Those that another person is to label (`labels.SampleOwner`) are left out. iteration: the one whose routes are
    reviewed. said: the label, one of `labels.LABELS`. reviewer: the person's name. comment: may be "". Raises as
    `label_trajectory`, BadInput where no review is open; labels written before an error stay.
    """
    with _review_lock(ws):
        open_ones = open_questions(ws, iteration)
        if not open_ones:
            raise _not_asked_error(ws, iteration, "any trajectory")
        owners, key = labels.read_sample_owners(ws), labels.normalise_reviewer(reviewer)
        theirs = {name for name, one in owners.items() if one.owner != key}
        rest = [one for one in open_ones if one.label is None and one.trajectory_id not in theirs]
        for one in rest:
            _append_label(ws, iteration, one.trajectory_id, said, reviewer, comment)
    return len(rest)


def end_route_review(ws: Workspace, iteration: int, why: str) -> reroute.RouteDifference | None:
    """End the review of an iteration's routes with the labels given so far, and move trajectories accordingly.

    Call it under the workspace's lock. why: the reason in words, stored with the decision. Writes what
    `reroute.apply_reroute` does. Returns the changes; None where no review is open. Raises what `open_questions` and
    `reroute.resume_pending_decisions` do, DataError where others have been writing labels for two minutes,
    ContractBroken where the new stores break a contract.
    """
    with _review_lock(ws):
        reroute.settle_pending_decisions(ws)
        found = open_questions(ws, iteration)
        if not found:
            return None
        settings = stage_records.load_iteration_params(ws, iteration)
        rule = routing_decisions.current_routing_rule(ws, iteration)
        staged = reroute.get_staged_workspace(ws, iteration)
        reviewed = {"ended": why, "asked": [one.decision_entry for one in found]}
        with training_stores.connect_incoming(ws, iteration, INCOMING, staged) as connection:
            moved = reroute.reroute_on_connection(ws, connection, iteration, rule, settings, reviewed=reviewed)
        reroute.apply_decisions(ws, {iteration: reroute.make_decision(ws, moved, rule, reviewed=reviewed)})
    return moved


def require_route_review(ws: Workspace, iteration: int, stage: str) -> None:
    """Check, before a single stage is run, that it does not train on routes that people have yet to review.

    iteration, stage: those about to run; only the stage after routing, `ct`, is held back. Where all questions are
    labelled, it takes the workspace's lock and ends the review. Raises as `open_questions` and `end_route_review`,
    FlywheelError where labels are missing, WorkspaceBusy where another process holds that lock.
    """
    if stage != GATED_STAGE or not (found := open_questions(ws, iteration)):
        return
    if lacking := sum(one.label is None for one in found):
        raise FlywheelError(
            f"{lacking} of {len(found)} trajectories of iteration {iteration_label(iteration)} need a label before it "
            "trains",
            where="routing.review",
            fix="`flywheel review routes` lists them, and how to say what they are",
        )
    with run_lock.hold_workspace_reentrant(ws):
        end_route_review(ws, iteration, ALL_LABELLED)


def review_queue(ws: Workspace, iteration: int) -> str:
    """Return the name of the label queue of an iteration's route review, which its labels carry.

    An iteration that is discarded and begun again gets another name. Raises as `iteration_run_id`.
    """
    return f"routing {iteration_run_id(ws, iteration)}"


def _has_ended(ws: Workspace, iteration: int) -> bool:
    if GATED_STAGE in dvc_files.recorded_stages(ws, iteration):
        return True
    return any(decision.looked for decision in routing_decisions.read_decisions(ws, iteration))


def _draw_sample(connection: duckdb.DuckDBPyConnection, iteration: int, settings: Settings) -> list[dict[str, Any]]:
    """Draw the sample to review. It follows from the files and the seed alone, so every call gives the same.

    Returns at most `routing.review` rows of `trajectory_id`, `domain`, `world`, `instruction`, `destination`, `reason`,
    `score`, `success` and `drawn`: the evenly drawn ones first, then those that wait for a person (`doubtful` too, as
    many as there is room for), then doubtful ones. Where draws share a trajectory, further ones fill up the sample.
    """
    rule = settings.routing
    seed = f"{settings.seed}|{iteration}|"
    asked = {"iteration": iteration, "near": rule.review_near, "seed": seed}
    database.run_query(connection, _QUERIES["review_candidates"], asked)
    waiting, evenly, doubtful = (
        database.query_rows(connection, _QUERIES["review_in_turns"].format(which=which), {"size": rule.review})
        for which in ("waits", "true", "doubtful")
    )
    chosen = {row["trajectory_id"]: row | {"drawn": _DOUBTFUL} for row in waiting}
    left = rule.review - len(chosen)
    wanted = min(round(left * rule.review_doubtful), len(doubtful))
    chosen = {row["trajectory_id"]: row | {"drawn": _EVEN} for row in evenly[: left - wanted]} | chosen
    for rows, drawn in ((doubtful, _DOUBTFUL), (evenly, _EVEN)):
        for row in rows[: rule.review]:
            if len(chosen) < rule.review:
                chosen.setdefault(row["trajectory_id"], row | {"drawn": drawn})
    return list(chosen.values())


def _read_scorer_verdicts(
    connection: duckdb.DuckDBPyConnection, iteration: int, which: Iterable[str]
) -> dict[str, list[dict[str, Any]]]:
    """Return trajectory_id -> one row per scorer: `scorer`, `score`, `threshold`, `success`, `detail`."""
    asked = {"iteration": iteration, "which": list(which)}
    found: dict[str, list[dict[str, Any]]] = {}
    for row in database.query_rows(connection, _QUERIES["scorer_verdicts"], asked):
        found.setdefault(row.pop("trajectory_id"), []).append(row)
    return found


def _newest_labels(connection: duckdb.DuckDBPyConnection, iteration: int, queue: str) -> dict[str, dict[str, Any]]:
    """Return trajectory_id -> its newest label in the queue."""
    rows = database.query_rows(connection, _QUERIES["newest_labels"], {"iteration": iteration, "queue": queue})
    return {row.pop("trajectory_id"): row for row in rows}


def _append_label(ws: Workspace, iteration: int, trajectory_id: str, said: str, reviewer: str, comment: str) -> None:
    at, queue = datetime.now(UTC).isoformat(), review_queue(ws, iteration)
    labels.append_label(ws, labels.Label(trajectory_id, iteration, said, comment.strip(), reviewer, at, queue))


def _verdict_text(one: dict[str, Any]) -> str:
    if one["score"] is None:
        return f"{one['scorer'] or 'nobody'} gave no score: {one['detail']}"
    return f"{one['scorer']} {one['score']:.2f} of {one['threshold']:.2f}"


def _not_asked_error(ws: Workspace, iteration: int, trajectory_id: str) -> BadInput:
    why = (
        "it trains on what was routed already"
        if _has_ended(ws, iteration)
        else "`flywheel review routes` lists what is asked"
    )
    return BadInput(
        f"nobody is asked about {trajectory_id[:80]} of iteration {iteration_label(iteration)}",
        where="flywheel review routes",
        fix=f"{why}; other trajectories are labelled in the explorer (`flywheel ui`)",
    )


def _review_lock(ws: Workspace) -> Any:
    return file_lock(ws.state / "route-review.lock", _WAIT_S, "writing what people say of routes")
