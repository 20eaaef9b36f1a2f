"""Query every table and the analysts' views in SQL, directly over the Parquet files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from flywheel.config.workspace import Workspace
from flywheel.store import labels, manifest, partitions, recording_verdicts, renamed_tables
from flywheel.store.catalog import compaction
from flywheel.store.partitions import PartMissing
from flywheel.store.schema import SQL_TYPES, TABLES
from flywheel.store.versioning import dvc_files
from flywheel.utils.errors import BadInput, DataError, DiskFull, FlywheelError

# Results as JSON, text and files.


def query_json_rows(connection: duckdb.DuckDBPyConnection, select: str) -> list[dict[str, Any]]:
    """Run one SELECT, without a semicolon, and return its rows as mappings of JSON values, without importing pandas.

    Times and bytes are text; numbers that are not finite are null. connection: to the catalogue. select: the SQL.
    Raises BadInput for wrong SQL, also for two columns of one name, and as `run_query`.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result"
        run_query(connection, f"COPY ({select}) TO {_quote_text(file)} (FORMAT json, ARRAY true)")
        return json.loads(file.read_text(encoding="utf-8"), parse_constant=lambda _: None)


def result_as_json_rows(result: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a query's result, each a mapping of JSON values.

    Times are text, bytes a text that says how many they are (`<12 bytes>`); numbers that are not finite are null.
    result: of columns of one name the later ones get a number. A table without columns gives [].
    """
    if not result.num_columns:
        return []
    return json.loads(_copy_as_text(result, "FORMAT json, ARRAY true"), parse_constant=lambda _: None)


def table_from_mappings(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Make a table of `rows` that have the same columns, for display; no rows give a table without columns.

    rows: of values by column name. Raises pyarrow.ArrowException where the values of one column are of kinds that do
    not go together, OverflowError for a whole number of more than 64 bits.
    """
    return pa.Table.from_pylist([dict(row) for row in rows])


def _render_table(result: pa.Table) -> str:
    """Render the result as a table of text for people."""
    from rich.console import Console
    from rich.table import Table

    numeric = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in result.schema.types]
    words = _values_as_text(result, numeric)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, number in zip(words.column_names, numeric, strict=True):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in zip(*(column.to_pylist() for column in words.columns), strict=True):
        table.add_row(*map(_render_cell, row))
    text = io.StringIO()
    Console(file=text, width=max(80, 26 * words.num_columns), color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


# Characters that end a line to Python's `splitlines` and to rich, but for the line feed: a cell shows them escaped.
_SEPARATORS = {ord(one): one.encode("unicode_escape").decode() for one in "\x0b\x0c\r\x1c\x1d\x1e\x85\u2028\u2029"}


def _render_cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value).translate(_SEPARATORS).replace("[", r"\[")


def _values_as_text(result: pa.Table, numeric: list[bool]) -> pa.Table:
    """Convert every column but numbers to the text that DuckDB makes of it."""
    if all(number or kind == pa.string() for number, kind in zip(numeric, result.schema.types, strict=True)):
        return _rename_duplicates(result)
    with _connect_to_result(result) as connection:
        kept = [
            column if number else f"({column})::VARCHAR AS {_quote_name(name)}"
            for (name, column), number in zip(_result_columns(connection), numeric, strict=True)
        ]
        return connection.execute(f"SELECT {', '.join(kept)} FROM result").to_arrow_table()


def _copy_as_text(result: pa.Table, form: str) -> str:
    with _connect_to_result(result) as connection, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result"
        columns = ", ".join(f"{column} AS {_quote_name(name)}" for name, column in _result_columns(connection))
        connection.execute(f"COPY (SELECT {columns} FROM result) TO '{file}' ({form})")
        return file.read_text(encoding="utf-8")


def _connect_to_result(result: pa.Table) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("result", _rename_duplicates(result))
    return connection


def _rename_duplicates(result: pa.Table) -> pa.Table:
    """Add numbers to column names that repeat, in any case, as DuckDB does."""
    seen: dict[str, int] = {}
    names = []
    for name in result.column_names:
        seen[name.lower()] = seen.get(name.lower(), -1) + 1
        names.append(f"{name}_{seen[name.lower()]}" if seen[name.lower()] else name)
    return result.rename_columns(names)


