"""What the page of iterations shows: figures over time, why a model was promoted, curves of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb

from flywheel.explorer.asking import Asking, Row
from flywheel.report import facts
from flywheel.store import catalog

_POINTS = 20_000  # of curves, in one answer


def overview(asking: Asking, other: Asking | None = None) -> dict[str, Any]:
    """All iterations, from the catalogue's views. other: of a workspace that is laid over this one; it comes as `other`
    with its `name`."""
    found = asking.ask(_overview)
    return found | {"other": None if other is None else other.ask(_overview) | {"name": _name(asking, other)}}


def _name(asking: Asking, other: Asking) -> str:
    """Of the other workspace: its folder's, or its path where both folders are called the same."""
    root = other.ws.root
    return root.name if root.name != asking.ws.root.name else str(root)


def _overview(connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    return {
        "iterations": facts.iterations(connection),
        "p_v1": catalog.rows(connection, "FROM p_v1"),
        "rises": catalog.rows(connection, "FROM p_v1_rise"),
        "success": catalog.rows(connection, "FROM success"),
        "funnel": catalog.rows(connection, "FROM funnel"),
        "minutes": catalog.rows(connection, "FROM stage_minutes"),
        "pass": _pass(connection),
        "runs": catalog.rows(
            connection,
            """SELECT iteration, run_id, name, state FROM run_history
            WHERE kind = 'flow' AND stage = '' ORDER BY iteration, started_at""",
        ),
        "curves": catalog.rows(
            connection, "SELECT stage, name, count(*) AS n FROM learning_curves GROUP BY ALL ORDER BY stage, name"
        ),
    }


def _pass(connection: duckdb.DuckDBPyConnection) -> list[Row]:
    """pass@k of each iteration for k = 1, 2, 4, ..., as far as its tasks have samples."""
    most = catalog.rows(connection, "SELECT coalesce(max(samples), 0) AS n FROM task_success")[0]["n"]
    found, k = [], 1
    while k <= most:
        rows = catalog.rows(connection, f"SELECT iteration, tasks, pass FROM pass_at({k:d}) WHERE domain = 'all'")
        found += [row | {"k": k} for row in rows]
        k *= 2
    return found


def curves(asking: Asking, stage: str, name: str, iterations: Sequence[int]) -> list[Row]:
    """One figure's curves: by iteration and domain."""
    return asking.rows(
        f"""SELECT iteration, domain, step, value, low, high FROM learning_curves
        WHERE stage = $stage AND name = $name AND iteration IN (SELECT unnest($iterations)) AND value IS NOT NULL
        ORDER BY iteration, domain, step LIMIT {_POINTS:d}""",
        {"stage": stage, "name": name, "iterations": list(iterations)},
    )
