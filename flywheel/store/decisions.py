"""What was decided again of an iteration after it was routed: `iterations/NNN/decisions.json`, the newest last.

The stages `score` and `route` go by the last one, so whoever runs them again gets what stands there. The n-th decision
makes version n of the iteration's stores, which lineage calls `sft@001.n`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flywheel.errors import DataError
from flywheel.files import write_json
from flywheel.settings import Settings
from flywheel.workspace import Workspace

SOLVED, NOT_SOLVED = "solved", "not solved"  # labels that move a trajectory; `cannot tell` does not


@dataclass(frozen=True)
class Rule:
    """By what trajectories are decided; what is None is as the iteration's own parameters and tasks say.

    threshold: every score is held against it. scorers: who judges, in all domains. band: a score from its low end on
    and below its high end is doubted, and its trajectory set aside.
    """

    threshold: float | None = None
    scorers: tuple[str, ...] | None = None
    band: tuple[float, float] | None = None

    def settings(self, own: Settings) -> Settings:
        """The iteration's parameters with the scorers of this rule."""
        if self.scorers is None:
            return own
        routing = own.routing.model_copy(update={"scorers": {"default": list(self.scorers)}})
        return own.model_copy(update={"routing": routing})


@dataclass(frozen=True)
class Decision:
    """rule: from then on. at: when, as ISO 8601. routes: sha256 of the files of `routes` that it was decided from.
    moved: `domain`, `from`, `to` and `trajectories`. mended: the table, the expressions, the condition and the number
    of rows; empty where none were. looked: of a sample that people looked at (`upkeep/route_review.py`) why the look
    `ended`, and what was `asked`, a mapping a trajectory, with what was said of it; empty where none was asked for.
    stale: recorded stages that had read the version before."""

    rule: Rule
    at: str
    routes: tuple[str, ...]
    moved: tuple[dict[str, Any], ...] = ()
    mended: dict[str, Any] = field(default_factory=dict)
    looked: dict[str, Any] = field(default_factory=dict)
    stale: tuple[str, ...] = ()


def path(ws: Workspace, iteration: int) -> Path:
    return ws.iteration(iteration) / "decisions.json"


def begin(ws: Workspace, iteration: int) -> None:
    """None so far. An existing file is kept."""
    if not path(ws, iteration).exists():
        write(ws, iteration, ())


def read(ws: Workspace, iteration: int) -> tuple[Decision, ...]:
    """Oldest first; none where the iteration is of a version that knew of none. Raises DataError."""
    try:
        raw = json.loads(path(ws, iteration).read_text(encoding="utf-8"))["decisions"]
        return tuple(decision(one) for one in raw)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        where = ws.relative(path(ws, iteration))
        raise DataError(f"not a list of decisions: {error!r}", where=where, fix="restore it from git") from None


def write(ws: Workspace, iteration: int, decided: tuple[Decision, ...]) -> None:
    write_json(path(ws, iteration), {"decisions": [asdict(one) for one in decided]})


def decision(raw: dict[str, Any]) -> Decision:
    """From JSON. Raises KeyError or TypeError."""
    rule = {name: tuple(value) if isinstance(value, list) else value for name, value in raw["rule"].items()}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}
    return Decision(**{**values, "rule": Rule(**rule)})


def rule(ws: Workspace, iteration: int) -> Rule:
    """By what the iteration is decided now."""
    return next((one.rule for one in reversed(read(ws, iteration))), Rule())


def version(ws: Workspace, iteration: int) -> int:
    """Of its stores; 0: as they were first decided."""
    return len(read(ws, iteration))


@dataclass(frozen=True)
class Said:
    """What a person says of a trajectory: whether it solved its task."""

    solved: bool
    reviewer: str


def said(decided: Iterable[Decision]) -> dict[str, Said]:
    """trajectory_id -> what a person said of it before its iteration trained; it stands whatever rule comes later."""
    return {
        row["trajectory_id"]: Said(row["label"] == SOLVED, row["reviewer"])
        for one in decided
        for row in one.looked.get("asked", ())
        if row["label"] in (SOLVED, NOT_SOLVED)
    }
