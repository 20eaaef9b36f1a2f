"""The catalog's tables: a view of each over the Parquet files that there are, and what stands beside them in files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa

from flywheel.errors import DataError
from flywheel.schema import ADDED, TABLES
from flywheel.store import closed, dvc_lock, labels, manifest, partitions, pruned
from flywheel.store.parts import PartMissing
from flywheel.workspace import Workspace

# The table once more, with where each row lies: whoever names file and number is spared the other row groups.
_IN_FILES = "_in_files"
MARK = labels.FILE_MARK  # in the message of a view that stands for one; its facts follow, as JSON
# Rows of a table that lie in no partition: labels come at any time, for closed iterations too.
_BESIDE = {
    "reviews": """SELECT iteration, 'review' AS stage, trajectory_id AS subject, 'trajectory' AS kind, reviewer,
        label AS decision, comment, "at" FROM label_history"""
}


def make(connection: duckdb.DuckDBPyConnection, ws: Workspace, staged: Workspace | None, *, lost: bool) -> None:
    """A view for each table, the view `label_history`, the table `promotions`, and views of iterations' files.

    staged: partitions of it are seen in place of the workspace's own. lost: whether a file that is missing fails the
    queries of its table, or PartMissing is raised. A file that is not whole fails the queries that read its table.
    """
    touched = {int(path.name.partition("=")[2]) for path in staged.data.glob("*/iteration=*")} if staged else set()
    done = closed.look(ws, without=touched)
    missing = _missing(ws, done.iterations | touched)
    connection.execute(f"CREATE VIEW label_history AS {labels.history(ws)}")
    for name, kinds in _kinds().items():
        if fault := missing.get(name.removesuffix(_IN_FILES)):
            _stand_in(connection, name, kinds, fault)
        else:
            _table(connection, ws, name, staged, done, lost=lost)
    _promotions(connection, ws)
    show_files(connection, "dvc_lock", [ws.root / "iterations" / "*" / "dvc.lock"])
    show_files(connection, "decision_files", [ws.root / "iterations" / "*" / "decisions.json"])
    show_files(connection, "checkup_files", [ws.root / "iterations" / "*" / "checkup.json"])


def fault_of(path: Path) -> DataError | None:
    """What is wrong with a file of a table, where something is."""
    return partitions.fault(path) if path.name.startswith("part-") else closed.fault(path)


def line(error: Exception) -> str:
    """DuckDB's message without its picture of the query."""
    return " ".join(str(error).split("\n\nLINE ")[0].split())


def _missing(ws: Workspace, without: Set[int]) -> dict[str, DataError]:
    """table -> what is told of the first of its partitions that is recorded, and not there: it is not an empty one."""
    found: dict[str, DataError] = {}
    for lock in sorted((ws.root / "iterations").glob("*/dvc.lock")):
        k = int(lock.parent.name)
        for table, folder in sorted(dvc_lock.partitions(ws, k)) if k not in without else ():
            if table not in found and not ws.resolve(folder).is_dir() and folder not in pruned.read(ws, k):
                found[table] = DataError(
                    "a partition that is recorded is not here",
                    where=folder,
                    fix="fetch it: `dvc checkout`, or `dvc pull` where there is a remote (`flywheel status` tells all)",
                )
    return found


@cache
def _kinds() -> dict[str, dict[str, str]]:
    """SQL's types of all tables' columns, by table and name; and of steps in their files."""
    with duckdb.connect() as connection:
        own = (("iteration", pa.int32()), ("stage", pa.string()))
        found = {table: _sql_types(connection, pa.schema([*own, *schema])) for table, schema in TABLES.items()}
    return found | {f"steps{_IN_FILES}": found["steps"] | {"filename": "VARCHAR", "file_row_number": "BIGINT"}}


def _sql_types(connection: duckdb.DuckDBPyConnection, schema: pa.Schema) -> dict[str, str]:
    relation = connection.from_arrow(schema.empty_table())
    return {name: str(kind) for name, kind in zip(relation.columns, relation.types, strict=True)}


def _table(
    connection: duckdb.DuckDBPyConnection,
    ws: Workspace,
    name: str,
    staged: Workspace | None,
    done: closed.Closed,
    *,
    lost: bool,
) -> None:
    table, kinds = name.removesuffix(_IN_FILES), _kinds()[name]
    try:
        new = partitions.all_files(staged, table) if staged else []
        replaced = {path.relative_to(staged.root).parent for path in new} if staged else set()
        own = partitions.all_files(ws, table, done.iterations)
        files = [*done.large[table], *(path for path in own if path.relative_to(ws.root).parent not in replaced), *new]
    except DataError as fault:
        _stand_in(connection, name, kinds, fault)
        return
    try:
        read = [_selected(kinds, _closed(path, without)) for path, without in done.files[table]]
        for lacks, alike in _by_columns(connection, files, ADDED.get(table, ())).items():
            read.append(_selected(kinds, _read(alike), lacks))
        read += filter(None, [_BESIDE.get(name)])
        if read:
            connection.execute(f"CREATE VIEW {name} AS {' UNION ALL '.join(read)}")
        else:
            typed = ", ".join(f'"{column}" {kind}' for column, kind in kinds.items())
            connection.execute(f"CREATE TABLE {name} ({typed})")
    except duckdb.Error as error:
        paths = [*files, *(path for path, _ in done.files[table])]
        found = next((fault for path in paths if (fault := fault_of(path))), None)
        if isinstance(found, PartMissing) and not lost:
            raise found from None
        found = found or DataError(f"table {table} cannot be read: {line(error)}", where=ws.relative(ws.data / table))
        _stand_in(connection, name, kinds, found)