def _result_columns(connection: duckdb.DuckDBPyConnection) -> list[tuple[str, str]]:
    """Return (name, SQL) of each column; screens and other bytes are shown by their size."""
    described = connection.execute("DESCRIBE result").fetchall()
    return [
        (name, f"'<' || octet_length({_quote_name(name)}) || ' bytes>'" if kind == "BLOB" else _quote_name(name))
        for name, kind, *_ in described
    ]


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# Views: one per table, over its Parquet files and over rows in other files.

# Second views -> their tables: steps with each row's file and row number, by which queries read only their row groups;
# scores of all versions of each scorer, where the view `scores` has the current ones alone.
_SECOND_VIEWS = {"steps_in_files": "steps", "score_history": "scores"}
# Rows outside of partitions: people label at any time, closed iterations too.
_ROWS_OUTSIDE_PARTITIONS = {
    "reviews": """SELECT iteration, 'review' AS stage, trajectory_id AS subject, 'trajectory' AS kind, reviewer,
        label AS decision, comment, "at" FROM label_history"""
}


def _create_table_views(
    connection: duckdb.DuckDBPyConnection,
    ws: Workspace,
    staged: Workspace | None,
    reads: Set[str] | None,
    *,
    lost: bool,
) -> None:
    """Create a view for each table, views of what people say and of iterations' files, and the table `promotions`.

    reads: tables to create; None: all. lost: whether a missing file makes the queries of its table fail; if False,
    PartMissing is raised here.
    """
    touched = {int(path.name.partition("=")[2]) for path in staged.data.glob("*/iteration=*")} if staged else set()
    done = compaction.find_compacted_iterations(ws, without=touched)
    missing = _find_missing_partitions(ws, done.iterations | touched)
    connection.execute(f"CREATE VIEW label_history AS {labels.label_history_sql(ws)}")
    connection.execute(f"CREATE VIEW recording_verdicts AS {recording_verdicts.recording_verdicts_sql(ws)}")
    for name, kinds in _column_types().items():
        if reads is not None and name not in reads:
            continue
        if fault := missing.get(_SECOND_VIEWS.get(name, name)):
            _create_fault_view(connection, name, kinds, fault)
        else:
            _create_table_view(connection, ws, name, staged, done, lost=lost)
    _create_promotions(connection, ws)
    create_file_view(connection, "dvc_lock", [ws.root / "iterations" / "*" / "dvc.lock"])
    create_file_view(connection, "parameter_files", [ws.root / "iterations" / "*" / "params.yaml"])
    create_file_view(connection, "decision_files", [ws.root / "iterations" / "*" / "decisions.json"])
    create_file_view(connection, "fresh_evaluation_files", [ws.root / "iterations" / "*" / "checkup.json"])


def _find_file_fault(path: Path) -> DataError | None:
    partition = path.name.startswith("part-")
    return (partitions.find_part_file_fault if partition else compaction.find_compacted_file_fault)(path)


def _duckdb_message(error: Exception) -> str:
    """Return the error's text in one line, without the excerpt of the query."""
    return " ".join(str(error).split("\n\nLINE ")[0].split())


def _find_missing_partitions(ws: Workspace, without: Set[int]) -> dict[str, DataError]:
    """Return table -> error for its first partition that is recorded and missing, so that it is not taken for empty."""
    found: dict[str, DataError] = {}
    for k in ws.list_iteration_folders():
        for table, folder in sorted(dvc_files.recorded_partitions(ws, k)) if k not in without else ():
            if table not in found and not ws.resolve(folder).is_dir() and folder not in dvc_files.read_pruned(ws, k):
                found[table] = DataError(
                    "a partition that is recorded is not here",
                    where=folder,
                    fix="fetch it: `dvc checkout`, or `dvc pull` where there is a remote (`flywheel status` tells all)",
                )
    return found


