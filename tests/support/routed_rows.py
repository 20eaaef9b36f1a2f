"""The routing of rows that are written down in a test: the SQL of the stage, on tables in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import duckdb
import pyarrow as pa

from flywheel.store.partitions import table_from_rows
from flywheel.store.routing import training_stores
from flywheel.store.schema import TABLES


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
        "incoming": table_from_rows("trajectories", trajectories),
        "judgements": table_from_rows("scores", scores),
        "broken": pa.table(reasons, pa.schema([("trajectory_id", pa.string()), ("reason", pa.string())])),
    }
    for name, rows in tables.items():
        connection.register("rows", rows)
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS FROM rows")
        connection.unregister("rows")
    training_stores.decide_routes(connection, verified_only=verified_only)
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
        for table, sql in training_stores.training_stores_sql(iteration).items()
    }
    aside = connection.execute(training_stores.QUARANTINED_SQL).to_arrow_table().to_pylist()
    return found | {"quarantine": list(training_stores.quarantine_rows(aside))}
