"""One trajectory as a page: every screen with its action, and where the trajectory came from and went."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import duckdb

from flywheel.errors import BadInput
from flywheel.files import write_text
from flywheel.report import replay
from flywheel.report.page import render
from flywheel.store import catalog
from flywheel.workspace import Workspace, label


def view(ws: Workspace, trajectory_id: str, connection: duckdb.DuckDBPyConnection | None = None) -> Path:
    """Write `report/trajectories/<id>.html` and return its path. Raises BadInput for an unknown trajectory.

    connection: to the catalogue, where one is open already.
    """
    with contextlib.nullcontext(connection) if connection else catalog.connect(ws) as connection:
        found = replay.load(connection, trajectory_id)
        if found is None:
            near = catalog.rows(
                connection, "SELECT trajectory_id FROM trajectories ORDER BY iteration DESC, trajectory_id LIMIT 1"
            )
            hint = f"such as {near[0]['trajectory_id']}: " if near else ""
            raise BadInput(
                f"there is no trajectory {trajectory_id}",
                where=ws.root,
                fix=f'{hint}list them with `flywheel query "SELECT trajectory_id FROM trajectories"`',
            )
    path = ws.report / "trajectories" / f"{re.sub(r'[^0-9A-Za-z_.-]', '_', trajectory_id)}.html"
    write_text(path, render("trajectory.html", r=found, lines=_lines(found.facts)))
    return path


def _lines(facts: dict) -> list[tuple[str, str]]:
    lines = [
        ("Trajectory", f"{facts['trajectory_id']} (iteration {label(facts['iteration'])}, stage {facts['stage']})"),
        ("Task", f"{facts['task_id']} ({facts['split'] or 'no'} split)"),
        ("Acted", _join(facts["source"], facts["model"], facts["policy_version"])),
        ("Run", _join(facts["run"], facts["run_id"])),
        ("Score", "not scored" if facts["score"] is None else f"{facts['score']:.2f} by {facts['scorer']}"),
        ("Store", _join(facts["reason"]) if facts["destination"] else "not routed"),
        ("Trained", _join(*facts["trained_checkpoints"])),
    ]
    return [(name, value or "–") for name, value in lines]


def _join(*values: str | None) -> str:
    return ", ".join(value for value in values if value)