@cache
def _column_types() -> dict[str, dict[str, str]]:
    """Return the SQL types of all tables' columns, by table and column; those of second views too."""
    # DuckDB would derive them from an Arrow table, but imports pandas for it: half a second of each command.
    names = {kind: name for name, kind in SQL_TYPES.items()}
    found = {
        table: {"iteration": "INTEGER", "stage": "VARCHAR"} | {field.name: names[field.type] for field in schema}
        for table, schema in TABLES.items()
    }
    in_files = {"filename": "VARCHAR", "file_row_number": "BIGINT"}
    return found | {"steps_in_files": found["steps"] | in_files, "score_history": found["scores"]}


def _create_table_view(
    connection: duckdb.DuckDBPyConnection,
    ws: Workspace,
    name: str,
    staged: Workspace | None,
    done: compaction.CompactedIterations,
    *,
    lost: bool,
) -> None:
    table, kinds = _SECOND_VIEWS.get(name, name), _column_types()[name]
    try:
        new = partitions.table_files(staged, table) if staged else []
        replaced = {path.relative_to(staged.root).parent for path in new} if staged else set()
        own = partitions.table_files(ws, table, done.iterations)
        new = [*(path for path in own if path.relative_to(ws.root).parent not in replaced), *new]
        for path in new:  # DuckDB takes the types of the first file, and rounds the values of the others to them
            partitions.check_file_schema(ws, table, path)
    except DataError as fault:
        if isinstance(fault, PartMissing) and not lost:
            raise
        _create_fault_view(connection, name, kinds, fault)
        return
    files = [*done.large[table], *new]
    try:
        select = f"SELECT {', '.join(map(_quote_name, kinds))} FROM read_parquet"
        read = []
        for path, without in done.files[table]:  # without rows that are out of date
            rest = f" WHERE iteration NOT IN ({', '.join(map(str, without))})" if without else ""
            read.append(f"{select}({_quote_text(path)}, hive_partitioning = false){rest}")
        if files:  # iteration and stage come from their paths
            types = "hive_partitioning = true, hive_types = {'iteration': INTEGER, 'stage': VARCHAR}"
            read.append(f"{select}([{', '.join(map(_quote_text, files))}], {types})")
        if name in _ROWS_OUTSIDE_PARTITIONS:
            read.append(_ROWS_OUTSIDE_PARTITIONS[name])
        if read:
            rows = " UNION ALL ".join(read)
            connection.execute(
                f"CREATE VIEW {name} AS {f'FROM ({rows}) WHERE current IS NOT false' if name == 'scores' else rows}"
            )
        else:
            typed = ", ".join(f'"{column}" {kind}' for column, kind in kinds.items())
            connection.execute(f"CREATE TABLE {name} ({typed})")
    except duckdb.Error as error:
        paths = [*files, *(path for path, _ in done.files[table])]
        found = next((fault for path in paths if (fault := _find_file_fault(path))), None)
        if isinstance(found, PartMissing) and not lost:
            raise found from None
        found = found or DataError(
            f"table {table} cannot be read: {_duckdb_message(error)}", where=ws.relative(ws.data / table)
        )
        _create_fault_view(connection, name, kinds, found)


def _quote_text(path: Path | str) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _create_fault_view(
    connection: duckdb.DuckDBPyConnection, table: str, kinds: Mapping[str, str], fault: DataError
) -> None:
    """Create a view in place of an unreadable table: its queries raise the fault, those of other tables work."""
    told = labels.DAMAGED_FILE_MARK + json.dumps({"what": fault.what, "where": fault.where, "fix": fault.fix})
    raised = f"error({_quote_text(told)})"
    # Every column raises it too: DuckDB answers a filter on constants (stage = 'score') before this WHERE.
    columns = ", ".join(f'{raised}::{kind} AS "{name}"' for name, kind in kinds.items())
    connection.execute(f"CREATE VIEW {table} AS SELECT {columns} WHERE {raised} IS NULL")


def _sql_literal(value: str | int | None) -> str:
    return "NULL" if value is None else _quote_text(value) if isinstance(value, str) else str(value)


