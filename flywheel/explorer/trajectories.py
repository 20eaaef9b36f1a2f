"""The list of trajectories: a page of it, how many there are, which values a column has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flywheel.explorer.asking import LISTED, Asking, Row
from flywheel.explorer.filters import asked, kind
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

    def work(connection) -> dict[str, Any]:
        total = catalog.rows(connection, f"SELECT count(*) AS n FROM {LISTED} WHERE {what.condition}", what.parameters)
        rows = catalog.rows(
            connection,
            f"""FROM {LISTED} WHERE {what.condition} ORDER BY {what.order}
            LIMIT {min(limit, MOST):d} OFFSET {offset:d}""",
            what.parameters,
        )
        screens = {
            row["trajectory_id"]: row["screen"]
            for row in catalog.rows(
                connection,
                """SELECT trajectory_id, arg_min(image_sha256, step) AS screen FROM steps
                WHERE trajectory_id IN (SELECT unnest($names)) AND iteration IN (SELECT unnest($iterations))
                GROUP BY ALL""",
                {
                    "names": [row["trajectory_id"] for row in rows],
                    "iterations": sorted({row["iteration"] for row in rows}),
                },
            )
        }
        return {"total": total[0]["n"], "rows": [row | {"screen": screens.get(row["trajectory_id"])} for row in rows]}

    return asking.ask(work, long=bool(search.strip()) and within != "instructions")


def values(asking: Asking, column: str) -> list[Row]:
    """The commonest values of a column, with their counts. Raises BadInput."""
    types = {row["name"]: row["type"] for row in asking.columns}
    asked(types, [f"{column}:filled"])
    return asking.rows(
        f"""SELECT "{column}"::VARCHAR AS value, count(*) AS n FROM {LISTED} WHERE "{column}" IS NOT NULL
        GROUP BY ALL ORDER BY n DESC, value LIMIT {_VALUES:d}"""
    )
