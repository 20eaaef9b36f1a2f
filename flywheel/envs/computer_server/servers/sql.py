"""Serve MCP tools that query, and with --write change, SQLite databases in the home: `sql.py [--write]`."""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rpc import TEXT, ServedTool, ToolRefused, serve_tools

_ROWS = 200
_CELL = 500  # characters
_STATEMENT_S = 5.0
_LOOK = 10_000  # instructions of SQLite between two looks at the clock


def main() -> None:
    """Serve the tools `tables`, `query` and, with --write, `execute` until standard input ends."""
    parser = argparse.ArgumentParser(prog="sql", description=__doc__)
    parser.add_argument("--write", action="store_true", help="offer a tool that changes databases")
    writes = parser.parse_args().write

    def tables(database: str) -> str:
        with _open_database(database, False) as base:
            found = base.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()
        return "\n".join(sql for (sql,) in found) or "no tables"

    def query(database: str, sql: str) -> str:
        with _open_database(database, False) as base:
            return _format_rows(base.execute(sql))

    def execute(database: str, sql: str) -> str:
        with _open_database(database, True) as base, base:
            return f"{max(0, base.execute(sql).rowcount)} rows changed"

    path = {"type": "string", "description": "a file"}
    offered = [
        ServedTool("tables", "The tables of a SQLite database, as SQL.", {"database": path}, ["database"], tables),
        ServedTool("query", f"Rows of a SQLite database, {_ROWS} at most.", {"database": path, "sql": TEXT},
             ["database", "sql"], query),
    ]  # fmt: skip
    if writes:
        takes = {"database": path, "sql": TEXT}
        offered.append(ServedTool("execute", "Change a SQLite database.", takes, ["database", "sql"], execute))
    serve_tools("sql", offered)


@contextmanager
def _open_database(database: str, writes: bool) -> Iterator[sqlite3.Connection]:
    """Open a database of the home. Raises ToolRefused where it is none, or a statement is refused, fails or is late."""
    home = Path.home().resolve()
    path = (home / database.replace("\0", "?")).resolve()
    if home not in path.parents or not path.is_file():
        raise ToolRefused(f"there is no file {database} in the home folder")
    until = time.monotonic() + _STATEMENT_S
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode={'rw' if writes else 'ro'}", uri=True)) as base:
            base.set_progress_handler(lambda: time.monotonic() > until, _LOOK)
            base.set_authorizer(_authorise)
            yield base
    except (sqlite3.Error, sqlite3.Warning) as error:
        late = time.monotonic() > until
        raise ToolRefused(f"it did not end in {_STATEMENT_S:g} s" if late else str(error)) from None


def _authorise(action: int, *_: object) -> int:
    return sqlite3.SQLITE_DENY if action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH) else sqlite3.SQLITE_OK


def _format_rows(found: sqlite3.Cursor) -> str:
    rows = found.fetchmany(_ROWS + 1)
    lines = [tuple(one[0] for one in found.description or ()), *rows[:_ROWS]]
    text = "\n".join(" | ".join("" if cell is None else str(cell)[:_CELL] for cell in line) for line in lines)
    return text + (f"\n[more than {_ROWS} rows]" if len(rows) > _ROWS else "")


if __name__ == "__main__":
    main()
