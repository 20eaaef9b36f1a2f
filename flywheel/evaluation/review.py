"""A reviewer's decision about a promotion: asked for in Prefect's form or by `flywheel review`, kept as one file.

The stage `promote` copies it into the table `reviews`; the file itself lies with the iteration, so git keeps it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import pyarrow.compute as pc

from flywheel.errors import DataError
from flywheel.store import partitions
from flywheel.workspace import Workspace, label


@dataclass(frozen=True)
class Review:
    """promote: yes or no. at: ISO 8601 with its zone."""

    promote: bool
    reviewer: str
    comment: str
    at: str


def path(ws: Workspace, iteration: int) -> Path:
    return ws.iteration(iteration) / "review.json"


def read(ws: Workspace, iteration: int) -> Review | None:
    """The decision, or None where nobody has decided. Raises DataError for a file that is not one."""
    file = path(ws, iteration)
    if not file.is_file():
        return None
    try:
        return Review(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise DataError(
            f"not a review: {error}", where=ws.relative(file), fix="delete it and decide again with `flywheel review`"
        ) from error


def write(ws: Workspace, iteration: int, *, promote: bool, reviewer: str, comment: str, at: datetime) -> Review:
    review = Review(promote, reviewer, comment, at.isoformat(timespec="seconds"))
    partitions.write_json(path(ws, iteration), asdict(review))
    return review


def case(ws: Workspace, iteration: int) -> str:
    """What the reviewer is told: the measured figures of the candidate and the model it would replace, as Markdown."""
    metrics = partitions.read(ws, "metrics", iteration, "evaluate")
    figures = metrics.filter(pc.equal(metrics["step"], 0)).to_pylist()
    lines = [f"Promote the merged model of iteration {label(iteration)}?", ""]
    lines += ["| domain | figure | value | 95% interval |", "|---|---|---|---|"]
    for row in figures:
        interval = "" if row["low"] is None else f"{row['low']:.2f} to {row['high']:.2f}"
        lines.append(f"| {row['domain']} | {row['name']} | {row['value']:.3f} | {interval} |")
    return "\n".join(lines)
