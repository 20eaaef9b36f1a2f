"""Look at what was set aside, mend it by an expression, and let it go the way of all trajectories again.

A row is mended in the partition that the stage wrote it to: files without such a row are taken as they are. Then the
scorers judge its trajectory, and all contracts and the routing are gone through as by the stage `route`. The row as it
was stays in DVC's cache and in git's history of `dvc.lock`.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from flywheel.errors import BadInput
from flywheel.schema import SORT, TABLES
from flywheel.stages import score
from flywheel.stages.base import Context
from flywheel.stages.route import INCOMING, STAGE
from flywheel.store import build, catalog, decisions, frozen, lineage, partitions
from flywheel.upkeep import again, reroute
from flywheel.workspace import Workspace, label

_MENDED = ("trajectories", "steps")
_EXAMPLES = 5


@dataclass(frozen=True)
class Mended:
    """examples: rows before and after, of the columns that were set. routed: where the mended trajectories go now, with
    the reason -> how many."""

    rows: int
    trajectories: int
    examples: tuple[dict[str, Any], ...]
    routed: dict[str, int]
    difference: reroute.Difference
    how: dict[str, Any]


def reasons(ws: Workspace, iteration: int | None = None) -> list[dict[str, Any]]:
    """What was set aside, by iteration, table and reason (what differs from row to row in brackets is left out)."""
    sql = """SELECT iteration, coalesce(of_table, 'trajectories') AS "table", split_part(reason, ' (', 1) AS reason,
            count(*) AS rows, min(trajectory_id) AS first
        FROM quarantine WHERE $k IS NULL OR iteration = $k GROUP BY ALL ORDER BY iteration, rows DESC, reason"""
    with catalog.connect(ws) as connection:
        return catalog.rows(connection, sql, {"k": iteration})


def rows(ws: Workspace, iteration: int, where: str = "true", limit: int = 20) -> list[dict[str, Any]]:
    """Trajectories that were set aside, with the reason. where: SQL on their columns, `reason` and `detail`."""
    with catalog.connect(ws) as connection:
        _aside(connection, iteration)
        return catalog.rows(connection, f"SELECT * FROM aside WHERE {where} ORDER BY trajectory_id LIMIT {limit}")


def prepare(
    ws: Workspace, iteration: int, assignments: Mapping[str, str], where: str, table: str = "trajectories"
) -> Mended:
    """Mend rows of what was set aside, beside the data, and route the iteration again.

    assignments: column -> SQL expression, on columns of the table, and `reason` and `detail` of why it was set aside.
    where: SQL on the same, which rows. Raises BadInput for SQL that cannot be used, and where no row is chosen.
    """
    if table not in _MENDED:
        raise BadInput(f"no row of {table} can be mended", where="--table", fix=f"one of: {', '.join(_MENDED)}")
    for column in assignments:
        if column not in TABLES[table].names or column in SORT[table]:
            known = ", ".join(name for name in TABLES[table].names if name not in SORT[table])
            raise BadInput(f"column {column} of {table} cannot be set", where="--set", fix=f"one of: {known}")
    settings, rule = frozen.load(ws, iteration), decisions.rule(ws, iteration)
    staged = again.staged(ws, iteration)
    with catalog.connect(ws) as connection:
        _aside(connection, iteration)
        chosen, examples = _choose(connection, iteration, table, assignments, where)
        ids = {row[0] for row in connection.execute("SELECT DISTINCT trajectory_id FROM chosen").fetchall()}
        for stage in INCOMING:
            _rewrite(ws, staged, connection, table, iteration, stage, assignments)
    _judge(ws, staged, iteration, rule, settings, ids)
    build.build(ws, iteration, rule.settings(settings), STAGE.partitions(), staged, page=False)
    how = {"table": table, "set": dict(assignments), "where": where, "rows": chosen}
    with build.connected(ws, iteration, INCOMING, staged) as connection:
        difference, routed = _routed(ws, connection, iteration, ids)
        _link(ws, connection, staged, iteration, ids)
    return Mended(chosen, len(ids), examples, routed, difference, how)


def write(ws: Workspace, mended: Mended) -> None:
    rule = decisions.rule(ws, mended.difference.iteration)
    again.carry_out(ws, [reroute.decision(ws, mended.difference, rule, mended.how)])


def _aside(connection: duckdb.DuckDBPyConnection, iteration: int) -> None:
    connection.execute(
        f"""CREATE TEMP TABLE why AS SELECT trajectory_id, any_value(reason) AS reason, any_value(detail) AS detail
        FROM quarantine WHERE iteration = {iteration} AND coalesce(of_table, 'trajectories') = 'trajectories'
        GROUP BY ALL"""
    )
    stages = ", ".join(f"'{stage}'" for stage in INCOMING)
    for name, table in (("aside", "trajectories"), ("aside_steps", "steps")):
        connection.execute(
            f"""CREATE TEMP VIEW {name} AS SELECT t.* EXCLUDE (iteration, stage), why.reason, why.detail
            FROM {table} t JOIN why USING (trajectory_id) WHERE iteration = {iteration} AND stage IN ({stages})"""
        )


def _choose(
    connection: duckdb.DuckDBPyConnection, iteration: int, table: str, assignments: Mapping[str, str], where: str
) -> tuple[int, tuple[dict[str, Any], ...]]:
    keys = ", ".join(SORT[table])
    rows = "aside" if table == "trajectories" else "aside_steps"
    catalog.run(connection, f"CREATE TEMP TABLE chosen AS SELECT {keys}, reason, detail FROM {rows} WHERE {where}")
    (count,) = connection.execute("SELECT count(*) FROM chosen").fetchone()
    if not count:
        what = f"no row of {table} that iteration {label(iteration)} set aside is so"
        raise BadInput(what, where=f"--where {where}", fix=f"`flywheel quarantine {iteration} --rows` shows them")
    own, then = ", ".join(assignments), ", ".join(f"{sql} AS {name}" for name, sql in assignments.items())
    before = catalog.rows(
        connection, f"SELECT {keys}, {own} FROM {rows} WHERE {where} ORDER BY {keys} LIMIT {_EXAMPLES}"
    )
    after = catalog.rows(connection, f"SELECT {then} FROM {rows} WHERE {where} ORDER BY {keys} LIMIT {_EXAMPLES}")
    return count, tuple({**x, "then": y} for x, y in zip(before, after, strict=True))


def _rewrite(
    ws: Workspace,
    staged: Workspace,
    connection: duckdb.DuckDBPyConnection,
    table: str,
    iteration: int,
    stage: str,
    assignments: Mapping[str, str],
) -> None:
    """The partition with its chosen rows mended; nothing where it has none."""
    keys, schema = ", ".join(SORT[table]), TABLES[table]
    columns = ", ".join(
        f'CASE WHEN chosen.trajectory_id IS NULL THEN f."{name}" ELSE ({assignments[name]}) END AS "{name}"'
        if name in assignments
        else f'f."{name}"'
        for name in schema.names
    )
    paths = partitions.files(ws, table, iteration, stage)
    found = []
    for path in paths:
        connection.register("file", partitions.read_file(ws, table, path))
        touched = connection.execute(f"SELECT count(*) FROM file SEMI JOIN chosen USING ({keys})").fetchone()[0]
        mended = None
        if touched:
            sql = (
                f"""SELECT {columns} FROM (FROM file) f LEFT JOIN (FROM chosen) chosen USING ({keys}) ORDER BY {keys}"""
            )
            mended = catalog.run(connection, sql)
        connection.unregister("file")
        found.append(mended)
    if not any(one is not None for one in found):
        return
    with partitions.writing(staged, table, iteration, stage) as writer:
        for path, mended in zip(paths, found, strict=True):
            if mended is None:
                partitions.take(ws, writer, table, iteration, stage, only=path)
                continue
            try:
                writer.write(mended.cast(schema))
            except (pa.ArrowInvalid, ValueError) as error:
                raise BadInput(f"it does not give a row of {table}: {error}", where="--set", fix="cast it") from None


def _judge(
    ws: Workspace, staged: Workspace, iteration: int, rule: decisions.Rule, settings: Any, ids: set[str]
) -> None:
    """Scores of the mended trajectories, beside those of the others."""
    linked = []
    for table, stage in STAGE.partitions("trajectories", "steps", "tasks", "images"):
        if not staged.partition(table, iteration, stage).is_dir():
            partitions.adopt(staged, ws, table, iteration, stage)
            linked.append(staged.partition(table, iteration, stage))
    fresh = list(score.judge(Context(staged, settings, iteration, "score"), rule, ids))
    old = partitions.read(ws, "scores", iteration, "score")
    kept = old.filter(pc.invert(pc.is_in(old["trajectory_id"], pa.array(sorted(ids), pa.string()))))
    partitions.write(
        staged, "scores", iteration, "score", pa.concat_tables([kept, partitions.from_rows("scores", fresh)])
    )
    for folder in linked:  # what is not mended is not to be put in place
        shutil.rmtree(folder)


def _routed(
    ws: Workspace, connection: duckdb.DuckDBPyConnection, iteration: int, ids: set[str]
) -> tuple[reroute.Difference, dict[str, int]]:
    connection.execute(f"CREATE TEMP TABLE decided AS FROM routes WHERE iteration = {iteration}")
    connection.execute(
        f"CREATE TEMP TABLE orphans AS FROM quarantine WHERE iteration = {iteration} AND of_table <> 'trajectories'"
    )
    connection.register("own", pa.table({"trajectory_id": sorted(ids)}))
    routed = connection.execute(
        """SELECT destination || ': ' || split_part(reason, ' (', 1) AS how, count(*) FROM decided SEMI JOIN own
        USING (trajectory_id) GROUP BY ALL ORDER BY 2 DESC, 1"""
    ).fetchall()
    return reroute.difference(ws, connection, iteration, len(ids)), dict(routed)


def _link(
    ws: Workspace, connection: duckdb.DuckDBPyConnection, staged: Workspace, iteration: int, ids: set[str]
) -> None:
    version = decisions.version(ws, iteration) + 1
    reroute.link(ws, connection, staged, iteration, lineage.mended(sorted(ids), iteration, version))
    reroute.measure(ws, connection, staged, iteration)
