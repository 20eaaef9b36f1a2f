"""Read and write the routing decisions made after an iteration was routed (`decisions.json`).

The stages `score` and `route` follow the last decision, so running them again gives its result. The n-th decision makes
version n of the iteration's stores, which lineage calls `sft@001.n`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flywheel.config.workspace import Workspace
from flywheel.utils.errors import DataError
from flywheel.utils.files import write_json

if TYPE_CHECKING:
    from pydantic import BaseModel

    from flywheel.config import Settings

SOLVED, NOT_SOLVED = "solved", "not solved"  # labels that move a trajectory; `cannot tell` does not


@dataclass(frozen=True)
class RoutingRule:
    """Hold how trajectories are routed; where a field is None, the iteration's own parameters and tasks decide.

    threshold: replaces the threshold of every task. scorers: names of the scorers, for all domains, or panels by domain
    as `routing.scorers` has them. band: trajectories with a score in [low, high) are doubted, and quarantined.
    settings: blocks of parameters that the scorers read, by name.
    """

    threshold: float | None = None
    scorers: tuple[str, ...] | Mapping[str, Any] | None = None
    band: tuple[float, float] | None = None
    settings: Mapping[str, Any] | None = None

    def apply_to(self, own: Settings) -> Settings:
        """Return the iteration's parameters `own` with this rule's scorers and the blocks that they read.

        It is a copy, or `own` itself if the rule names no scorers. Raises DataError for a block that this version does
        not know, as one of another version may be, and for wrong values of one.
        """
        if self.scorers is None:
            return own
        panels = self.scorers if isinstance(self.scorers, Mapping) else {"default": list(self.scorers)}
        blocks = {name: self._read_block(own, name) for name in self.settings or {}}
        return own.model_copy(update={**blocks, "routing": own.routing.model_copy(update={"scorers": panels})})

    def _read_block(self, own: Settings, name: str) -> BaseModel:
        from pydantic import BaseModel, ValidationError  # `status` and `query` need no rule applied

        from flywheel.utils.json_text import describe_first_fault

        known = getattr(own, name) if name in type(own).model_fields else None
        fault = "there is no such block"
        if isinstance(known, BaseModel):
            try:
                return type(known).model_validate(self.settings[name])
            except ValidationError as error:
                fault = describe_first_fault(error)
        raise DataError(
            f"the routing rule has parameters that this version cannot read: {fault}",
            where=f"decisions.json, settings.{name}",
            fix="`flywheel data reroute ITERATION --write` decides anew by the iteration's own parameters",
        )


@dataclass(frozen=True)
class RoutingDecision:
    """Hold a decision by which an iteration was routed again.

    rule: in force from then on. at: time, ISO 8601. routes: sha256 of the files of `routes` before the decision. moved:
    rows of `domain`, `from`, `to` and `trajectories`. mended: the table, expressions, condition and number of repaired
    rows; {} for none. looked: of a review by people (`maintenance/route_review.py`) why it `ended`, and what was
    `asked`, one mapping per trajectory with its label; {} where there was none. stale: recorded stages that read the
    version before.
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
    """Write an empty list of routing decisions, `decisions.json`, for `iteration`; an existing file stays.

    Raises DiskFull.
    """
    if not decisions_path(ws, iteration).exists():
        write_decisions(ws, iteration, ())


def read_decisions(ws: Workspace, iteration: int) -> tuple[RoutingDecision, ...]:
    """Read the iteration's routing decisions, oldest first; () for an iteration of an early version, without the file.

    Raises DataError for a damaged file.
    """
    try:
        raw = json.loads(decisions_path(ws, iteration).read_text(encoding="utf-8"))["decisions"]
        decided = tuple(parse_decision(one) for one in raw)
        human_verdicts(decided)  # raises where people's verdicts are damaged
        return decided
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        where = ws.relative(decisions_path(ws, iteration))
        raise DataError(f"not a list of decisions: {error!r}", where=where, fix="restore it from git") from None


def write_decisions(ws: Workspace, iteration: int, decided: tuple[RoutingDecision, ...]) -> None:
    """Replace the routing decisions of `iteration` by `decided`, oldest first; it changes `store_version`.

    Raises DiskFull.
    """
    write_json(decisions_path(ws, iteration), {"decisions": [asdict(one) for one in decided]})


def parse_decision(raw: dict[str, Any]) -> RoutingDecision:
    """Make a routing decision from `raw`, an object of the list that `write_decisions` writes.

    Raises KeyError, TypeError or AttributeError where it is none.
    """
    rule = {name: tuple(value) if isinstance(value, list) else value for name, value in raw["rule"].items()}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}
    if not isinstance(rule.get("settings"), Mapping | None):
        raise TypeError("settings of a rule are no object")
    return RoutingDecision(**{**values, "rule": RoutingRule(**rule)})


def current_routing_rule(ws: Workspace, iteration: int) -> RoutingRule:
    """Return the rule of the iteration's last routing decision; without a decision, a rule whose fields are all None.

    Raises DataError for a damaged file.
    """
    return next((decision.rule for decision in reversed(read_decisions(ws, iteration))), RoutingRule())


def store_version(ws: Workspace, iteration: int) -> int:
    """Return the version of the stores of `iteration`: its number of decisions, 0 as first routed.

    Raises DataError for a damaged file.
    """
    return len(read_decisions(ws, iteration))


def human_verdicts(decided: Iterable[RoutingDecision]) -> dict[str, tuple[bool, str]]:
    """Return people's verdicts from reviews of routes: trajectory_id -> (whether it solved its task, reviewer).

    They hold whatever rule comes later. decided: the iteration's decisions, oldest first. The last verdict of a
    trajectory counts; labels other than solved and not solved are left out. Raises KeyError, TypeError or
    AttributeError for a decision whose `looked` is damaged.
    """
    asked = (row for one in decided for row in one.looked.get("asked", ()) if row["label"] in (SOLVED, NOT_SOLVED))
    return {row["trajectory_id"]: (row["label"] == SOLVED, row["reviewer"]) for row in asked}
