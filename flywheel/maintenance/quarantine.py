"""List quarantined rows, repair them by SQL, and route their trajectories again (`flywheel data quarantine`).

A repaired row replaces the old one in the partition that the stage wrote; files without such a row are hard-linked. The
scorers then judge its trajectory again, and all contracts and the routing run as in the stage `route`. The old row
stays in DVC's cache, which the git history of `dvc.lock` refers to.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.maintenance import reroute
from flywheel.pipeline.stage import StageContext
from flywheel.pipeline.stages import score
from flywheel.pipeline.stages.route import INCOMING, STAGE
from flywheel.store import lineage, partitions, routing_decisions
from flywheel.store.catalog import database
from flywheel.store.routing import training_stores
from flywheel.store.schema import SORT_KEYS, TABLES
from flywheel.store.versioning import stage_records
from flywheel.utils.errors import BadInput

_REPAIRABLE = ("trajectories", "steps")
_EXAMPLES = 5
_QUERIES = database.read_queries("flywheel.maintenance")


@dataclass(frozen=True)
class QuarantineRepair:
    """Hold a prepared repair of quarantined rows.

    rows, trajectories: numbers of repaired ones. examples: repaired rows, key and set columns, with the new values
    under `then`. routed: "destination: reason" of the repaired trajectories -> count. difference: how routes change.
    how: `table`, `set`, `where` and `rows`, as the routing decision stores them.
    """

    rows: int
    trajectories: int
    examples: tuple[dict[str, Any], ...]
    routed: dict[str, int]
    difference: reroute.RouteDifference
    how: dict[str, Any]


def quarantine_reasons(ws: Workspace, iteration: int | None = None) -> list[dict[str, Any]]:
    """Count quarantined rows by iteration, table and reason.

    iteration: the only one to count; None: all. Returns rows of `iteration`, `table`, `reason` (without its details in
    brackets), `rows` and `first` (the lowest trajectory_id), by iteration, then most rows first. Raises DataError as
    `connect_catalog`, and as `run_query`.
    """
    sql = _QUERIES["quarantine_reasons"]
    with database.connect_catalog(ws, reads=sql) as connection:
        return database.query_rows(connection, sql, {"iteration": iteration})


def quarantined_trajectories(
    ws: Workspace, iteration: int, where: str = "true", limit: int = 20
) -> list[dict[str, Any]]:
    """List the iteration's quarantined trajectories with their reasons, `limit` at most, by id.

    where: SQL condition on the columns of `trajectories` (without `iteration` and `stage`), `reason` and `detail`; it
    goes into the query as it stands. Returns rows of these columns. Raises BadInput for wrong SQL, DataError for a file
    that is damaged, missing or not fetched, FlywheelError where the query needs more memory than it may take.
    """
    with database.connect_catalog(ws) as connection:
        _create_quarantine_views(connection, iteration)
        return database.query_rows(
            connection, f"SELECT * FROM aside WHERE {where} ORDER BY trajectory_id LIMIT {limit}"
        )


def prepare_repair(
    ws: Workspace, iteration: int, assignments: Mapping[str, str], where: str, table: str = "trajectories"
) -> QuarantineRepair:
    """Repair quarantined rows in a copy under `.flywheel`, and route the iteration again there; the data do not change.

    Call it under the workspace's lock, after `reroute.settle_pending_decisions`, which drops the copy of an earlier
    call: its partitions would be read and applied with the new ones.

    assignments: column -> SQL expression on the columns of `table`, and on `reason` and `detail` of the quarantine.
    where: SQL condition on the same, which selects the rows. table: `trajectories` or `steps`. Returns the changes, for
    `apply_repair`. Raises BadInput for another table, for a column in `assignments` that the table does not have or is
    sorted by (its key), for SQL that is wrong or does not give values of the column's type, where no row is selected,
    the iteration's parameters are missing or wrong, or a scorer is unknown or refuses its settings; ContractBroken
    where too many rows, or the stores, break a contract; DataError for a missing or damaged file; VersioningError or
    DataError for a damaged dvc.lock; FlywheelError where a query needs more memory than it may take; DiskFull.
    """
    if table not in _REPAIRABLE:
        raise BadInput(f"no row of {table} can be mended", where="--table", fix=f"one of: {', '.join(_REPAIRABLE)}")
    for column in assignments:
        if column not in TABLES[table].names or column in SORT_KEYS[table]:
            known = ", ".join(name for name in TABLES[table].names if name not in SORT_KEYS[table])
            raise BadInput(f"column {column} of {table} cannot be set", where="--set", fix=f"one of: {known}")
    settings = stage_records.load_iteration_params(ws, iteration)
    rule = routing_decisions.current_routing_rule(ws, iteration)
    staged = reroute.get_staged_workspace(ws, iteration)
    with database.connect_catalog(ws) as connection:
        _create_quarantine_views(connection, iteration)
        chosen, examples = _choose_rows(connection, iteration, table, assignments, where)
        ids = {row[0] for row in connection.execute("SELECT DISTINCT trajectory_id FROM chosen").fetchall()}
        for stage in INCOMING:
            _rewrite_partition(ws, staged, connection, table, iteration, stage, assignments)
    _rescore(ws, staged, iteration, rule, settings, ids)
    training_stores.build_training_stores(
        ws, iteration, rule.apply_to(settings), STAGE.partitions(), staged, page=False
    )
    how = {"table": table, "set": dict(assignments), "where": where, "rows": chosen}
    with training_stores.connect_incoming(ws, iteration, INCOMING, staged) as connection:
        difference, routed = _compare_repaired(ws, connection, iteration, ids)
        links = lineage.repaired_links(sorted(ids), iteration, routing_decisions.store_version(ws, iteration) + 1)
        reroute.write_decision_lineage(ws, connection, staged, iteration, links)
        reroute.write_decision_metrics(ws, connection, staged, iteration, settings)
    return QuarantineRepair(chosen, len(ids), examples, routed, difference, how)


def apply_repair(ws: Workspace, mended: QuarantineRepair) -> None:
    """Apply a repair, as `prepare_repair` returned it, to the workspace, as one more routing decision.

    Call it under the workspace's lock. Writes, pushes and raises as `reroute.apply_reroute`.
    """
    k = mended.difference.iteration
    rule = routing_decisions.current_routing_rule(ws, k)
    reroute.apply_decisions(ws, {k: reroute.make_decision(ws, mended.difference, rule, mended.how)})


def _create_quarantine_views(connection: duckdb.DuckDBPyConnection, iteration: int) -> None:
    database.run_query(connection, _QUERIES["quarantine_why"], {"iteration": iteration})
    stages = ", ".join(f"'{stage}'" for stage in INCOMING)
    for name, table in (("aside", "trajectories"), ("aside_steps", "steps")):
        database.run_query(
            connection,
            f"""CREATE TEMP VIEW {name} AS SELECT t.* EXCLUDE (iteration, stage), why.reason, why.detail
            FROM {table} t JOIN why USING (trajectory_id) WHERE iteration = {iteration} AND stage IN ({stages})""",
        )


def _choose_rows(
    connection: duckdb.DuckDBPyConnection, iteration: int, table: str, assignments: Mapping[str, str], where: str
) -> tuple[int, tuple[dict[str, Any], ...]]:
    keys = ", ".join(SORT_KEYS[table])
    rows = "aside" if table == "trajectories" else "aside_steps"
    database.run_query(
        connection, f"CREATE TEMP TABLE chosen AS SELECT {keys}, reason, detail FROM {rows} WHERE {where}"
    )
    ((count,),) = connection.execute("SELECT count(*) FROM chosen").fetchall()
    if not count:
        what = f"no row of {table} that iteration {iteration_label(iteration)} set aside is so"
        raise BadInput(what, where=f"--where {where}", fix=f"`flywheel data quarantine {iteration} --rows` shows them")
    own, then = ", ".join(assignments), ", ".join(f"{sql} AS {name}" for name, sql in assignments.items())
    those = f"FROM {rows} WHERE {where} ORDER BY {keys} LIMIT {_EXAMPLES}"
    before = database.query_rows(connection, f"SELECT {keys}, {own} {those}")
    after = database.query_rows(connection, f"SELECT {then} {those}")
    return count, tuple({**x, "then": y} for x, y in zip(before, after, strict=True))


def _rewrite_partition(
    ws: Workspace,
    staged: Workspace,
    connection: duckdb.DuckDBPyConnection,
    table: str,
    iteration: int,
    stage: str,
    assignments: Mapping[str, str],
) -> None:
    """Write the partition with its chosen rows repaired to `staged`; write nothing where none of its rows is chosen."""
    keys, schema = ", ".join(SORT_KEYS[table]), TABLES[table]
    columns = ", ".join(
        f'CASE WHEN chosen.trajectory_id IS NULL THEN f."{name}" ELSE ({assignments[name]}) END AS "{name}"'
        if name in assignments
        else f'f."{name}"'
        for name in schema.names
    )
    found = {}
    for path in partitions.partition_files(ws, table, iteration, stage):
        connection.register("file", partitions.read_partition_file(ws, table, path))
        ((touched,),) = connection.execute(f"SELECT count(*) FROM file SEMI JOIN chosen USING ({keys})").fetchall()
        sql = f"SELECT {columns} FROM (FROM file) f LEFT JOIN (FROM chosen) chosen USING ({keys}) ORDER BY {keys}"
        found[path] = database.run_query(connection, sql) if touched else None
        connection.unregister("file")
    if all(mended is None for mended in found.values()):
        return
    with partitions.open_partition_writer(staged, table, iteration, stage) as writer:
        for path, mended in found.items():
            if mended is None:
                partitions.link_partition_files(ws, writer, table, iteration, stage, only=path)
                continue
            try:
                writer.write(mended.cast(schema))
            except (pa.ArrowInvalid, ValueError) as error:
                raise BadInput(f"it does not give a row of {table}: {error}", where="--set", fix="cast it") from None


def _rescore(
    ws: Workspace, staged: Workspace, iteration: int, rule: routing_decisions.RoutingRule, settings: Any, ids: set[str]
) -> None:
    """Score the repaired trajectories `ids`, and write their scores with those of all others to `staged`."""
    linked = []
    for table, stage in STAGE.partitions("trajectories", "steps", "tasks", "images"):
        if not staged.partition(table, iteration, stage).is_dir():
            partitions.adopt_partition(staged, ws, table, iteration, stage)
            linked.append(staged.partition(table, iteration, stage))
    fresh = list(score.score_trajectories(StageContext(staged, settings, iteration, "score"), rule, ids))
    old = partitions.read_partition(ws, "scores", iteration, "score")
    kept = old.filter(pc.invert(pc.is_in(old["trajectory_id"], pa.array(sorted(ids), pa.string()))))
    partitions.write_partition(
        staged, "scores", iteration, "score", pa.concat_tables([kept, partitions.table_from_rows("scores", fresh)])
    )
    for folder in linked:  # they were linked only for the scorers, and must not be published
        shutil.rmtree(folder)


def _compare_repaired(
    ws: Workspace, connection: duckdb.DuckDBPyConnection, iteration: int, ids: set[str]
) -> tuple[reroute.RouteDifference, dict[str, int]]:
    connection.execute(f"CREATE TEMP TABLE decided AS FROM routes WHERE iteration = {iteration}")
    connection.execute(
        f"CREATE TEMP TABLE orphans AS FROM quarantine WHERE iteration = {iteration} AND source_table <> 'trajectories'"
    )
    connection.register("own", pa.table({"trajectory_id": sorted(ids)}))
    routed = connection.execute(_QUERIES["repaired_routes"]).fetchall()
    return reroute.compare_routes(ws, connection, iteration, len(ids), len(ids)), dict(routed)