def _create_promotions(connection: duckdb.DuckDBPyConnection, ws: Workspace) -> None:
    types = {"iteration": int, "model": str, "digest": str, "promoted": bool, "reason": str}
    kinds = {name: {int: "INTEGER", str: "VARCHAR", bool: "BOOLEAN"}[kind] for name, kind in types.items()}
    rows = []
    try:
        for iteration in ws.list_iteration_folders():
            path = ws.promotion(iteration)
            if not path.exists():
                continue
            row = {"reason": "", **manifest.read_promotion(ws, iteration), "iteration": iteration}
            for name, kind in types.items():
                if not isinstance(row.get(name), kind | None):
                    raise DataError(f"a promotion.json is wrong: {name} is {row[name]!r}", where=path)
            rows.append(f"({', '.join(_sql_literal(row.get(name)) for name in types)})")
    except DataError as fault:
        _create_fault_view(connection, "promotions", kinds, fault)
        return
    connection.execute(f"CREATE TABLE promotions ({', '.join(f'{name} {kind}' for name, kind in kinds.items())})")
    if rows:
        connection.execute(f"INSERT INTO promotions VALUES {', '.join(rows)}")  # with parameters DuckDB imports pandas


def create_file_view(connection: duckdb.DuckDBPyConnection, view: str, files: Sequence[Path]) -> None:
    """Create a view of the text of iterations' files, with the columns iteration (INTEGER) and content (VARCHAR).

    connection: the view is created there. view: its name. files: paths or patterns in the iterations' folders; they are
    read with each query of the view. Files in a folder whose name is no number are left out. Raises duckdb.Error where
    the name is taken.
    """
    read = f"read_text([{', '.join(map(_quote_text, files))}])"
    text = read if files else "(SELECT '' AS filename, '' AS content LIMIT 0)"
    of = r"regexp_extract(filename, '[/\\](\d+)[/\\][^/\\]+$', 1)"
    numbered = f"SELECT {of}::INTEGER AS iteration, content FROM {text} WHERE {of} <> ''"
    connection.execute(f"CREATE VIEW {view} AS {numbered}")


# Each connection is in memory, with views on the files: a shared database file could not be opened by a second process.

ResultFormat = Literal["table", "csv", "json", "parquet"]


# A statement with one of these words lists the catalogue, or reads tables that its text does not name.
_READS_ALL = re.compile(
    r"\b(show|desc|describe|summarize|pragma|query|query_table|information_schema|(duckdb|pg|sqlite)_\w+)\b", re.I
)


@cache
def _definitions() -> dict[str, list[str]]:
    """Return the statements that create each view and macro, by name, each after those that it builds on."""
    found: dict[str, list[str]] = {}
    for statement in duckdb.extract_statements(catalog_views_sql()):
        if made := re.search(r"^CREATE (?:VIEW|MACRO) (\w+)", statement.query, re.MULTILINE):
            found.setdefault(made[1], []).append(statement.query)
    return found


def _find_names_read(sql: str) -> Set[str] | None:
    """Return every word of `sql` and of the views and macros that it reads; None where it may read any table."""
    if _READS_ALL.search(sql):
        return None
    words: set[str] = set()
    texts = [sql]
    while texts:
        new = set(re.findall(r"\w+", texts.pop().lower())) - words
        words |= new
        texts += (text for word in new for text in _definitions().get(word, ()))
        texts += (text for word in new if (text := _ROWS_OUTSIDE_PARTITIONS.get(word)))
    return words