def _by_columns(
    connection: duckdb.DuckDBPyConnection, files: Sequence[Path], added: Sequence[str]
) -> dict[frozenset[str], list[Path]]:
    """The files by which of the columns `added` they lack, since they are older. DuckDB can do without
    (`union_by_name`), but then looks at all footers again at each question."""
    if not files:
        return {}
    has = {str(path): frozenset(added) for path in files}
    if added:
        names = ", ".join(f"'{name}'" for name in added)
        said = connection.execute(
            f"""SELECT file_name, list(name) FILTER (name IN ({names}))
            FROM parquet_schema([{_listed(files)}]) GROUP BY file_name"""
        ).fetchall()
        has |= {path: frozenset(own or ()) for path, own in said}
    found: dict[frozenset[str], list[Path]] = {}
    for path in files:
        found.setdefault(frozenset(added) - has[str(path)], []).append(path)
    return found


def _selected(kinds: Mapping[str, str], read: str, lacks: Set[str] = frozenset()) -> str:
    columns = (f'NULL::{kind} AS "{name}"' if name in lacks else f'"{name}"' for name, kind in kinds.items())
    return f"SELECT {', '.join(columns)} FROM {read}"


def _read(files: Sequence[Path]) -> str:
    """Partitions' files as a table, with the iteration and the stage of their paths."""
    options = "hive_partitioning = true, hive_types = {'iteration': INTEGER, 'stage': VARCHAR}"
    return f"read_parquet([{_listed(files)}], {options})"


def _closed(path: Path, without: Sequence[int]) -> str:
    """The rows of closed iterations in a file of theirs, without those of iterations that are others by now."""
    read = f"read_parquet({_quoted(path)}, hive_partitioning = false)"
    return f"{read} WHERE iteration NOT IN ({', '.join(map(str, without))})" if without else read


def _listed(files: Sequence[Path]) -> str:
    return ", ".join(map(_quoted, files))


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _stand_in(connection: duckdb.DuckDBPyConnection, table: str, kinds: Mapping[str, str], fault: DataError) -> None:
    """A view in place of a table that cannot be read: queries of other tables work, its own are told the fault."""
    told = MARK + json.dumps({"what": fault.what, "where": fault.where, "fix": fault.fix})
    raised = "error('" + told.replace("'", "''") + "')"
    # Every column raises it too: a filter on constants (stage = 'score') would be answered before the WHERE here is.
    columns = ", ".join(f'{raised}::{kind} AS "{name}"' for name, kind in kinds.items())
    connection.execute(f"CREATE VIEW {table} AS SELECT {columns} WHERE {raised} IS NULL")


def _promotions(connection: duckdb.DuckDBPyConnection, ws: Workspace) -> None:
    schema = pa.schema(
        [
            ("iteration", pa.int32()),
            ("model", pa.string()),
            ("digest", pa.string()),
            ("promoted", pa.bool_()),
            ("reason", pa.string()),
        ]
    )
    rows = []
    try:
        for path in sorted((ws.root / "iterations").glob("*/promotion.json")):
            rows.append({"reason": "", **manifest.read_promotion(ws, int(path.parent.name))})
            rows[-1]["iteration"] = int(path.parent.name)
        promotions = pa.Table.from_pylist(rows, schema=schema)
    except (DataError, pa.ArrowException) as error:
        fault = error if isinstance(error, DataError) else DataError(f"a promotion.json is wrong: {error}", where=path)
        _stand_in(connection, "promotions", _sql_types(connection, schema), fault)
        return
    connection.register("typed", promotions)
    connection.execute("CREATE TABLE promotions AS FROM typed")
    connection.unregister("typed")


def show_files(connection: duckdb.DuckDBPyConnection, view: str, files: Sequence[Path]) -> None:
    """A view of the text of iterations' files, over these or patterns of them. They are read when it is asked, not
    now."""
    text = (
        f"read_text([{', '.join(map(_quoted, files))}])" if files else "(SELECT '' AS filename, '' AS content LIMIT 0)"
    )
    of = r"regexp_extract(filename, '(\d+)[/\\][^/\\]+$', 1)::INTEGER"
    connection.execute(f"CREATE VIEW {view} AS SELECT {of} AS iteration, content FROM {text}")
