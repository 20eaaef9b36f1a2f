"""Build the training stores of an iteration from what came in: check, judge, route, write, check again.

From Parquet to Parquet in bounded memory, whatever came in; the decisions are in `routing.py`, the promises in
`judging.py`. What is built lies beside the workspace's data until all of it has passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from flywheel.errors import ContractBroken, DataError
from flywheel.schema import TABLES
from flywheel.settings import Settings
from flywheel.store import catalog, decisions, duplicates, expectations, judging, metrics, partitions, routing
from flywheel.workspace import Workspace, label

STAGE = "route"
WRITTEN = ("routes", "sft", "ct", "quarantine", "lineage", "duplicates", *duplicates.KEPT)
_MEMORY = "192MB"  # of DuckDB, which goes on on disk beyond it
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
    ws: Workspace,
    iteration: int,
    settings: Settings,
    read: Sequence[tuple[str, str]],
    staged: Workspace,
    *,
    page: bool = True,
) -> Built:
    """Route the trajectories that came in; `routes`, `sft`, `ct`, `quarantine`, `lineage`, `duplicates`
    and what later iterations need to find those are written to `staged`, from where `publish` takes them.

    read: (table, stage) of all that came in; what `staged` has of it is taken from there. page: whether what the
    contracts found is shown as a page. Raises DataError for a damaged partition or where nothing came in,
    ContractBroken where too many rows break a contract, or the stores one that spans tables.
    """
    sources = _stages(read, "trajectories")
    for table, stage in read:
        partitions.verify(ws, table, iteration, stage)
    rule, people = decisions.rule(ws, iteration), decisions.said(decisions.read(ws, iteration))
    version = decisions.version(ws, iteration)
    shown = expectations.page(ws, iteration) if page else nullcontext(lambda judged: None)
    with shown as show, connected(ws, iteration, sources, staged) as connection:
        judged = judging.judge(connection, iteration, sources, _kept(ws, iteration, read, staged))
        show(judged)
        _not_too_many(connection, iteration, settings.routing.broken_limit)
        duplicates.ask(connection, iteration, _stages(read, "tasks"))
        duplicates.set_near_evaluation_aside(connection)
        routing.decide(connection, verified_only=settings.sft.verified_only, band=rule.band, people=people)
        duplicates.find(ws, iteration, read, connection, settings.routing, staged)
        write(connection, staged, iteration, routing.stores(iteration, version))
        built = figures(connection)
    judging.check_tables(ws, iteration, sources, staged)
    return built


@contextmanager
def connected(
    ws: Workspace, iteration: int, sources: Sequence[str], staged: Workspace | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """The tables of the catalogue in bounded memory, with the view `incoming`: trajectories of the stages `sources`."""
    with catalog.connect(ws, staged, tables_alone=True) as connection:
        connection.execute(f"SET memory_limit = '{_MEMORY}'")
        connection.execute("SET temp_directory = $folder", {"folder": str(ws.state / "duckdb")})
        stages = ", ".join(f"'{stage}'" for stage in sources)
        connection.execute(
            f"CREATE TEMP VIEW incoming AS FROM trajectories WHERE iteration = {iteration} AND stage IN ({stages})"
        )
        yield connection


def _stages(read: Sequence[tuple[str, str]], table: str) -> list[str]:
    return [stage for name, stage in read if name == table]


def _kept(ws: Workspace, iteration: int, read: Sequence[tuple[str, str]], staged: Workspace) -> set[str]:
    """Contracts that all steps that are read were seen to keep when they were written."""
    found = []
    for stage in _stages(read, "steps"):
        own = staged if staged.partition("steps", iteration, stage).is_dir() else ws
        found.append(partitions.kept(own, "steps", iteration, stage))
    return set.intersection(*found) if found else set()


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


def write(connection: duckdb.DuckDBPyConnection, staged: Workspace, iteration: int, stores: Mapping[str, str]) -> None:
    """Write what was decided. stores: table -> SQL of its rows; `quarantine` besides, with the rows of `orphans`."""
    for table, sql in stores.items():
        with partitions.writing(staged, table, iteration, STAGE) as writer:
            for batch in batches(connection, sql):
                writer.write(batch.cast(TABLES[table]))
    with partitions.writing(staged, "quarantine", iteration, STAGE) as writer:
        for batch in batches(connection, routing.SET_ASIDE):
            writer.write(routing.set_aside(batch.to_pylist()))
        writer.write(
            {**row, "record": None} for batch in batches(connection, "FROM orphans") for row in batch.to_pylist()
        )


def batches(connection: duckdb.DuckDBPyConnection, sql: str) -> Iterator[pa.Table]:
    """Of the result, which is never in memory as a whole."""
    for batch in connection.execute(sql).to_arrow_reader(_ROWS_AT_ONCE):
        yield pa.Table.from_batches([batch])


def figures(connection: duckdb.DuckDBPyConnection) -> Built:
    """What became of it, once it is decided."""
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