def connect_catalog(
    ws: Workspace,
    staged: Workspace | None = None,
    *,
    database: str = ":memory:",
    tables_alone: bool = False,
    reads: str | None = None,
) -> duckdb.DuckDBPyConnection:
    """Open the catalogue in DuckDB: a view for each table, and the analysts' views and macros of `catalog*.sql`.

    There are `label_history`, `recording_verdicts` and `promotions` too. A table's view has the columns of its schema,
    `iteration` INTEGER and `stage` VARCHAR; no rows where nothing is written yet. It sees the files that exist now; the
    first partition of a table needs a new connection. A damaged file fails the queries of its table only. Close the
    connection after use.

    staged: a workspace whose partitions replace those of `ws`; None: none are replaced. database: path of the file to
    write, which replaces one that is there; by default the catalogue is in memory. tables_alone: leave out views and
    macros, which take most of the time. reads: SQL; only the tables, views and macros that it names, and those that
    these read, are created (None: all); where it may read comments, or `database` is a file, each table and column gets
    its comment. Raises DataError where a list of pruned outputs is damaged, a view cannot be made for a damaged file,
    or a partition is being replaced for half a minute; OSError where a file that is there cannot be deleted,
    duckdb.Error where the file `database` cannot be made.
    """
    names = _find_names_read(reads) if reads is not None else None
    made = partial(_open_connection, ws, staged, database, names, tables_alone=tables_alone)
    try:
        connection = partitions.retry_while_replaced(partial(made, lost=False))
    except PartMissing:  # the file is lost, not being replaced
        connection = made(lost=True)
    if database != ":memory:" or (reads is not None and names is None):
        _add_comments(connection)
    return connection


def _open_connection(
    ws: Workspace, staged: Workspace | None, database: str, reads: Set[str] | None, *, tables_alone: bool, lost: bool
) -> duckdb.DuckDBPyConnection:
    """Open one connection. lost: as for `_create_table_views`."""
    if database != ":memory:":
        Path(database).unlink(missing_ok=True)  # of the attempt before
    connection = duckdb.connect(database)
    try:
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
        # Up to so many screens of a trajectory are looked for only in row groups that can hold them.
        connection.execute("SET GLOBAL dynamic_or_filter_threshold = 1000")
        # Footers are read once per connection, not per query: a file's name changes with its content.
        connection.execute("SET GLOBAL parquet_metadata_cache = true")
        _create_table_views(connection, ws, staged, reads, lost=lost)
        if reads is None and not tables_alone:
            connection.execute(catalog_views_sql())
        elif not tables_alone:
            needed = (text for name, texts in _definitions().items() if name in reads for text in texts)
            connection.execute(";\n".join(needed) or "SELECT 1")
    except duckdb.Error as error:
        found = _find_damaged_file(connection, error)
        connection.close()
        raise found or error from None
    except PartMissing:
        connection.close()
        raise
    return connection


def _add_comments(connection: duckdb.DuckDBPyConnection) -> None:
    """Add a comment to each table, and to each column that has none; that takes half a millisecond each."""
    import yaml

    package = resources.files("flywheel.store.catalog")
    connection.execute(package.joinpath("table_comments.sql").read_text(encoding="utf-8"))
    meanings = yaml.safe_load(package.joinpath("column_comments.yaml").read_text(encoding="utf-8"))
    of_steps, of_trajectories = (
        dict(connection.execute(_SQL["list_columns"], [name]).fetchall()) for name in ("steps", "trajectories")
    )
    lacking = [
        (table, column, (of_steps if table == "steps_in_files" else {}).get(column) or meaning)
        for table, column in connection.execute(_SQL["list_columns_without_comment"]).fetchall()
        if (meaning := meanings.get(column) or of_trajectories.get(column) or of_steps.get(column))
    ]
    connection.execute(
        ";".join(f"COMMENT ON COLUMN {t}.{_quote_name(c)} IS {_quote_text(meaning)}" for t, c, meaning in lacking)
    )


def write_catalog_file(ws: Workspace, path: Path) -> None:
    """Write a DuckDB file of the catalogue's views and macros, without rows, for programs that open it read-only.

    path: replaced where it is such a file. It names the present data files by absolute paths: once a partition is
    replaced, queries of its table fail. Raises BadInput where the path cannot be written, or holds a file of another
    kind; DataError as `connect_catalog`.
    """
    with _name_output_file(path):
        if path.exists() and not _is_database(path):
            raise BadInput("there is a file that is no catalogue", where=path, fix="name another place")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _name_output_file(path):
            if not path.parent.is_dir():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            connect_catalog(ws, database=str(temporary)).close()
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(12)[8:] == b"DUCK"


