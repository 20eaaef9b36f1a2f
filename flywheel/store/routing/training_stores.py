"""Route every trajectory to one store, and build the training stores of an iteration."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import duckdb
import pyarrow as pa

from flywheel.config import Settings
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store import lineage, partitions, routing_decisions
from flywheel.store.catalog import database
from flywheel.store.dedup import near_duplicates
from flywheel.store.dedup.near_duplicates import ROUTE_STAGE
from flywheel.store.routing import contracts
from flywheel.store.schema import metric_row
from flywheel.utils.errors import BadInput, ContractBroken, DataError

# Section 2.3: V = 1 to SFT, the rest to CT; nothing is thrown away. V is defined in `envs/base.py`; the SQL here
# applies the same rule to a whole table of scores, and a test compares the two.

DESTINATIONS = ("sft", "ct", "quarantine")
_SQL = database.read_queries("flywheel.store.routing")
QUARANTINED_SQL = _SQL["quarantined"]


def decide_routes(
    connection: duckdb.DuckDBPyConnection,
    *,
    verified_only: bool = True,
    band: tuple[float, float] | None = None,
    people: Mapping[str, tuple[bool, str]] | None = None,
) -> None:
    """Decide where each trajectory of `incoming` goes; create the temporary table `decided` with the result.

    It has a row for each trajectory, and the columns of `routes`. connection: with the tables or views `incoming` (rows
    of `trajectories`) and `broken` (trajectory_id, reason: of the row contracts), and the table `judgements` (rows of
    `scores`, one or more per trajectory, each with its threshold), which `register_people` changes. verified_only:
    False where SFT takes failed trajectories too (`sft.verified_only`). band: [low, high) of scores that are doubted,
    to six significant digits; None: none are. people: trajectory_id -> (solved, reviewer); a person's verdict overrides
    the scorers' for the destination, while V stays the scorers', so that both can be compared. People's demonstrations
    go to CT: they are data for continual training (section 2.4). Raises duckdb.Error for a damaged file.
    """
    register_people(connection, people or {})
    low, high = band or (0.0, 0.0)
    sql = _SQL["decided"].replace("$verified_only", str(verified_only).lower())
    connection.execute(sql.replace("$low", f"{low:g}").replace("$high", f"{high:g}"))
    connection.unregister("people")


def register_people(connection: duckdb.DuckDBPyConnection, people: Mapping[str, tuple[bool, str]]) -> None:
    """Register people's verdicts as the view `people`, and write them over the scores of the scorer `person`.

    connection: with the table `judgements`, in which the rows of that scorer get the person's verdict (score 1 or 0,
    success, detail) where `people` has their trajectory; no row is added. people: as for `decide_routes`. Raises
    duckdb.Error where `judgements` is missing or a view.
    """
    schema = pa.schema({"trajectory_id": pa.string(), "solved": pa.bool_(), "reviewer": pa.string()})
    said = [dict(zip(schema.names, (name, *verdict), strict=True)) for name, verdict in people.items()]
    connection.register("people", pa.Table.from_pylist(said, schema))
    connection.execute(_SQL["judged_by_people"])


def training_stores_sql(iteration: int, version: int = 0) -> dict[str, str]:
    """Return SQL of the rows of each store table of `iteration`, by table, in the tables' order.

    Keys: `routes`, `sft`, `ct`, `lineage`; `quarantine` is left to `quarantine_rows`. The SQL reads `incoming`,
    `decided` (`decide_routes`) and `weights` (`weigh_duplicates`), which must exist when it runs. version: of the
    stores; 0 as first routed.
    """
    stores = {store: _SQL["store"].format(store=store) for store in ("sft", "ct")}
    return {"routes": _SQL["routes"], **stores, "lineage": lineage.routed_links_sql(iteration, version)}


def quarantine_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Make rows of `quarantine` from rows of `QUARANTINED_SQL`.

    A trajectory's whole row is stored as JSON in `record`, so that it can be repaired and routed again.
    """
    for row in rows:
        record = {name: value for name, value in row.items() if name not in ("reason", "iteration", "stage")}
        yield {
            "trajectory_id": row["trajectory_id"],
            "reason": row["reason"],
            "detail": row["error"] or "",
            "record": json.dumps(record, default=_json_default, sort_keys=True, ensure_ascii=False),
            "source_table": "trajectories",
        }


