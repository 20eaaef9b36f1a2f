"""The catalog: every table and the analysts' views, in SQL, straight over the Parquet files.

Each connection is in memory with views on the files: a shared database file could not be opened by a second
process.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from flywheel.errors import BadInput, DataError, FlywheelError
from flywheel.store import catalog_tables, formats, partitions
from flywheel.store.parts import PartMissing
from flywheel.workspace import Workspace

Format = Literal["table", "csv", "json", "parquet"]


def connect(
    ws: Workspace, staged: Workspace | None = None, *, database: str = ":memory:", tables_alone: bool = False
) -> duckdb.DuckDBPyConnection:
    """A connection, in memory or to a new `database` file, with a view for each table (columns of the schema,
    `iteration` INTEGER, `stage` VARCHAR; no rows where nothing is written yet), the view `label_history`, the table
    `promotions`, and the views and macros of `catalog*.sql`.

    It sees the files that exist now; a later partition of a table that had none needs a new connection.
    A file that is not whole fails the queries that read its table, no others. staged: partitions of it are seen in
    place of the workspace's own. tables_alone: without views and macros, which take most of the time.
    """
    made = partial(_connect, ws, staged, database, tables_alone=tables_alone)
    try:
        return partitions.while_replaced(partial(made, lost=False))
    except PartMissing:  # lost, and not replaced
        return made(lost=True)


def _connect(
    ws: Workspace, staged: Workspace | None, database: str, *, tables_alone: bool, lost: bool
) -> duckdb.DuckDBPyConnection:
    """lost: whether a file that is missing fails the queries of its table, or PartMissing is raised."""
    if database != ":memory:":
        Path(database).unlink(missing_ok=True)  # of the try before
    connection = duckdb.connect(database)
    try:
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
        # So many screens of one trajectory are looked for in the row groups that can hold them, not in all.
        connection.execute("SET GLOBAL dynamic_or_filter_threshold = 1000")
        # Footers are read once a connection, not at each question: a file's name changes with its content.
        connection.execute("SET GLOBAL parquet_metadata_cache = true")
        catalog_tables.make(connection, ws, staged, lost=lost)
        if not tables_alone:
            connection.execute(views())
    except duckdb.Error as error:
        found = _damage(connection, error)
        connection.close()
        raise found or error from None
    except PartMissing:
        connection.close()
        raise
    return connection


def write(ws: Workspace, path: Path) -> None:
    """A DuckDB file that holds the same views and macros, and no rows: whoever has DuckDB opens it, read only.

    It names the files that exist now, by absolute paths: once a partition is replaced, queries of its table fail.
    """
    if path.exists() and not _is_database(path):
        raise BadInput("there is a file that is no catalogue", where=path, fix="name another place")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _named(path):
            if not path.parent.is_dir():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            connect(ws, database=str(temporary)).close()
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(12)[8:] == b"DUCK"


@cache
def views(of: str = ".sql") -> str:
    """The SQL of all views and macros, with their comments: each file builds on those before it by name. of: what the
    names of the files end in."""
    files = (path for path in resources.files("flywheel.store").iterdir() if path.name.endswith(of))
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(files, key=lambda path: path.name))


def query(ws: Workspace, sql: str) -> pa.Table:
    """The result of one statement. Raises BadInput, in one line, for wrong SQL; DataError for a damaged
    file.
    """

    def once() -> pa.Table:
        with connect(ws) as connection:
            return run(connection, sql)

    return partitions.while_replaced(once)


def run(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Any = None) -> pa.Table:
    """As `query`, on an open connection."""
    try:
        result = connection.execute(sql, parameters)
        if result is None:  # nothing but blanks and comments
            raise BadInput("the query is empty", fix='for example `flywheel query "from iterations"`')
        return result.to_arrow_table() if result.description else pa.table({})
    except duckdb.Error as error:
        raise told(connection, error) from None


def told(connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> FlywheelError:
    """What is raised for what DuckDB raised: BadInput, in one line, for wrong SQL; DataError for a damaged file."""
    if isinstance(error, _OF_THE_QUERY):
        return _refused(error)
    return _damage(connection, error) or _refused(error)


# What DuckDB raises for the words of a query; anything else may come from a damaged file.
_OF_THE_QUERY = (
    duckdb.ParserException,
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConversionException,
    duckdb.OutOfRangeException,
    duckdb.ConstraintException,
    duckdb.PermissionException,
)


def _refused(error: duckdb.Error) -> BadInput:
    return BadInput(
        f"the query cannot be answered: {catalog_tables.line(error)}",
        fix="`SHOW TABLES` lists tables and views, `DESCRIBE t` columns",
    )


def _damage(connection: duckdb.DuckDBPyConnection, error: duckdb.Error) -> DataError | None:
    """The damaged file behind an error, where there is one: told by its table's view, or found by reading."""
    _, told, facts = str(error).partition(catalog_tables.MARK)
    if told:
        return DataError(**json.loads(facts))
    files: list[str] = []
    with contextlib.suppress(duckdb.Error):
        for (text,) in connection.execute("SELECT sql FROM duckdb_views() WHERE NOT internal").fetchall():
            files += re.findall(r"'([^']+\.parquet)'", text)
    return next((fault for file in files if (fault := catalog_tables.fault_of(Path(file)))), None)


def rows(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Any = None) -> list[dict[str, Any]]:
    """As `run`, as mappings."""
    return run(connection, sql, parameters).to_pylist(maps_as_pydicts="strict")


def render(result: pa.Table, format: Format = "table", output: Path | None = None) -> str:
    """A result as text; with `output` it goes to that file, and the text says how much. Parquet needs
    `output`.
    """
    if format == "parquet":
        if output is None:
            raise BadInput("Parquet is not text", where="--format parquet", fix="name a file with --output")
        with _named(output):
            pq.write_table(result, output, compression="zstd")
    else:
        text = {"table": formats.as_table, "csv": formats.as_csv, "json": formats.as_json}[format](result)
        if output is None:
            return text
        with _named(output):
            output.write_text(text, encoding="utf-8")
    return f"{result.num_rows} rows written to {output}"


@contextlib.contextmanager
def _named(output: Path) -> Iterator[None]:
    """A file that cannot be written is told in one line."""
    try:
        yield
    except OSError as error:
        what = f"the result cannot be written: {error.strerror or error}"
        raise BadInput(what, where=output, fix="name a file in a folder that is there") from None
