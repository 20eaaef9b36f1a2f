"""People look at a sample of an iteration's routes before it trains (`routing.review`); what they say moves it.

What is said is a label as any other, a line in `reviews/<reviewer>.jsonl`, whose queue names the turn that asked: the
newest one of a trajectory counts, earlier ones stay. Once the look has ended, what was asked and said is a decision of
the iteration (`store/decisions.py`), carried out as `flywheel reroute` is: routes, stores, lineage, manifest. None
counts after that.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import duckdb

from flywheel import identity, run_lock
from flywheel.errors import BadInput, FlywheelError
from flywheel.files import locked
from flywheel.stages.route import INCOMING
from flywheel.store import build, catalog, decisions, dvc_lock, frozen, labels, route_sample, versioning
from flywheel.upkeep import again, reroute
from flywheel.workspace import Workspace, label

STAGE = "ct"  # the first that trains on what was routed: it waits
ALL = "all were labelled"  # why a look ended
_WAIT_S = 120.0  # for who ends the look: as long as stores are written


@dataclass(frozen=True)
class Asked:
    """A trajectory that somebody is asked about, where it went and why, and what its scorers say. drawn: evenly, or
    as a doubtful one. label, reviewer, comment, at: the newest that was said of it; None where nobody has."""

    trajectory_id: str
    domain: str
    world: str
    instruction: str
    destination: str
    reason: str
    score: float | None
    v: bool | None
    drawn: str
    verdicts: tuple[dict[str, Any], ...] = ()
    label: str | None = None
    reviewer: str | None = None
    comment: str | None = None
    at: datetime | None = None

    @property
    def line(self) -> str:
        """What it was, where it went, who said what."""
        said = ", ".join(_verdict(one) for one in self.verdicts)
        instruction = " ".join(self.instruction.split())[:120]
        return f"{self.domain}, {self.world}: {instruction}; went to {self.destination} ({said or self.reason})"


def asked(ws: Workspace, iteration: int) -> list[Asked]:
    """What a person is asked about now, in its order; none where the look is not asked for, or has ended."""
    if not _asks(ws, iteration):
        return []
    with catalog.connect(ws, tables_alone=True) as connection:
        rows = route_sample.draw(connection, iteration, frozen.load(ws, iteration))
        which = [row["trajectory_id"] for row in rows]
        scores = route_sample.verdicts(connection, iteration, which)
        said = _said(connection, iteration, queue(ws, iteration))
    return [
        Asked(**row, verdicts=tuple(scores.get(name, ())), **said.get(name, {}))
        for name, row in zip(which, rows, strict=True)
    ]


def newest(ws: Workspace) -> int:
    """The iteration of which somebody may be asked: the newest that was begun; 0 before the first."""
    return max(versioning.iterations(ws), default=0)


def label_one(
    ws: Workspace, iteration: int, trajectory_id: str, said: str, *, reviewer: str, comment: str = ""
) -> None:
    """Keep what somebody says of one that is asked about; one who said something before keeps that line too. Raises
    BadInput where nobody asks, or not any more."""
    with _one_at_a_time(ws):
        if trajectory_id not in {one.trajectory_id for one in asked(ws, iteration)}:
            raise _not_asked(ws, iteration, trajectory_id)
        _append(ws, iteration, trajectory_id, said, reviewer, comment)


def label_rest(ws: Workspace, iteration: int, said: str, *, reviewer: str, comment: str = "") -> int:
    """The same of all that nobody has labelled. Returns how many. Raises BadInput as `label_one`."""
    with _one_at_a_time(ws):
        open_ones = asked(ws, iteration)
        if not open_ones:
            raise _not_asked(ws, iteration, "any trajectory")
        rest = [one for one in open_ones if one.label is None]
        for one in rest:
            _append(ws, iteration, one.trajectory_id, said, reviewer, comment)
    return len(rest)


def end(ws: Workspace, iteration: int, why: str) -> reroute.Difference | None:
    """End the look with what was said so far, and move what is to be moved. Under the workspace's lock.

    why: in words, kept with the decision. Returns what moved; None where there is nothing to end.
    """
    with _one_at_a_time(ws):
        again.begin(ws)
        found = asked(ws, iteration)
        if not found:
            return None
        settings, rule = frozen.load(ws, iteration), decisions.rule(ws, iteration)
        looked = {"ended": why, "asked": [_kept(one) for one in found]}
        with build.connected(ws, iteration, INCOMING, again.staged(ws, iteration)) as connection:
            moved = reroute.route(ws, connection, iteration, rule, settings, looked=looked)
        again.carry_out(ws, [reroute.decision(ws, moved, rule, looked=looked)])
    return moved


def require(ws: Workspace, iteration: int, stage: str) -> None:
    """Before a stage is run by itself. Raises FlywheelError where it would train on what somebody is to look at
    first. All labelled, the look ends here."""
    if stage != STAGE or not (found := asked(ws, iteration)):
        return
    if lacking := sum(one.label is None for one in found):
        raise FlywheelError(
            f"{lacking} of {len(found)} trajectories of iteration {label(iteration)} need a label before it trains",
            where="routing.review",
            fix="`flywheel label` lists them, and how to say what they are",
        )
    with run_lock.hold_or_keep(ws):
        end(ws, iteration, ALL)


def queue(ws: Workspace, iteration: int) -> str:
    """Of labels that answer what this turn asks: one that was discarded and begun anew asks anew."""
    return f"routing {identity.of_turn(ws, iteration)}"


def _asks(ws: Workspace, iteration: int) -> bool:
    if (
        not iteration
        or not ws.partition("routes", iteration, build.STAGE).is_dir()
        or not ws.manifest(iteration).exists()
    ):
        return False
    if frozen.load(ws, iteration).routing.review == 0 or STAGE in dvc_lock.recorded(ws, iteration):
        return False
    return not any(one.looked for one in decisions.read(ws, iteration))


def _said(connection: duckdb.DuckDBPyConnection, iteration: int, queue: str) -> dict[str, dict[str, Any]]:
    """trajectory_id -> the newest label that answers the question."""
    rows = catalog.rows(
        connection,
        """SELECT trajectory_id, label, reviewer, comment, "at" FROM label_history
        WHERE iteration = $iteration AND queue = $queue
        QUALIFY row_number() OVER (PARTITION BY trajectory_id ORDER BY "at" DESC, line DESC) = 1""",
        {"iteration": iteration, "queue": queue},
    )
    return {row.pop("trajectory_id"): row for row in rows}


def _append(ws: Workspace, iteration: int, trajectory_id: str, said: str, reviewer: str, comment: str) -> None:
    at = datetime.now(UTC).isoformat()
    labels.append(ws, labels.Label(trajectory_id, iteration, said, comment.strip(), reviewer, at, queue(ws, iteration)))


def _kept(one: Asked) -> dict[str, Any]:
    """As it stands in the decision."""
    names = ("trajectory_id", "domain", "drawn", "destination", "score", "v", "label", "reviewer", "comment")
    return {name: getattr(one, name) for name in names} | {"at": one.at.isoformat() if one.at else None}


def _verdict(one: dict[str, Any]) -> str:
    if one["score"] is None:
        return f"{one['scorer'] or 'nobody'} gave no score: {one['detail']}"
    return f"{one['scorer']} {one['score']:.2f} of {one['threshold']:.2f}"


def _not_asked(ws: Workspace, iteration: int, trajectory_id: str) -> BadInput:
    ended = any(one.looked for one in decisions.read(ws, iteration))
    ended = ended or STAGE in dvc_lock.recorded(ws, iteration)
    why = "it trains on what was routed already" if ended else "`flywheel label` lists what is asked"
    return BadInput(
        f"nobody is asked about {trajectory_id[:80]} of iteration {label(iteration)}",
        where="flywheel label",
        fix=f"{why}; other trajectories are labelled in the explorer (`flywheel ui`)",
    )


def _one_at_a_time(ws: Workspace) -> Any:
    return locked(ws.state / "route-review.lock", _WAIT_S, "writing what people say of routes")
