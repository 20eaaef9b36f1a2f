"""The routing of rows that are written down in a test: the SQL of the stage, on tables in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import duckdb
import pyarrow as pa

from flywheel.schema import TABLES
from flywheel.store import routing
from flywheel.store.partitions import from_rows


@cache
def _open() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _connection(
    trajectories: Iterable[Mapping], scores: Iterable[Mapping], broken: Mapping[str, str] | None, verified_only: bool
) -> duckdb.DuckDBPyConnection:
    connection = _open()
    reasons = {"trajectory_id": list(broken or {}), "reason": list((broken or {}).values())}
    tables = {
        "incoming": from_rows("trajectories", trajectories),
        "judgements": from_rows("scores", scores),
        "broken": pa.table(reasons, pa.schema([("trajectory_id", pa.string()), ("reason", pa.string())])),
    }
    for name, rows in tables.items():
        connection.register("rows", rows)
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS FROM rows")
        connection.unregister("rows")
    routing.decide(connection, verified_only=verified_only)
    connection.execute("CREATE OR REPLACE TEMP TABLE weights (trajectory_id VARCHAR, weight DOUBLE)")
    return connection


def route(
    trajectories: Iterable[Mapping],
    scores: Iterable[Mapping],
    broken: Mapping[str, str] | None = None,
    *,
    verified_only: bool = True,
) -> list[dict]:
    """Rows of `routes`, by trajectory_id."""
    return stores(trajectories, scores, broken, verified_only=verified_only)["routes"]


def stores(
    trajectories: Iterable[Mapping],
    scores: Iterable[Mapping],
    broken: Mapping[str, str] | None = None,
    *,
    verified_only: bool = True,
    iteration: int = 1,
) -> dict[str, list[dict]]:
    """Rows of all tables that routing writes."""
    connection = _connection(trajectories, scores, broken, verified_only)
    found = {
        table: connection.execute(sql).to_arrow_table().cast(TABLES[table]).to_pylist()
        for table, sql in routing.stores(iteration).items()
    }
    aside = connection.execute(routing.SET_ASIDE).to_arrow_table().to_pylist()
    return found | {"quarantine": list(routing.set_aside(aside))}
