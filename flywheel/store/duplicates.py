"""Near-duplicates of an iteration's trajectories: which are set aside, and what the others weigh in training.

What is near what is decided in `flywheel/dedup`. Here its columns are read from the tables, and kept for the
iterations after: `signatures` (a trajectory's steps as numbers) and `screen_hashes` (of the screens that were looked
at), so that nothing of an earlier iteration is read but these, and which store a trajectory is in. `duplicates` has
each trajectory that was weighed down, its twin, and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from flywheel.dedup import screens as hashes
from flywheel.dedup import steps, tasks
from flywheel.dedup.repeats import Screens, near_duplicates
from flywheel.dedup.rows import insert
from flywheel.schema import TABLES, empty
from flywheel.settings import Routing
from flywheel.store import catalog, manifest, partitions, screens
from flywheel.store.manifest import Cumulative
from flywheel.store.partition_writer import PartitionWriter
from flywheel.workspace import Workspace

STAGE = "route"
KEPT = ("signatures", "screen_hashes")
_PROMISE = "no task held out for evaluation, and none near one, is trained on"
_AT_ONCE = 5_000  # rows that Python looks at
_ROWS_AT_ONCE = 20_000


def ask(connection: duckdb.DuckDBPyConnection, iteration: int, stages: Sequence[str]) -> None:
    """Make the table `contents` (task_id, content, near): what each of an iteration's tasks asks, and why it is near
    one for evaluation, where it is. stages: whose rows of `tasks` are meant."""
    own = f"SELECT {', '.join(tasks.COLUMNS)} FROM tasks WHERE iteration = {int(iteration)}"
    own += f" AND stage IN ({_texts(stages)})"
    connection.execute("CREATE OR REPLACE TABLE contents (task_id VARCHAR, content VARCHAR, near VARCHAR)")
    with connection.cursor() as cursor:
        held_out = cursor.execute(f"{own} AND split = 'eval'").to_arrow_table().to_pylist()
        for batch in cursor.execute(own).to_arrow_reader(_AT_ONCE):
            asked = batch.to_pylist()
            near = tasks.near_evaluation((task for task in asked if task["split"] != "eval"), held_out)
            names = [task["task_id"] for task in asked]
            told = {"content": map(tasks.content, asked), "near": map(near.get, names)}
            insert(connection, "contents", _texts_of({"task_id": names, **told}))


def set_near_evaluation_aside(connection: duckdb.DuckDBPyConnection) -> None:
    """Add to `broken` the trajectories whose task is near one for evaluation, but not one itself: that is a contract.

    connection: as `judging.judge` and `ask` leave it.
    """
    connection.execute(
        f"""INSERT INTO broken SELECT DISTINCT trajectory_id, 'near_evaluation: {_PROMISE} (' || near || ')'
        FROM judged JOIN contents USING (task_id) ANTI JOIN broken USING (trajectory_id) WHERE near IS NOT NULL"""
    )


def find(
    ws: Workspace,
    iteration: int,
    read: Sequence[tuple[str, str]],
    connection: duckdb.DuckDBPyConnection,
    settings: Routing,
    staged: Workspace,
    *,
    again: bool = False,
) -> None:
    """Near-duplicates among the model's trajectories that join a store, and those of `duplicates_window` iterations.
    Makes the view `weights` (trajectory_id, weight), of those that do not weigh 1; `duplicates` and the tables in
    `KEPT` are written to `staged`.

    read: (table, stage) of what came in. connection: with the tables or views `incoming` and `decided`, and `contents`
    (`ask`). again: the signatures that the workspace has are taken as they are; the tasks and the steps of these are
    not read. People's demonstrations are not looked at: each is wanted. The cost is that of this iteration and the
    window, whatever lies before it.
    """
    _sign(ws, iteration, read, connection, staged, again=again)
    before, since = manifest.read(ws, iteration - 1), iteration - settings.duplicates_window
    signed = partitions.files(staged, "signatures", iteration, STAGE)
    _gather(connection, iteration, since, signed, _checked(ws, before, "signatures", since))
    looked = _Looked(ws, iteration, read, before, since)
    near_duplicates(connection, "FROM episodes", settings.duplicates_least, looked.alike)
    if settings.duplicates_weigh == "each":
        connection.execute("UPDATE near_duplicates SET weight = 1")
    connection.execute("CREATE OR REPLACE VIEW weights AS SELECT trajectory_id, weight FROM near_duplicates")
    with partitions.writing(staged, "duplicates", iteration, STAGE) as writer:
        _copy(connection, "FROM near_duplicates ORDER BY trajectory_id", "duplicates", writer)
    partitions.write(staged, "screen_hashes", iteration, STAGE, looked.rows())
    connection.execute("DROP VIEW episodes; DROP TABLE fates")


def _sign(
    ws: Workspace,
    iteration: int,
    read: Sequence[tuple[str, str]],
    connection: duckdb.DuckDBPyConnection,
    staged: Workspace,
    *,
    again: bool,
) -> None:
    """Write signatures of the trajectories that are looked at, beside those that there are, which stay in their files:
    of a trajectory's signature nothing changes when it is decided again, but its fate, which the stores tell."""
    signed = partitions.files(ws, "signatures", iteration, STAGE) if again else []
    stages = {table: [stage for name, stage in read if name == table] for table in ("steps", "tasks")}
    wanted = f"FROM steps WHERE iteration = {int(iteration)} AND stage IN ({_texts(stages['steps'])})"
    connection.execute(
        """CREATE OR REPLACE TABLE unsigned AS SELECT trajectory_id, task_id, instruction, destination AS fate
        FROM incoming JOIN decided USING (trajectory_id) WHERE destination <> 'quarantine' AND author = 'model'"""
    )
    if signed:
        connection.execute(f"DELETE FROM unsigned WHERE trajectory_id IN (SELECT trajectory_id FROM {_read(signed)})")
        wanted += " AND trajectory_id IN (SELECT trajectory_id FROM unsigned)"
    connection.execute(
        """CREATE OR REPLACE TABLE words (instruction VARCHAR, arguments VARCHAR);
        CREATE OR REPLACE TABLE coded (trajectory_id VARCHAR, steps UBIGINT[])"""
    )
    with partitions.writing(staged, "signatures", iteration, STAGE) as writer:
        if signed:
            partitions.take(ws, writer, "signatures", iteration, STAGE)
        if connection.execute("SELECT count(*) FROM unsigned").fetchone()[0]:
            if again:
                ask(connection, iteration, stages["tasks"])
            with connection.cursor() as cursor:
                for batch in cursor.execute("SELECT DISTINCT instruction FROM unsigned").to_arrow_reader(_AT_ONCE):
                    said = batch.column(0).to_pylist()
                    words = [" ".join(tasks.arguments(text)) for text in said]
                    insert(connection, "words", _texts_of({"instruction": said, "arguments": words}))
                for coded in steps.encode(cursor, wanted):
                    insert(connection, "coded", coded)
            for sql in _SIGNED:  # one after the other: each holds less than all at once
                connection.execute(sql.format(wanted=wanted))
            _copy(connection, "FROM signed ORDER BY trajectory_id", "signatures", writer)
    connection.execute("DROP TABLE unsigned; DROP TABLE words; DROP TABLE coded; DROP TABLE IF EXISTS signed")