@cache
def catalog_views_sql(of: str = ".sql") -> str:
    """Return the SQL that creates all views and macros of the catalogue, with their comments.

    It joins the files `catalog*.sql`, each of which builds on those before it by name. of: ending of the names of the
    files to take.
    """
    files = [path for path in resources.files("flywheel.store.catalog").iterdir() if path.name.startswith("catalog")]
    files = sorted((path for path in files if path.name.endswith(of)), key=lambda path: path.name)
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def read_queries(package: str) -> dict[str, str]:
    """Read the named queries in a package's `queries.sql`: name, as a line `-- name: NAME` gives it -> SQL.

    package: its dotted name. Raises ModuleNotFoundError where there is no such package, FileNotFoundError where it has
    no such file.
    """
    text = resources.files(package).joinpath("queries.sql").read_text(encoding="utf-8")
    _, *parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return {name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}


def query_catalog(ws: Workspace, sql: str) -> pa.Table:
    """Run the statement `sql` on the catalogue and return its rows.

    It runs again where a partition was replaced meanwhile. A statement without rows gives a table without columns.
    Raises BadInput, in one line, for wrong or empty SQL; DataError for a damaged or lost file, and as
    `connect_catalog`; FlywheelError where it needs more memory than it may take; DiskFull.
    """

    def once() -> pa.Table:
        with contextlib.suppress(BadInput), connect_catalog(ws, reads=sql) as connection:
            return run_query(connection, sql)
        with connect_catalog(ws) as connection:  # with every table there, the message suggests names
            return run_query(connection, sql)

    return partitions.retry_while_replaced(once)


def run_query(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Any = None) -> pa.Table:
    """Run the statement `sql` on an open connection to the catalogue and return its rows.

    parameters: of the statement, a list by position or a mapping by name; None: it has none. A statement without rows
    gives a table without columns. Raises, each in one line, BadInput for wrong or empty SQL, DataError for a damaged or
    missing file, DiskFull, and FlywheelError where the query needs too much memory or is interrupted.
    """
    try:
        result = connection.execute(sql, parameters)
        if result is None:  # nothing but blanks and comments
            raise BadInput("the query is empty", fix='for example `flywheel query "from iterations"`')
        return result.to_arrow_table() if result.description else pa.table({})
    except duckdb.Error as error:
        raise explain_duckdb_error(connection, error) from None


