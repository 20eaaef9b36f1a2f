"""The catalog: every table and the analysts' views, in SQL, straight over the Parquet files.

Each connection is in memory with views on the files: a shared database file could not be opened by a second
process.
"""

from __future__ import annotations

import csv
import io
import json
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from flywheel.errors import BadInput, DataError
from flywheel.schema import ADDED, TABLES
from flywheel.store import manifest
from flywheel.workspace import Workspace

Format = Literal["table", "csv", "json", "parquet"]


def connect(ws: Workspace) -> duckdb.DuckDBPyConnection:
    """A connection with a view for each table (columns of the schema, `iteration` INTEGER, `stage` VARCHAR;
    no rows where nothing is written yet), the table `promotions`, and the views and macros of `catalog.sql`.

    It sees the files that exist now; a later partition of a table that had none needs a new connection.
    Raises DataError naming a file that is not whole.
    """
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for table in TABLES:
        _table(connection, ws, table)
    _promotions(connection, ws)
    connection.execute(resources.files("flywheel.store").joinpath("catalog.sql").read_text(encoding="utf-8"))
    return connection


def query(ws: Workspace, sql: str) -> pa.Table:
    """The result of one statement. Raises BadInput, in one line, for wrong SQL; DataError for a damaged
    file.
    """
    with connect(ws) as connection:
        return run(connection, sql)


def run(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Any = None) -> pa.Table:
    """As `query`, on an open connection."""
    try:
        result = connection.execute(sql, parameters)
        return result.to_arrow_table() if result.description else pa.table({})
    except (duckdb.IOException, duckdb.InvalidInputException) as error:
        raise DataError(
            _line(error), fix="find the partition with `flywheel doctor`; fetch it with `dvc checkout`"
        ) from None
    except duckdb.Error as error:
        raise BadInput(
            f"the query cannot be answered: {_line(error)}",
            fix="`SHOW TABLES` lists tables and views, `DESCRIBE t` columns",
        ) from None


def rows(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Any = None) -> list[dict[str, Any]]:
    """As `run`, as mappings."""
    return run(connection, sql, parameters).to_pylist()


def render(result: pa.Table, format: Format = "table", output: Path | None = None) -> str:
    """A result as text; with `output` it goes to that file, and the text says how much. Parquet needs
    `output`.
    """
    if format == "parquet":
        if output is None:
            raise BadInput("Parquet is not text", where="--format parquet", fix="name a file with --output")
        pq.write_table(result, output, compression="zstd")
    else:
        text = {"table": _as_table, "csv": _as_csv, "json": _as_json}[format](result)
        if output is None:
            return text
        output.write_text(text, encoding="utf-8")
    return f"{result.num_rows} rows written to {output}"


def _table(connection: duckdb.DuckDBPyConnection, ws: Workspace, table: str) -> None:
    files = sorted(str(path) for path in (ws.data / table).glob("iteration=*/stage=*/part-*.parquet"))
    if not files:
        typed = pa.schema([("iteration", pa.int32()), ("stage", pa.string()), *TABLES[table]]).empty_table()
        connection.register("typed", typed)
        connection.execute(f"CREATE TABLE {table} AS FROM typed")
        connection.unregister("typed")
        return
    names = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    types = "hive_types = {'iteration': INTEGER, 'stage': VARCHAR}"
    columns = ", ".join(f'"{name}"' for name in ("iteration", "stage", *TABLES[table].names))
    read = f"FROM read_parquet([{names}], hive_partitioning = true, {types})"
    if table in ADDED:  # older files lack these columns, perhaps all of them do
        added = ", ".join(f'NULL::VARCHAR AS "{name}"' for name in ADDED[table])
        read = read.replace("hive_partitioning", "union_by_name = true, hive_partitioning")
        read = f"FROM ({read} UNION ALL BY NAME SELECT {added} WHERE false)"
    try:
        connection.execute(f"CREATE VIEW {table} AS SELECT {columns} {read}")
    except duckdb.Error as error:
        raise DataError(
            f"a file of table {table} cannot be read: {_line(error)}",
            where=ws.relative(ws.data / table),
            fix="fetch it with `dvc checkout`, or run its stage again",
        ) from None


def _promotions(connection: duckdb.DuckDBPyConnection, ws: Workspace) -> None:
    connection.execute(
        "CREATE TABLE promotions (iteration INTEGER, model VARCHAR, digest VARCHAR, promoted BOOLEAN, reason VARCHAR)"
    )
    for path in sorted((ws.root / "iterations").glob("*/promotion.json")):
        raw = manifest.read_promotion(ws, int(path.parent.name))
        values = [
            int(path.parent.name),
            raw["model"],
            raw["digest"],
            raw.get("promoted"),
            raw.get("reason", ""),
        ]
        connection.execute("INSERT INTO promotions VALUES (?, ?, ?, ?, ?)", values)


def _line(error: Exception) -> str:
    """DuckDB's message without its picture of the query."""
    return " ".join(str(error).split("\n\nLINE ")[0].split())


def _as_csv(result: pa.Table) -> str:
    flat = io.StringIO()
    writer = csv.writer(flat, lineterminator="\n")
    writer.writerow(result.column_names)
    writer.writerows([_plain(value) for value in row.values()] for row in result.to_pylist())
    return flat.getvalue()


def _as_json(result: pa.Table) -> str:
    return json.dumps(result.to_pylist(), indent=2, default=_text, ensure_ascii=False) + "\n"


def _as_table(result: pa.Table) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, kind in zip(result.column_names, result.schema.types, strict=True):
        numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in result.to_pylist():
        table.add_row(*(_cell(value) for value in row.values()))
    text = io.StringIO()
    Console(file=text, width=max(80, 26 * result.num_columns), color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(_plain(value)).replace("[", r"\[")


def _plain(value: Any) -> Any:
    if isinstance(value, list | dict):
        return json.dumps(value, default=_text, ensure_ascii=False)
    return _text(value) if isinstance(value, bytes) or hasattr(value, "isoformat") else value


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    return value.isoformat(timespec="milliseconds") if hasattr(value, "isoformat") else str(value)
