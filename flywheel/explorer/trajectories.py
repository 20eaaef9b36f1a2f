"""The list of trajectories: a page of it, how many there are, which values a column has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb

from flywheel.explorer.asking import LISTED, Asking, Row
from flywheel.explorer.filters import FOUND, asked, kind
from flywheel.store import catalog

MOST = 500  # rows of one answer
_VALUES = 60


def columns(asking: Asking) -> list[Row]:
    """Of the list: name, kind, what it means."""
    return [{**row, "kind": kind(row["type"])} for row in asking.columns]


def page(
    asking: Asking,
    *,
    where: Sequence[str] = (),
    search: str = "",
    within: str = "both",
    sort: str = "",
    offset: int = 0,
    limit: int = 100,
) -> dict[str, Any]:
    """Rows of the list, each with the sha256 of its first screen; `total`: how many there are in all. Raises
    BadInput."""
    types = {row["name"]: row["type"] for row in asking.columns}
    what = asked(types, where, search, within, sort)
    found = asking.words(what.in_thoughts) if what.in_thoughts else None

    def work(connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
        if found is not None:
            connection.register(FOUND, found)
        total = catalog.rows(connection, f"SELECT count(*) AS n FROM {LISTED} WHERE {what.condition}", what.parameters)
        rows = catalog.rows(
            connection,
            # The rows of the page first, then their columns: sorting whole rows took twice as long.
            f"""FROM {LISTED} WHERE rowid IN (
                SELECT rowid FROM {LISTED} WHERE {what.condition} ORDER BY {what.order}
                LIMIT {min(limit, MOST):d} OFFSET {offset:d}) ORDER BY {what.order}""",
            what.parameters,
        )
        screens = asking.index.screens([row["trajectory_id"] for row in rows])
        screens |= _screens(connection, [row for row in rows if row["trajectory_id"] not in screens])
        return {"total": total[0]["n"], "rows": [row | {"screen": screens.get(row["trajectory_id"])} for row in rows]}

    return asking.ask(work)


def _screens(connection: duckdb.DuckDBPyConnection, rows: Sequence[Row]) -> dict[str, str | None]:
    """First screens of trajectories that are not in the index yet: all steps of their iterations are looked through."""
    if not rows:
        return {}
    found = catalog.rows(
        connection,
        """SELECT trajectory_id, arg_min(image_sha256, step) AS screen FROM steps
        WHERE trajectory_id IN (SELECT unnest($names)) AND iteration IN (SELECT unnest($iterations)) GROUP BY ALL""",
        {"names": [row["trajectory_id"] for row in rows], "iterations": sorted({row["iteration"] for row in rows})},
    )
    return {row["trajectory_id"]: row["screen"] for row in found}


def values(asking: Asking, column: str) -> list[Row]:
    """The commonest values of a column, with their counts. Raises BadInput."""
    types = {row["name"]: row["type"] for row in asking.columns}
    asked(types, [f"{column}:filled"])
    return asking.rows(
        f"""SELECT "{column}"::VARCHAR AS value, count(*) AS n FROM {LISTED} WHERE "{column}" IS NOT NULL
        GROUP BY ALL ORDER BY n DESC, value LIMIT {_VALUES:d}"""
    )
