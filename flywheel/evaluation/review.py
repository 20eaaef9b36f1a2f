"""A reviewer's decision about a promotion: asked for in Prefect's form or by `flywheel review`, kept as one file.

The stage `promote` copies it into the table `reviews`; the file itself lies with the iteration, so git keeps it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from flywheel.errors import DataError
from flywheel.evaluation import rivals, verdicts
from flywheel.files import write_json
from flywheel.reward.verdict import of_rows
from flywheel.settings import Promotion
from flywheel.store import manifest, partitions
from flywheel.workspace import Workspace, label

_FIRST = ("gate_", "success_")  # figures that decide, told first
_SHOWN = 40


@dataclass(frozen=True)
class Review:
    """promote: yes or no. at: ISO 8601 with its zone. earlier: the decisions that it replaced, oldest first."""

    promote: bool
    reviewer: str
    comment: str
    at: str
    earlier: tuple[dict[str, Any], ...] = ()

    @property
    def words(self) -> str:
        return f"{'promote' if self.promote else 'keep'} ({self.reviewer}, {self.at})"


def path(ws: Workspace, iteration: int) -> Path:
    return ws.iteration(iteration) / "review.json"


def read(ws: Workspace, iteration: int) -> Review | None:
    """The decision, or None where nobody has decided. Raises DataError for a file that is not one."""
    file = path(ws, iteration)
    if not file.is_file():
        return None
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        return Review(**{**raw, "earlier": tuple(raw.get("earlier", ()))})
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"not a review: {error}", where=ws.relative(file), fix="delete it and decide again with `flywheel review`"
        ) from error


def write(ws: Workspace, iteration: int, *, promote: bool, reviewer: str, comment: str, at: datetime) -> Review:
    """Keep a decision; one that stood before is kept beside it. Raises DataError where the file is not a review."""
    before, earlier = read(ws, iteration), ()
    if before:
        facts = asdict(before)
        earlier = (*facts.pop("earlier"), facts)
    review = Review(promote, reviewer, comment, at.isoformat(timespec="seconds"), earlier)
    write_json(path(ws, iteration), asdict(review))
    return review


def case(ws: Workspace, iteration: int, rule: Promotion) -> str:
    """What the reviewer is told, as Markdown: what the gate says, the tasks on which the models differ, the figures."""
    metrics = partitions.read(ws, "metrics", iteration, "evaluate")
    figures = metrics.filter(pc.equal(metrics["step"], 0)).to_pylist()
    lines = [f"Promote the merged model of iteration {label(iteration)}?", ""]
    lines += [f"The rule `not_worse` would say: {reason}." for reason in verdicts.reasons(figures, rule)]
    lines += ["", *_differences(ws, iteration), ""]
    lines += ["| domain | figure | value | 95% interval | n |", "|---|---|---|---|---|"]
    for row in sorted(figures, key=lambda row: (not row["name"].startswith(_FIRST), row["domain"] != "all")):
        interval = "" if row["low"] is None else f"{row['low']:.2f} to {row['high']:.2f}"
        value = "" if row["value"] is None else f"{row['value']:.3f}"
        lines.append(f"| {row['domain']} | {row['name']} | {value} | {interval} | {row['n'] or ''} |")
    return "\n".join(lines)


def _differences(ws: Workspace, iteration: int) -> list[str]:
    """The tasks that the merged model alone solves, and those that it alone does not, each with its episode."""
    if not ws.partition("scores", iteration, "evaluate").is_dir():
        return []  # evaluated before scores of evaluations were kept
    scores = partitions.read(ws, "scores", iteration, "evaluate").to_pylist()
    solved = {name: bool(verdict.v) for name, verdict in of_rows(scores).items()}
    models: dict[str, list[dict]] = defaultdict(list)
    for row in partitions.read(ws, "trajectories", iteration, "evaluate").to_pylist():
        models[row["policy_version"]].append(row)
    before = manifest.read_promotion(ws, iteration - 1)
    known = {before["digest"], rivals.best(before)["digest"]}
    mine = {row["task_id"]: row for version in models.keys() - known for row in models.pop(version)}
    lines = []
    for rows in models.values():
        for row in rows:
            own = mine.get(row["task_id"])
            if own is None or solved.get(own["trajectory_id"]) == solved.get(row["trajectory_id"]):
                continue
            how = "solved now" if solved.get(own["trajectory_id"]) else "**no longer solved**"
            lines.append(f"- {how}: {own['world']}, {own['instruction'][:80]} (`flywheel view {own['trajectory_id']}`)")
    return ["Tasks on which the models differ:", "", *sorted(lines)[:_SHOWN]] if lines else []
