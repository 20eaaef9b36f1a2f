"""Build the training stores of an iteration from what came in: check, judge, route, write, check again.

From Parquet to Parquet in bounded memory, whatever came in; the decisions are in `routing.py`, the promises in
`contracts.py`. What is built lies beside the workspace's data until all of it has passed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from flywheel.errors import ContractBroken, DataError
from flywheel.schema import TABLES
from flywheel.settings import Settings
from flywheel.store import catalog, contracts, expectations, metrics, partitions, routing
from flywheel.workspace import Workspace, label

STAGE = "route"
WRITTEN = ("routes", "sft", "ct", "quarantine", "lineage")
_MEMORY = "1GB"  # of DuckDB, which goes on on disk beyond it
_ROWS_AT_ONCE = 20_000


@dataclass(frozen=True)
class Built:
    """metrics: rows for the table `metrics`, not written here. routed: destination -> trajectories. reasons: of the
    trajectories set aside -> how many. orphans: rows that belong to none."""

    metrics: tuple[dict, ...]
    routed: dict[str, int]
    reasons: dict[str, int]
    orphans: int


def build(
    ws: Workspace, iteration: int, settings: Settings, read: Sequence[tuple[str, str]], staged: Workspace
) -> Built:
    """Route the trajectories that came in; `routes`, `sft`, `ct`, `quarantine` and `lineage` are written to `staged`,
    from where `publish` takes them.

    read: (table, stage) of all that came in. Raises DataError for a damaged partition or where nothing came in,
    ContractBroken where too many rows break a contract, or the stores one that spans tables.
    """
    sources = [stage for table, stage in read if table == "trajectories"]
    for table, stage in read:
        partitions.verify(ws, table, iteration, stage)
    with catalog.connect(ws) as connection:
        connection.execute(f"SET memory_limit = '{_MEMORY}'")
        connection.execute("SET temp_directory = $folder", {"folder": str(ws.state / "duckdb")})
        stages = ", ".join(f"'{stage}'" for stage in sources)
        connection.execute(
            f"CREATE TEMP VIEW incoming AS FROM trajectories WHERE iteration = {iteration} AND stage IN ({stages})"
        )
        judged = contracts.judge(connection, iteration, sources)
        page = threading.Thread(target=expectations.write_page, args=(ws, iteration, judged))
        page.start()  # beside the rest: seconds of other libraries' imports
        try:
            _not_too_many(connection, iteration, settings.routing.broken_limit)
            routing.decide(connection, verified_only=settings.sft.verified_only)
            _write(connection, staged, iteration)
            figures = _figures(connection)
        finally:
            page.join()
    contracts.check_tables(ws, iteration, sources, staged)
    return figures


def publish(ws: Workspace, iteration: int, staged: Workspace) -> tuple[partitions.PartitionManifest, ...]:
    """Make what was built the workspace's."""
    return tuple(partitions.adopt(ws, staged, table, iteration, STAGE) for table in WRITTEN)


def _not_too_many(connection: duckdb.DuckDBPyConnection, iteration: int, limit: float) -> None:
    came, broken = connection.execute(
        "SELECT (SELECT count(*) FROM judged), (SELECT count(*) FROM judged SEMI JOIN broken USING (trajectory_id))"
    ).fetchone()
    if not came:
        raise DataError(
            "nothing came in: neither a recording nor a rollout",
            where=f"data/trajectories/iteration={label(iteration)}",
            fix="give it tasks (synthesis.train_tasks) or recordings, and run it again",
        )
    if broken > limit * came:
        reason, n = connection.execute(
            "SELECT any_value(reason), count(*) AS n FROM broken SEMI JOIN judged USING (trajectory_id) "
            "GROUP BY split_part(reason, ' (', 1) ORDER BY n DESC LIMIT 1"
        ).fetchone()
        raise ContractBroken(
            f"{broken} of {came} trajectories break a contract, {n} of them {reason.partition(' (')[0]}",
            where=f"data/trajectories/iteration={label(iteration)}",
            fix="look at them with `flywheel query`, mend what wrote them, or raise routing.broken_limit",
        )


def _write(connection: duckdb.DuckDBPyConnection, staged: Workspace, iteration: int) -> None:
    for table, sql in routing.stores(iteration).items():
        with partitions.writing(staged, table, iteration, STAGE) as writer:
            for batch in _batches(connection, sql):
                writer.write(batch.cast(TABLES[table]))
    with partitions.writing(staged, "quarantine", iteration, STAGE) as writer:
        for batch in _batches(connection, routing.SET_ASIDE):
            writer.write(routing.set_aside(batch.to_pylist()))
        writer.write(
            {**row, "record": None} for batch in _batches(connection, "FROM orphans") for row in batch.to_pylist()
        )


def _batches(connection: duckdb.DuckDBPyConnection, sql: str) -> Iterator[pa.Table]:
    """Of the result, which is never in memory as a whole."""
    for batch in connection.execute(sql).to_arrow_reader(_ROWS_AT_ONCE):
        yield pa.Table.from_batches([batch])


def _figures(connection: duckdb.DuckDBPyConnection) -> Built:
    routed = dict.fromkeys(routing.DESTINATIONS, 0)
    rows = []
    counted = connection.execute(
        """SELECT destination, domain, count(*) FROM incoming JOIN decided USING (trajectory_id)
        GROUP BY ALL ORDER BY ALL"""
    ).fetchall()
    for destination, domain, count in counted:
        routed[destination] += count
        rows.append(metrics.row(f"to_{destination}", count, domain=domain or ""))
    rows = [metrics.row(f"to_{destination}", count) for destination, count in routed.items()] + rows
    reasons = connection.execute(
        """SELECT split_part(reason, ' (', 1) AS why, count(*) FROM incoming JOIN decided USING (trajectory_id)
        WHERE destination = 'quarantine' GROUP BY why ORDER BY why"""
    ).fetchall()
    (orphans,) = connection.execute("SELECT count(*) FROM orphans").fetchone()
    return Built(tuple(rows), routed, dict(reasons), orphans)