def _json_default(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


# Building the stores: check, judge, route, write, check again, from Parquet to Parquet in bounded memory. The stores
# stay outside the workspace's data until all checks have passed.

WRITTEN_TABLES = ("routes", "sft", "ct", "quarantine", "lineage", "duplicates", *near_duplicates.SIGNATURE_TABLES)
_MEMORY = "192MB"  # of DuckDB, which spills to disk beyond it
_ROWS_AT_ONCE = 20_000


@dataclass(frozen=True)
class BuiltStores:
    """Hold how many trajectories were routed where.

    metrics: rows for the table `metrics`, not written here. routed: destination -> number of trajectories. orphans:
    number of rows of `quarantine` that belong to no trajectory.
    """

    metrics: tuple[dict, ...]
    routed: dict[str, int]
    orphans: int


def build_training_stores(
    ws: Workspace,
    iteration: int,
    settings: Settings,
    read: Sequence[tuple[str, str]],
    staged: Workspace,
    *,
    page: bool = True,
) -> BuiltStores:
    """Route an iteration's incoming trajectories, and write the stores to `staged`.

    `publish_training_stores` moves them to the workspace. settings: the iteration's. read: (table, stage) of all
    incoming partitions of `ws`; where `staged` has one too, that one is read. page: whether to write the contracts'
    results to `report/docs` of `ws`. Returns the counts of routed trajectories. It writes `routes`, `sft`, `ct`,
    `quarantine`, `lineage`, `duplicates` and the signatures that later iterations need to find duplicates. Raises
    DataError for a partition, manifest or screen that is missing or damaged, for a damaged list of decisions or pruned
    outputs, where nothing came in, and as `write_training_stores`; ContractBroken where too many rows break a contract,
    or the stores break one that spans tables; FlywheelError where a query needs more memory than it may take; DiskFull.
    """
    sources = _stages(read, "trajectories")
    for table, stage in read:
        partitions.verify_partition(ws, table, iteration, stage)
    rule = routing_decisions.current_routing_rule(ws, iteration)
    people = routing_decisions.human_verdicts(routing_decisions.read_decisions(ws, iteration))
    version = routing_decisions.store_version(ws, iteration)
    with connect_incoming(ws, iteration, sources, staged) as connection:
        judged = contracts.check_row_contracts(
            connection, iteration, sources, _contracts_checked_at_write(ws, iteration, read, staged)
        )
        if page:
            contracts.write_data_docs(ws, iteration, judged)
        _refuse_too_many_broken(connection, iteration, settings.routing.max_invalid_fraction)
        near_duplicates.create_task_contents(connection, iteration, _stages(read, "tasks"))
        near_duplicates.quarantine_near_evaluation(connection)
        decide_routes(connection, verified_only=settings.sft.verified_only, band=rule.band, people=people)
        near_duplicates.weigh_duplicates(ws, iteration, read, connection, settings.routing, staged)
        write_training_stores(connection, staged, iteration, training_stores_sql(iteration, version))
        built = count_routed(connection)
    contracts.check_table_contracts(ws, iteration, sources, staged)
    return built


@contextmanager
def connect_incoming(
    ws: Workspace, iteration: int, sources: Sequence[str], staged: Workspace | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the catalogue with the view `incoming`: an iteration's trajectories of the stages `sources`, one at least.

    staged: a workspace whose partitions replace those of `ws`; None: none do. Memory is bounded (192 MB); beyond it
    DuckDB writes to `.flywheel`. The connection is closed at the end of the block. Raises DataError as
    `connect_catalog`, and where a query of the block meets a damaged file; DiskFull, or FlywheelError where a query
    needs more memory or is interrupted; other errors of the block pass.
    """
    with database.connect_catalog(ws, staged, tables_alone=True) as connection:
        connection.execute(f"SET memory_limit = '{_MEMORY}'")
        connection.execute("SET temp_directory = $folder", {"folder": str(ws.state / "duckdb")})
        stages = ", ".join(f"'{stage}'" for stage in sources)
        try:
            connection.execute(
                f"CREATE TEMP VIEW incoming AS FROM trajectories WHERE iteration = {iteration} AND stage IN ({stages})"
            )
            yield connection
        except (duckdb.Error, OSError) as error:  # OSError: from rows read as Arrow batches
            cause = error if isinstance(error, duckdb.Error) else duckdb.Error(str(error))
            told = database.explain_duckdb_error(connection, cause)
            if isinstance(told, BadInput):  # wrong SQL, which is ours
                raise
            raise told from None


def _stages(read: Sequence[tuple[str, str]], table: str) -> list[str]:
    return [stage for name, stage in read if name == table]


def _contracts_checked_at_write(
    ws: Workspace, iteration: int, read: Sequence[tuple[str, str]], staged: Workspace
) -> set[str]:
    """Return the contracts that all steps to be read were found to keep when they were written."""
    found = []
    for stage in _stages(read, "steps"):
        own = staged if staged.partition("steps", iteration, stage).is_dir() else ws
        found.append(partitions.contracts_checked_at_write(own, "steps", iteration, stage))
    return set.intersection(*found) if found else set()


def publish_training_stores(
    ws: Workspace, iteration: int, staged: Workspace
) -> tuple[partitions.PartitionManifest, ...]:
    """Replace the stores of an iteration by those in the workspace `staged`, one table after the other, by hard links.

    `staged` is on the same file system and keeps its files. After a kill some tables are still the old ones, and the
    call has to be repeated. Returns the partitions' manifests, in the order of `WRITTEN_TABLES`. Raises DataError where
    `staged` lacks one, a list is damaged, or another process has been writing one for ten minutes; OSError where they
    lie on two file systems; DiskFull.
    """
    return tuple(partitions.adopt_partition(ws, staged, table, iteration, ROUTE_STAGE) for table in WRITTEN_TABLES)


def _refuse_too_many_broken(connection: duckdb.DuckDBPyConnection, iteration: int, limit: float) -> None:
    ((came, broken),) = connection.execute(_SQL["count_broken"]).fetchall()
    where = f"data/trajectories/iteration={iteration_label(iteration)}"
    if not came:
        fix = "give it tasks (synthesis.train_tasks) or recordings, and run it again"
        raise DataError("nothing came in: neither a recording nor a rollout", where=where, fix=fix)
    if broken > limit * came:
        ((reason, n),) = connection.execute(_SQL["commonest_fault"]).fetchall()
        what = f"{broken} of {came} trajectories break a contract, {n} of them {reason.partition(' (')[0]}"
        fix = "look at them with `flywheel query`, mend what wrote them, or raise routing.max_invalid_fraction"
        raise ContractBroken(what, where=where, fix=fix)


def write_training_stores(
    connection: duckdb.DuckDBPyConnection, staged: Workspace, iteration: int, stores: Mapping[str, str]
) -> None:
    """Write an iteration's stores to the workspace `staged`.

    connection: with the tables that `decide_routes` and `weigh_duplicates` create, and `orphans`. stores: table -> SQL
    of its rows. `quarantine` is written as well, with the rows of `orphans`. Raises DiskFull; DataError where another
    process has been writing one for ten minutes, or an id is null; duckdb.Error for a damaged file.
    """
    for table, sql in stores.items():
        with partitions.open_partition_writer(staged, table, iteration, ROUTE_STAGE) as writer:
            writer.write_query(connection, sql)
    with partitions.open_partition_writer(staged, "quarantine", iteration, ROUTE_STAGE) as writer:
        for batch in connection.execute(QUARANTINED_SQL).to_arrow_reader(_ROWS_AT_ONCE):
            writer.write(quarantine_rows(batch.to_pylist()))
        writer.write_query(
            connection, "SELECT trajectory_id, reason, detail, NULL AS record, source_table FROM orphans"
        )


def count_routed(connection: duckdb.DuckDBPyConnection) -> BuiltStores:
    """Count how many trajectories went to each destination, in all and by domain.

    connection: with the tables `incoming`, `decided`, `orphans`. Raises duckdb.Error for a damaged file.
    """
    routed = dict.fromkeys(DESTINATIONS, 0)
    rows = []
    for destination, domain, count in connection.execute(_SQL["count_routed"]).fetchall():
        routed[destination] += count
        rows.append(metric_row(f"to_{destination}", count, domain=domain or ""))
    rows = [metric_row(f"to_{destination}", count) for destination, count in routed.items()] + rows
    ((orphans,),) = connection.execute("SELECT count(*) FROM orphans").fetchall()
    return BuiltStores(tuple(rows), routed, orphans)
