"""Query the statistics of all iterations, and learning curves, for the explorer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb

from flywheel.store.catalog import database
from flywheel.ui.explorer.catalog_reader import QUERIES, CatalogReader, Row
from flywheel.ui.report import figures

_OVERVIEW = ("p_v1", "rises", "held_out_success", "funnel", "minutes", "runs", "curves")


def query_overview(asking: CatalogReader, other: CatalogReader | None = None) -> dict[str, Any]:
    """Query the overview of all iterations, and of those of another workspace for comparison.

    asking: reads the store. other: reads the second workspace; None: there is none. Returns lists of rows:
    `iterations`, `pass` (pass@k), `p_v1`, `rises`, `held_out_success`, `funnel`, `minutes`, `runs`, `curves`; and
    `other`: None, or the same keys for the second workspace, with its `name` (the folder's name, or the path where both
    folders have the same name). Raises as `CatalogReader.rows`.
    """
    found, compared = asking.ask(_query_workspace_overview), None
    if other is not None:
        root = other.ws.root
        name = root.name if root.name != asking.ws.root.name else str(root)
        compared = other.ask(_query_workspace_overview) | {"name": name}
    return found | {"other": compared}


def _query_workspace_overview(connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    return {
        "iterations": figures.query_report_iterations(connection),
        "pass": _query_pass_at_k(connection),
        **{name: database.query_rows(connection, QUERIES[name]) for name in _OVERVIEW},
    }


def _query_pass_at_k(connection: duckdb.DuckDBPyConnection) -> list[Row]:
    """Query pass@k of each iteration for k = 1, 2, 4, ..., up to the largest number of samples of a task."""
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
    """Query the curves of the metric `name` of `stage` in `iterations`.

    asking: reads the store. Returns rows of `iteration`, `domain`, `step`, `value`, `low`, `high`. Raises as
    `CatalogReader.rows`.
    """
    return asking.rows(QUERIES["learning_curve"], {"stage": stage, "name": name, "iterations": list(iterations)})
