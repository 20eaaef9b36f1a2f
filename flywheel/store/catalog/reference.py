"""Describe the catalogue's views and macros as Markdown, from the comments in its SQL (`docs/sql.md`)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import duckdb

from flywheel.config.workspace import Workspace
from flywheel.store.catalog import database

_HEAD = """# Views and macros

Made by `flywheel data catalog > docs/sql.md` from the comments in `flywheel/store/catalog/*.sql`. They stand on the
tables of [`flywheel/store/schema.py`](../flywheel/store/schema.py), each with the columns `iteration` and `stage`
besides its own, and on `promotions`: which model was newest after an iteration, and why. [data](data.md) and
[a notebook](analysis.ipynb) show how to ask.
"""
_VIEWS = "SELECT view_name, comment FROM duckdb_views() WHERE NOT internal AND comment IS NOT NULL ORDER BY view_name"
_MACROS = """SELECT function_name, parameters, function_type, comment FROM duckdb_functions()
    WHERE NOT internal AND function_type IN ('macro', 'table_macro') ORDER BY function_name"""
_COLUMNS = "SELECT column_name, comment FROM duckdb_columns() WHERE table_name = ? AND comment IS NOT NULL"


def render_catalog_reference() -> str:
    """Return the reference. It is the same for every workspace."""
    with tempfile.TemporaryDirectory() as empty, database.connect_catalog(Workspace(Path(empty))) as connection:
        parts = [_HEAD, "## Views", *_views(connection), "## Macros", *_macros(connection)]
    return "\n".join(parts)


def _views(connection: duckdb.DuckDBPyConnection) -> list[str]:
    found = []
    for name, comment in connection.execute(_VIEWS).fetchall():
        meanings = dict(connection.execute(_COLUMNS, [name]).fetchall())
        found.append(f"### {name}\n{comment}.\n\n{_table(connection, f'FROM {name}', meanings)}")
    return found


def _macros(connection: duckdb.DuckDBPyConnection) -> list[str]:
    found = []
    for name, parameters, kind, comment in connection.execute(_MACROS).fetchall():
        lines = f"### {name}({', '.join(parameters)})\n{comment}.\n"
        if kind == "table_macro":
            columns = [
                row[0] for row in _described(connection, f"FROM {name}({', '.join(['NULL'] * len(parameters))})")
            ]
            lines += f"\nColumns: {_named(connection, columns)}.\n"
        found.append(lines)
    return found


def _named(connection: duckdb.DuckDBPyConnection, columns: list[str]) -> str:
    """In short where they are those of a table or view, and some more."""
    for name in ("trajectory_lineage", "steps"):
        of = [row[0] for row in _described(connection, f"FROM {name}")]
        if columns[: len(of)] == of:
            return ", ".join([f"all of `{name}`", *(f"`{column}`" for column in columns[len(of) :])])
    return ", ".join(f"`{column}`" for column in columns)


def _table(connection: duckdb.DuckDBPyConnection, query: str, meanings: dict[str, str]) -> str:
    rows = [f"| `{name}` | {kind} | {meanings.get(name, '')} |" for name, kind in _described(connection, query)]
    return "\n".join(["| column | type | |", "|---|---|---|", *rows, ""])


def _described(connection: duckdb.DuckDBPyConnection, query: str) -> list[tuple[str, str]]:
    return [row[:2] for row in connection.execute(f"DESCRIBE {query}").fetchall()]