def explain_duckdb_error(connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> FlywheelError:
    """Return the flywheel error for an error of DuckDB, in one line.

    connection: the one on which `error` was raised; it is searched for the damaged file. Returns DataError for a file
    that is damaged, or was missing when the connection was opened; PartMissing, a DataError, for one that is gone since
    then; DiskFull; a plain FlywheelError for a query that needs more memory than allowed or was interrupted; BadInput
    for all else, which is wrong SQL.
    """
    if isinstance(error, duckdb.InterruptException):
        return FlywheelError("the query was interrupted", fix="ask it again")
    if isinstance(error, duckdb.IOException) and os.strerror(errno.ENOSPC) in str(error):
        return DiskFull(_duckdb_message(error), fix="free some space")
    if isinstance(error, duckdb.OutOfMemoryException):
        fix = "ask for fewer rows or columns, or aggregate them in the query"
        return FlywheelError(f"the query needs more memory than it may take: {_duckdb_message(error)}", fix=fix)
    if isinstance(error, _OF_THE_QUERY):
        return _wrong_query_error(error)
    return _find_damaged_file(connection, error) or _wrong_query_error(error)


# Errors of the query itself; any other error of DuckDB's may come from a damaged file.
_OF_THE_QUERY = (
    duckdb.ParserException,
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConversionException,
    duckdb.OutOfRangeException,
    duckdb.ConstraintException,
    duckdb.PermissionException,
)


_UNKNOWN_COLUMN = re.compile(r'column (?:named )?"(\w+)"')
_UNKNOWN_TABLE = re.compile(r"(?:Table|Function) with name (\w+) does not exist")


def _wrong_query_error(error: duckdb.Error) -> BadInput:
    told, renamed = _duckdb_message(error), ""
    if column := _UNKNOWN_COLUMN.search(told):
        renamed = renamed_tables.describe_renamed_column(column[1], str(error))
    elif table := _UNKNOWN_TABLE.search(told):
        renamed = renamed_tables.describe_renamed_table(table[1])
    return BadInput(
        renamed or f"the query cannot be answered: {told}",
        fix="`SHOW TABLES` lists tables and views, `DESCRIBE t` columns",
    )


def _find_damaged_file(connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> DataError | None:
    """Return the error of the damaged file behind `error`: named by its table's view, or found by reading; None for
    none."""
    _, told, facts = str(error).partition(labels.DAMAGED_FILE_MARK)
    if told:
        return DataError(**json.loads(facts))
    files: list[str] = []
    with contextlib.suppress(duckdb.Error):
        for (text,) in connection.execute("SELECT sql FROM duckdb_views() WHERE NOT internal").fetchall():
            files += re.findall(r"'([^']+\.parquet)'", text)
    return next((fault for file in files if (fault := _find_file_fault(Path(file)))), None)


def query_rows(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Any = None) -> list[dict[str, Any]]:
    """Run the statement `sql` on an open connection to the catalogue and return a mapping for each row.

    sql, parameters and errors: as of `run_query`. Of columns with one name the last counts.
    """
    return run_query(connection, sql, parameters).to_pylist(maps_as_pydicts="strict")


def render_result(result: pa.Table, format: ResultFormat = "table", output: Path | None = None) -> str:
    """Render a query's `result` as text; or write it to the file `output`, and return a line that says so.

    format: Parquet needs `output`. output: None returns the text; an existing file is replaced, and the returned line
    gives the number of rows. Raises BadInput where Parquet has no `output` or cannot hold a column, or `output` cannot
    be written.
    """
    if format == "parquet":
        if output is None:
            raise BadInput("Parquet is not text", where="--format parquet", fix="name a file with --output")
        try:
            with _name_output_file(output):
                pq.write_table(result, output, compression="zstd")
        except pa.ArrowNotImplementedError as error:  # an interval, say
            raise BadInput(
                f"Parquet cannot hold it: {error}", where=output, fix="cast the column, or ask for csv"
            ) from None
    else:
        if format == "csv":
            text = _copy_as_text(result, "FORMAT csv") if result.num_columns else ""
        elif format == "json":
            text = json.dumps(result_as_json_rows(result), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        else:
            text = _render_table(result)
        if output is None:
            return text
        with _name_output_file(output):
            output.write_text(text, encoding="utf-8")
    return f"{result.num_rows} rows written to {output}"


@contextlib.contextmanager
def _name_output_file(output: Path) -> Iterator[None]:
    """Turn errors of writing the file into BadInput, in one line."""
    try:
        yield
    except (OSError, duckdb.IOException) as error:
        what = f"the result cannot be written: {getattr(error, 'strerror', None) or error}"
        raise BadInput(what, where=output, fix="name a file in a folder that is there") from None


T = TypeVar("T")


class CatalogConnection:
    """Hold one connection to the catalogue for many queries, from any thread.

    Opening a catalogue reads footers of each table and binds all views; here that is repeated only after a partition or
    a promotion was added, removed or replaced. prepare: called with each new connection before its first query; its
    errors pass through `run`.
    """

    def __init__(self, ws: Workspace, prepare: Callable[[duckdb.DuckDBPyConnection], object] = lambda _: None) -> None:
        self.ws, self._prepare = ws, prepare
        self._lock = threading.Lock()
        self._seen: frozenset | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None

    def run(self, work: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        """Return what `work` returns for a connection to the catalogue in its present state.

        work: gets a cursor of its own, which it must not use after it returns. It is called again where a partition is
        replaced meanwhile; its errors are passed on. Raises DataError as `connect_catalog`.
        """

        def once() -> T:
            with self._cursor() as cursor:
                return work(cursor)

        return partitions.retry_while_replaced(once)

    def digest(self) -> str:
        """Hash the state of the catalogue to 16 hex digits, which change with each partition and promotion."""
        return hashlib.sha256(repr(sorted(filter(None, _partition_stamps(self.ws)))).encode()).hexdigest()[:16]

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            seen = _partition_stamps(self.ws)
            if self._connection is None or seen != self._seen:
                opened = connect_catalog(self.ws)
                self._prepare(opened)
                self._connection, self._seen = opened, seen  # queries on the old one may finish
            return self._connection.cursor()


def _partition_stamps(ws: Workspace) -> frozenset[tuple[str, int, int] | None]:
    """Return the stamps of all partitions and promotions: path, modification time, inode."""
    folders = ws.data.glob("*/iteration=*/stage=*")
    promotions = (ws.root / "iterations").glob("*/promotion.json")
    listed = (_file_stamp(path / partitions.PARTS_FILE) or _file_stamp(path) for path in folders)
    return frozenset([*listed, *map(_file_stamp, promotions)])


def _file_stamp(path: Path) -> tuple[str, int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return str(path), status.st_mtime_ns, status.st_ino


# The reference of views and macros.

_REFERENCE_HEAD = """# Tables, views and macros

Made by `flywheel data catalog > docs/sql.md` from the comments in `flywheel/store/catalog/`. DuckDB shows them too:
`flywheel query "from duckdb_columns()"`. Partitions of the tables lie in `data/`, but for `promotions`, which is read
from the iterations' `promotion.json`. [data](data.md) and [a notebook](analysis.ipynb) show how to ask; what the names
in `metrics` mean says [metrics](metrics.md).
"""
_SQL = read_queries("flywheel.store.catalog")


def render_catalog_reference() -> str:
    """Describe the catalogue's tables, views and macros as Markdown, `docs/sql.md`, from their comments."""
    reads = _SQL["list_columns"]
    with tempfile.TemporaryDirectory() as empty, connect_catalog(Workspace(Path(empty)), reads=reads) as connection:
        told = dict(connection.execute(_SQL["list_tables_and_views"]).fetchall())
        tables = [name for name in (*TABLES, "promotions") if name in told]
        views = [name for name in told if name not in tables]
        parts = [_REFERENCE_HEAD, "## Tables", *_describe_tables(connection, tables, told)]
        parts += ["## Views", *_describe_tables(connection, views, told), "## Macros", *_describe_macros(connection)]
    return "\n".join(parts)


def _describe_tables(
    connection: duckdb.DuckDBPyConnection, names: Sequence[str], comments: Mapping[str, str]
) -> Iterator[str]:
    for name in names:
        comment = f"{comments[name]}.\n" if comments[name] else ""
        meanings = dict(connection.execute(_SQL["list_columns"], [name]).fetchall())
        columns = _describe_query(connection, f"FROM {name}")
        rows = [f"| `{column}` | {kind} | {meanings.get(column, '')} |" for column, kind in columns]
        table = "\n".join(["| column | type | |", "|---|---|---|", *rows, ""])
        yield f"### {name}\n{comment}\n{table}"


def _describe_macros(connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
    for name, parameters, kind, comment in connection.execute(_SQL["list_macros"]).fetchall():
        lines = f"### {name}({', '.join(parameters)})\n{comment}.\n"
        if kind == "table_macro":
            query = f"FROM {name}({', '.join(['NULL'] * len(parameters))})"
            columns = [column for column, _ in _describe_query(connection, query)]
            lines += f"\nColumns: {_join_columns(connection, columns)}.\n"
        yield lines


def _join_columns(connection: duckdb.DuckDBPyConnection, columns: list[str]) -> str:
    """List the columns, in short where they begin with all of a known view or table."""
    for name in ("trajectory_lineage", "steps"):
        of = [column for column, _ in _describe_query(connection, f"FROM {name}")]
        if columns[: len(of)] == of:
            return ", ".join([f"all of `{name}`", *(f"`{column}`" for column in columns[len(of) :])])
    return ", ".join(f"`{column}`" for column in columns)


def _describe_query(connection: duckdb.DuckDBPyConnection, query: str) -> list[tuple[str, str]]:
    return [row[:2] for row in connection.execute(f"DESCRIBE {query}").fetchall()]
