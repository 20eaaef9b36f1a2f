"""Query figures over iterations and the curves of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb

from flywheel.store.catalog import database
from flywheel.ui.explorer.catalog_reader import QUERIES, CatalogReader, Row
from flywheel.ui.report import figures

_OVERVIEW = ("p_v1", "rises", "held_out_success", "funnel", "minutes", "runs", "curves")


def query_overview(asking: CatalogReader, other: CatalogReader | None = None) -> dict[str, Any]:
    """Query all iterations. other: of a workspace that is shown for comparison; it is returned as `other` with its
    `name`."""
    found = asking.ask(_query_workspace_overview)
    return found | {
        "other": None
        if other is None
        else other.ask(_query_workspace_overview) | {"name": _workspace_name(asking, other)}
    }


def _workspace_name(asking: CatalogReader, other: CatalogReader) -> str:
    """Of the other workspace: its folder's, or its path where both folders are called the same."""
    root = other.ws.root
    return root.name if root.name != asking.ws.root.name else str(root)


def _query_workspace_overview(connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    return {
        "iterations": figures.query_report_iterations(connection),
        "pass": _query_pass_at_k(connection),
        **{name: database.query_rows(connection, QUERIES[name]) for name in _OVERVIEW},
    }


def _query_pass_at_k(connection: duckdb.DuckDBPyConnection) -> list[Row]:
    """pass@k of each iteration for k = 1, 2, 4, ..., as far as its tasks have samples."""
    most = database.query_rows(connection, "SELECT coalesce(max(samples), 0) AS n FROM task_success")[0]["n"]
    found, k = [], 1
    while k <= most:
        rows = database.query_rows(
            connection, f"SELECT iteration, tasks, pass FROM pass_at({k:d}) WHERE domain = 'all'"
        )
        found += [row | {"k": k} for row in rows]
        k *= 2
    return found


def query_learning_curves(asking: CatalogReader, stage: str, name: str, iterations: Sequence[int]) -> list[Row]:
    """Query the curves of one figure, by iteration and domain."""
    return asking.rows(QUERIES["learning_curve"], {"stage": stage, "name": name, "iterations": list(iterations)})
