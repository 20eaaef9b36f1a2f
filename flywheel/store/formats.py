"""The result of a query as text: a table for people, CSV as DuckDB writes it, JSON that every reader takes."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa


def as_csv(result: pa.Table) -> str:
    return _written(result, "FORMAT csv") if result.num_columns else ""


def as_json(result: pa.Table) -> str:
    """NaN and infinity, which JSON has not, are null."""
    rows = rows_of(result)
    return json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def rows_of(result: pa.Table) -> list[dict[str, Any]]:
    """The rows as JSON values."""
    if not result.num_columns:
        return []
    return json.loads(_written(result, "FORMAT json, ARRAY true"), parse_constant=lambda _: None)


def table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows, of the same columns, to be shown."""
    return pa.Table.from_pylist([dict(row) for row in rows])


def as_table(result: pa.Table) -> str:
    from rich.console import Console
    from rich.table import Table

    numeric = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in result.schema.types]
    words = _in_words(result, numeric)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, number in zip(words.column_names, numeric, strict=True):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in zip(*(column.to_pylist() for column in words.columns), strict=True):
        table.add_row(*map(_cell, row))
    text = io.StringIO()
    Console(file=text, width=max(80, 26 * words.num_columns), color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("[", r"\[")


def _in_words(result: pa.Table, numeric: list[bool]) -> pa.Table:
    """All but numbers as the text that DuckDB makes of it."""
    if not result.num_columns:
        return result
    with _connected(result) as connection:
        kept = [
            column if number else f"({column})::VARCHAR AS {_quoted(name)}"
            for (name, column), number in zip(_columns(connection), numeric, strict=True)
        ]
        return connection.execute(f"SELECT {', '.join(kept)} FROM result").to_arrow_table()


def _written(result: pa.Table, form: str) -> str:
    with _connected(result) as connection, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result"
        columns = ", ".join(f"{column} AS {_quoted(name)}" for name, column in _columns(connection))
        connection.execute(f"COPY (SELECT {columns} FROM result) TO '{file}' ({form})")
        return file.read_text(encoding="utf-8")


def _connected(result: pa.Table) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    seen: dict[str, int] = {}
    names = []
    for name in result.column_names:  # DuckDB tells columns of one name apart so, whatever their case
        seen[name.lower()] = seen.get(name.lower(), -1) + 1
        names.append(f"{name}_{seen[name.lower()]}" if seen[name.lower()] else name)
    connection.register("result", result.rename_columns(names))
    return connection


def _columns(connection: duckdb.DuckDBPyConnection) -> list[tuple[str, str]]:
    """Name and SQL of each column; screens and other bytes are told by their size."""
    described = connection.execute("DESCRIBE result").fetchall()
    return [
        (name, f"'<' || octet_length({_quoted(name)}) || ' bytes>'" if kind == "BLOB" else _quoted(name))
        for name, kind, *_ in described
    ]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
