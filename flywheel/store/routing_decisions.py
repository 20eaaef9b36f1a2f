"""Read and write the routing decisions made after an iteration was routed (`decisions.json`).

The stages `score` and `route` follow the last one, so running them again gives what stands there. The n-th decision
makes version n of the iteration's stores, which lineage calls `sft@001.n`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flywheel.config.workspace import Workspace
from flywheel.utils.errors import DataError
from flywheel.utils.files import write_json

if TYPE_CHECKING:
    from flywheel.config import Settings

SOLVED, NOT_SOLVED = "solved", "not solved"  # labels that move a trajectory; `cannot tell` does not


@dataclass(frozen=True)
class RoutingRule:
    """Say how trajectories are routed; what is None is as the iteration's own parameters and tasks say.

    threshold: every score is held against it. scorers: who judges, in all domains. band: a score from its low end on
    and below its high end is doubted, and its trajectory quarantined.
    """

    threshold: float | None = None
    scorers: tuple[str, ...] | None = None
    band: tuple[float, float] | None = None

    def apply_to(self, own: Settings) -> Settings:
        """Return the iteration's parameters `own` with the scorers of this rule; `own` stays."""
        if self.scorers is None:
            return own
        routing = own.routing.model_copy(update={"scorers": {"default": list(self.scorers)}})
        return own.model_copy(update={"routing": routing})


@dataclass(frozen=True)
class RoutingDecision:
    """Record that an iteration was routed again.

    rule: from then on. at: when, as ISO 8601. routes: sha256 of the files of `routes` that it was decided from. moved:
    `domain`, `from`, `to` and `trajectories`. mended: the table, the expressions, the condition and the number of rows;
    empty where none were. looked: of a sample that people looked at (`maintenance/route_review.py`) why the look
    `ended`, and what was `asked`, a mapping a trajectory, with what was said of it; empty where none was asked for.
    stale: recorded stages that had read the version before.
    """

    rule: RoutingRule
    at: str
    routes: tuple[str, ...]
    moved: tuple[dict[str, Any], ...] = ()
    mended: dict[str, Any] = field(default_factory=dict)
    looked: dict[str, Any] = field(default_factory=dict)
    stale: tuple[str, ...] = ()


def decisions_path(ws: Workspace, iteration: int) -> Path:
    """Return the path of the iteration's `decisions.json`."""
    return ws.iteration(iteration) / "decisions.json"


def init_decisions(ws: Workspace, iteration: int) -> None:
    """Write an empty list of decisions for `iteration`. An existing file stays. Raises DiskFull."""
    if not decisions_path(ws, iteration).exists():
        write_decisions(ws, iteration, ())


def read_decisions(ws: Workspace, iteration: int) -> tuple[RoutingDecision, ...]:
    """Read the iteration's decisions, oldest first; none where it is of a version that recorded none.

    Raises DataError for a damaged file.
    """
    try:
        raw = json.loads(decisions_path(ws, iteration).read_text(encoding="utf-8"))["decisions"]
        decided = tuple(parse_decision(one) for one in raw)
        human_verdicts(decided)  # what people said can be read too
        return decided
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        where = ws.relative(decisions_path(ws, iteration))
        raise DataError(f"not a list of decisions: {error!r}", where=where, fix="restore it from git") from None


def write_decisions(ws: Workspace, iteration: int, decided: tuple[RoutingDecision, ...]) -> None:
    """Replace the decisions of `iteration` by `decided`, oldest first; with them `store_version` changes. Raises
    DiskFull."""
    write_json(decisions_path(ws, iteration), {"decisions": [asdict(one) for one in decided]})


def parse_decision(raw: dict[str, Any]) -> RoutingDecision:
    """Make a decision of the JSON object `raw`, which has a decision's fields. Raises KeyError, TypeError or
    AttributeError where it is none."""
    rule = {name: tuple(value) if isinstance(value, list) else value for name, value in raw["rule"].items()}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}
    return RoutingDecision(**{**values, "rule": RoutingRule(**rule)})


def current_routing_rule(ws: Workspace, iteration: int) -> RoutingRule:
    """Return the rule of the iteration's last routing decision; where there is none, one whose parts are all None.

    Raises DataError for a damaged file.
    """
    return next((decision.rule for decision in reversed(read_decisions(ws, iteration))), RoutingRule())


def store_version(ws: Workspace, iteration: int) -> int:
    """Return the version of the stores of `iteration`: how many decisions it had; 0 as they were first routed.

    Raises DataError for a damaged file.
    """
    return len(read_decisions(ws, iteration))


def human_verdicts(decided: Iterable[RoutingDecision]) -> dict[str, tuple[bool, str]]:
    """Collect, by trajectory_id, what people said when routes were reviewed: whether it solved its task, and who.

    It holds whatever rule comes later. decided: the iteration's decisions, oldest first. The last verdict of a
    trajectory counts; labels but solved and not solved are left out.
    """
    asked = (row for one in decided for row in one.looked.get("asked", ()) if row["label"] in (SOLVED, NOT_SOLVED))
    return {row["trajectory_id"]: (row["label"] == SOLVED, row["reviewer"]) for row in asked}