_SIGNED = (
    """CREATE OR REPLACE TABLE ends AS WITH own AS (SELECT trajectory_id, step, image_sha256 {wanted}),
places AS (SELECT trajectory_id, min(step) AS first, max(step) AS last FROM own GROUP BY trajectory_id)
SELECT trajectory_id, a.image_sha256 AS first_screen, b.image_sha256 AS last_screen FROM places
    JOIN own a USING (trajectory_id) JOIN own b USING (trajectory_id) WHERE a.step = first AND b.step = last""",
    """CREATE OR REPLACE TABLE told AS SELECT trajectory_id, content, arguments, fate, first_screen, last_screen
    FROM unsigned JOIN words ON words.instruction IS NOT DISTINCT FROM unsigned.instruction
        JOIN (SELECT task_id, any_value(content) AS content FROM contents GROUP BY ALL) USING (task_id)
        JOIN ends USING (trajectory_id)""",
    "DROP TABLE ends",
    """CREATE OR REPLACE TABLE signed AS
    SELECT trajectory_id, content, arguments, fate, steps, first_screen, last_screen
    FROM told JOIN coded USING (trajectory_id)""",
    "DROP TABLE told",
)


def _gather(
    connection: duckdb.DuckDBPyConnection, iteration: int, since: int, own: Sequence[Path], known: Sequence[Path]
) -> None:
    """Make the view `episodes`, of `repeats.COLUMNS`: what has a signature, and is in a store now."""
    earlier = f"iteration >= {since} AND iteration < {iteration}"
    catalog.run(
        connection,
        f"""CREATE OR REPLACE TABLE fates AS
        SELECT trajectory_id, destination AS fate, true AS new FROM decided WHERE destination <> 'quarantine'
        UNION ALL SELECT trajectory_id, 'sft', false FROM sft WHERE {earlier}
        UNION ALL SELECT trajectory_id, 'ct', false FROM ct WHERE {earlier}""",
    )
    signed = [f"SELECT * EXCLUDE (fate), true AS new FROM {_read(own)}"]
    signed += [f"SELECT * EXCLUDE (fate), false AS new FROM {_read(known)}"] if known else []
    connection.execute(
        f"CREATE OR REPLACE VIEW episodes AS FROM ({' UNION ALL '.join(signed)}) JOIN fates USING (trajectory_id, new)"
    )


def _read(files: Sequence[Path]) -> str:
    return f"read_parquet([{_texts(map(str, files))}], hive_partitioning = false)"


def _texts(values: Iterable[str]) -> str:
    return ", ".join("'" + value.replace("'", "''") + "'" for value in values)


def _texts_of(columns: Mapping[str, Iterable[str | None]]) -> pa.Table:
    return pa.table({name: pa.array(list(values), pa.string()) for name, values in columns.items()})


def _copy(connection: duckdb.DuckDBPyConnection, sql: str, table: str, writer: PartitionWriter) -> None:
    for batch in connection.execute(sql).to_arrow_reader(_ROWS_AT_ONCE):
        writer.write(pa.Table.from_batches([batch]).cast(TABLES[table]))


def _checked(ws: Workspace, before: Cumulative, table: str, since: int) -> list[Path]:
    """Files of earlier iterations from `since` on. Raises DataError where one is damaged."""
    found = [ws.resolve(shard.path) for shard in before.shards(table) if shard.iteration >= since]
    for path in found:
        partitions.opened(table, path, wholly=True).close()
    return found


def _kept(ws: Workspace, before: Cumulative, table: str, since: int) -> pa.Table:
    own = [shard for shard in before.shards(table) if shard.iteration >= since]
    return pa.concat_tables([empty(table), *(partitions.read_file(ws, table, ws.resolve(one.path)) for one in own)])


class _Looked:
    """Looks at first and last screens, only where their bytes differ, and each once."""

    def __init__(
        self, ws: Workspace, iteration: int, read: Sequence[tuple[str, str]], before: Cumulative, since: int
    ) -> None:
        self._ws, self._before, self._since = ws, before, since
        stages = [stage for table, stage in read if table == "images"]
        self._own = [path for stage in stages for path in partitions.files(ws, "images", iteration, stage)]
        self._new: dict[str, int] = {}

    def alike(self, pairs: Sequence[tuple[Screens, Screens]]) -> list[bool]:
        wanted = {
            sha for ours, others in pairs for two in zip(ours, others, strict=True) if two[0] != two[1] for sha in two
        }
        known = self._hashes(wanted - {None})

        def like(left: str | None, right: str | None) -> bool:
            if left is None or right is None:  # a text was all there was to see
                return False
            return left == right or (left in known and right in known and hashes.alike(known[left], known[right]))

        return [all(like(*two) for two in zip(ours, others, strict=True)) for ours, others in pairs]

    def _hashes(self, wanted: set[str]) -> dict[str, int]:
        if not wanted:
            return {}
        kept = _kept(self._ws, self._before, "screen_hashes", self._since)
        kept = kept.filter(pc.is_in(kept["sha256"], value_set=pa.array(wanted, pa.string())))
        known = dict(zip(kept["sha256"].to_pylist(), kept["dhash"].to_pylist(), strict=True))
        earlier = [
            self._ws.resolve(shard.path) for shard in self._before.shards("images") if shard.iteration >= self._since
        ]
        for sha, encoded in screens.load(self._ws, [*self._own, *earlier], wanted - known.keys()).items():
            try:
                self._new[sha] = hashes.dhash(encoded)
            except OSError:  # no picture: it is like none
                continue
        return known | self._new

    def rows(self) -> list[dict]:
        return [{"sha256": sha, "dhash": value} for sha, value in self._new.items()]
