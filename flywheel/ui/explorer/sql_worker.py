"""Run untrusted SQL in a confined process: `python -m flywheel.ui.explorer.sql_worker ROOT LIMITS`.

Three defences, each sufficient alone: each query is a single SELECT (`parse_sql_query`); DuckDB has locked settings, no
extensions and no access to files other than the datasets (`lock_connection`); the process cannot write files or exceed
its memory limit (`_confine`). The parent (`sql.py`) kills a worker that exceeds the time limit. Each request is a line
of JSON; each response is a line of JSON followed by the bytes of the result.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import duckdb
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from pydantic_core import to_json

from flywheel.config.workspace import Workspace
from flywheel.store import labels
from flywheel.store.catalog import database
from flywheel.store.catalog.database import CatalogConnection
from flywheel.utils.errors import BadInput, FlywheelError, QueryTimeout, first_line

# Queries: the statements of DuckDB that are allowed.

_SELECT, _EXPLAIN, _CREATE = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN, duckdb.StatementType.CREATE)
_MULTI = duckdb.StatementType.MULTI
_KINDS = "SELECT, FROM, WITH, PIVOT, DESCRIBE, SHOW, SUMMARIZE, EXPLAIN"


@dataclass(frozen=True)
class ParsedQuery:
    """Hold the statements of one query; the last one returns its rows, with `plan` the plan of an EXPLAIN."""

    statements: tuple[duckdb.Statement, ...]
    plan: bool = False


def parse_sql_query(connection: duckdb.DuckDBPyConnection, sql: str) -> ParsedQuery:
    """Parse `sql` as one query that only reads, without running it. connection: whose parser is used.

    Raises BadInput for no statement, several, invalid SQL or text, and a statement that is no query.
    """
    found = _statements(connection, sql)
    if not found:
        raise BadInput("the query is empty", fix="type one query")
    if any(token.startswith(b";") for token in _tokens(sql)[:-1]):
        raise BadInput("these are several statements", fix="type one query")
    # For a PIVOT that does not list its values DuckDB first creates a temporary type of them, which ends with the
    # transaction.
    *types, last = (one.type for one in found)
    if set(types) == {_CREATE} and last == _SELECT:
        return ParsedQuery(tuple(found))
    # DuckDB 2 returns the statements of such a PIVOT as one (MULTI), also if it is part of a command; the read-only
    # transaction keeps that from writing.
    if found[0].type == _MULTI and _tokens(sql)[0].split()[0].lower() in (b"pivot", b"from", b"select", b"with"):
        return ParsedQuery((found[0],))
    if len(found) != 1 or found[0].type == _MULTI:
        raise _unnamed_pivot()
    if found[0].type == _SELECT:
        return ParsedQuery((found[0],))
    if found[0].type == _EXPLAIN:
        return ParsedQuery(tuple(_statements(connection, _explain_text(connection, sql))), plan=True)
    raise _not_a_query(found[0])


def _explain_text(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Return an EXPLAIN, with or without ANALYZE, of the statement in `sql`, which must be a SELECT. Raises
    BadInput."""
    tokens = _tokens(sql)
    analyze = bool(re.match(rb"analyze\b", tokens[1], re.IGNORECASE))
    inner = b"".join(tokens[2 if analyze else 1 :]).decode()
    asked = _statements(connection, inner)
    if len(asked) != 1:
        raise _unnamed_pivot()
    if asked[0].type != _SELECT:
        raise _not_a_query(asked[0])
    return f"EXPLAIN {'ANALYZE ' if analyze else ''}{inner}"


def _tokens(sql: str) -> list[bytes]:
    """Split `sql` into tokens, each with the blanks and comments up to the next. Text before the first is left out."""
    text = sql.encode()
    # DuckDB 2 lists comments among the tokens.
    starts = [place for place, kind in duckdb.tokenize(sql) if kind != duckdb.token_type.comment]
    return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _statements(connection: duckdb.DuckDBPyConnection, sql: str) -> list[duckdb.Statement]:
    try:
        sql.encode()
        return connection.extract_statements(sql)
    except UnicodeEncodeError:
        raise BadInput("the query has half a character (a lone surrogate)", fix="take it out") from None
    except duckdb.Error as error:
        raise database.explain_duckdb_error(connection, error) from None


def _unnamed_pivot() -> BadInput:
    return BadInput("a PIVOT within a command names its values", fix="PIVOT ... ON x IN (...)")


def _not_a_query(asked: duckdb.Statement) -> BadInput:
    kind = asked.type.name.lower().replace("_", " ")
    return BadInput(f"{kind} is no question", fix=f"here data are read: {_KINDS}")


_MAX_CELL_CHARACTERS = 2000
_MAX_EXACT_INTEGER = 2**53  # JavaScript represents whole numbers exactly up to here
_BATCH = 2048  # rows
_OVERHEAD_BYTES = 2**30  # address space for mapped files and stacks, in addition to the query's memory


@dataclass(frozen=True)
class SqlLimits:
    """Hold the limits of one query.

    seconds: its longest duration. memory: bytes of DuckDB. rows, export_rows: most rows as JSON, and as a file. bytes:
    of the result. threads: of DuckDB.
    """

    seconds: float = 10.0
    memory: int = 2**30
    rows: int = 10_000
    export_rows: int = 1_000_000
    bytes: int = 64 * 2**20
    threads: int = 2


def lock_connection(ws: Workspace, limits: SqlLimits, connection: duckdb.DuckDBPyConnection) -> None:
    """Restrict `connection` to reading the workspace's datasets, within the memory and threads of `limits`.

    No later statement can lift that.
    """
    places = [ws.data, ws.state / "closed", ws.root / "iterations", labels.labels_folder(ws)]
    names = [str(name).replace("'", "''") for path in places for name in (path, path.resolve())]
    folders = ", ".join(f"'{name}'" for name in names)
    for text in (
        "autoinstall_known_extensions = false",
        "autoload_known_extensions = false",
        "allow_community_extensions = false",
        "python_enable_replacements = false",
        "temp_directory = ''",
        f"memory_limit = '{limits.memory}B'",
        f"threads = {limits.threads}",
        f"allowed_directories = [{folders}]",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET GLOBAL {text}")


@contextlib.contextmanager
def interrupt_after(connection: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[threading.Event]:
    """Interrupt the query of `connection` if the block lasts `seconds`; yield an event that is then set.

    The interrupted query raises duckdb.InterruptException.
    """
    over = threading.Event()

    def stop() -> None:
        over.set()
        connection.interrupt()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield over
    finally:
        timer.cancel()


class SqlAnswerer:
    """Run one query after another on one connection to the catalogue of `ws`, within `limits`."""

    def __init__(self, ws: Workspace, limits: SqlLimits) -> None:
        self._limits = limits
        self._resident = CatalogConnection(ws, lambda connection: lock_connection(ws, limits, connection))

    def open_catalogue(self) -> None:
        """Open the catalogue ahead of the first query. Raises DataError as `connect_catalog`."""
        self._resident.run(lambda connection: connection.execute("SELECT 1").fetchall())

    def answer_query(self, sql: str, form: str) -> tuple[dict[str, Any], bytes]:
        """Run the query `sql`; return facts about its result, and the result as `form` (json, csv or parquet).

        Raises BadInput for SQL that is no query or exceeds a limit, QueryTimeout, DataError for a damaged or lost file.
        """
        begun = time.monotonic()
        table, cut, plan = self._resident.run(lambda connection: self._asked(connection, sql, form))
        facts = {
            "columns": [{"name": field.name, "type": str(field.type)} for field in table.schema],
            "rows": table.num_rows,
            "cut": cut,
            "plan": plan,
            "seconds": round(time.monotonic() - begun, 3),
        }
        try:
            written = _FORMS[form](table)
            if len(written) > 4 * self._limits.bytes:  # dictionary values are written out in each row
                raise _too_much(self._limits)
            return facts, written
        except (MemoryError, pa.ArrowMemoryError):
            raise _too_much(self._limits) from None
        except pa.ArrowException as error:
            raise BadInput(f"the result cannot be written as {form}: {first_line(str(error))}") from None

    def _asked(self, connection: duckdb.DuckDBPyConnection, sql: str, form: str) -> tuple[pa.Table, bool, bool]:
        with interrupt_after(connection, self._limits.seconds) as over:
            try:
                asked = parse_sql_query(connection, sql)
                table, cut = self._read(connection, asked.statements, form)
                if asked.plan:  # the plan is a text of many lines in one cell: make each line a row
                    table = pa.table({"plan": "\n".join(table.columns[1].to_pylist()).splitlines()})
                return table, cut, asked.plan
            except MemoryError:
                raise _too_much(self._limits) from None
            except (duckdb.Error, pa.ArrowException) as error:
                if over.is_set():
                    limit = f"the {self._limits.seconds:g} s that one may take"
                    raise QueryTimeout(f"the query took longer than {limit}", fix="ask for less") from None
                if isinstance(error, (duckdb.OutOfMemoryException, pa.ArrowMemoryError)):
                    raise _too_much(self._limits) from None
                raise database.explain_duckdb_error(connection, error) from None

    def _read(
        self, connection: duckdb.DuckDBPyConnection, asked: Sequence[duckdb.Statement], form: str
    ) -> tuple[pa.Table, bool]:
        most = self._limits.rows if form == "json" else self._limits.export_rows
        connection.execute("BEGIN TRANSACTION READ ONLY")
        try:
            for before in asked[:-1]:
                connection.execute(before)
            reader = connection.execute(asked[-1]).to_arrow_reader(_BATCH)
            read, rows, size = [], 0, 0
            for batch in reader:
                read.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows > most or size > self._limits.bytes:
                    break
            table = pa.Table.from_batches(read, reader.schema)
            kept = self._fitting(table.slice(0, most))
            return kept, rows > kept.num_rows
        finally:
            with contextlib.suppress(duckdb.Error):
                connection.execute("ROLLBACK")

    def _fitting(self, table: pa.Table) -> pa.Table:
        """Return the first rows of `table`, as many as fit into the limit of bytes, at least one."""
        low, high = 1, max(table.num_rows, 1)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if table.slice(0, middle).nbytes <= self._limits.bytes else (low, middle - 1)
        return table.slice(0, low)


def _too_much(limits: SqlLimits) -> BadInput:
    return BadInput(f"the query needs more than the {limits.memory // 2**20} MiB that one may take", fix="ask for less")


def _as_json(table: pa.Table) -> bytes:
    columns = [[_cell(value) for value in _values(column)] for column in table.columns]
    return to_json([list(row) for row in zip(*columns, strict=True)], inf_nan_mode="constants", fallback=str)


def _cell(value: Any) -> Any:
    """Convert a value for display on a page."""
    if isinstance(value, bytes):
        return f"({len(value):,} bytes)"
    if isinstance(value, str):
        more = f"… ({len(value):,} characters)" if len(value) > _MAX_CELL_CHARACTERS else ""
        return value[:_MAX_CELL_CHARACTERS] + more
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int) and abs(value) > _MAX_EXACT_INTEGER:
        return str(value)
    if isinstance(value, float) and value - value != 0:  # no number, or without end
        return str(value)
    if isinstance(value, (list, dict)):
        return _cell(to_json(value, inf_nan_mode="null", fallback=str, bytes_mode="base64").decode())
    return value


def _as_parquet(table: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    return file.getvalue()


def _as_csv(table: pa.Table) -> bytes:
    """Write CSV by pyarrow, since DuckDB writes only to files; nested values become JSON."""
    columns = [
        column if _plain(column.type) else pa.array(map(_cell_text, _values(column)), pa.string())
        for column in table.columns
    ]
    file = io.BytesIO()
    csv.write_csv(pa.table(columns, table.column_names), file)
    return file.getvalue()


def _plain(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_dictionary(kind))


def _values(column: pa.ChunkedArray) -> list[Any]:
    return column.to_pylist(maps_as_pydicts="lossy")


def _cell_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return to_json(value, inf_nan_mode="null", fallback=str, bytes_mode="base64").decode().strip('"')


_FORMS = {"json": _as_json, "csv": _as_csv, "parquet": _as_parquet}


def _confine(limits: SqlLimits) -> None:
    """Limit this process: no file, no core dump, and no more memory than a query may use."""
    # A first result, before the limits are set: memory that DuckDB and Arrow take with it is not counted as a query's.
    import pandas  # noqa: F401 (DuckDB imports it for an Arrow table)

    with duckdb.connect() as connection:
        connection.from_arrow(pa.table({"n": [1]})).to_arrow_table()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + limits.memory + limits.bytes * 4 + _OVERHEAD_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve_sql_queries(answers: SqlAnswerer, questions: BinaryIO, out: BinaryIO) -> None:
    """Answer the requests of the stream `questions`, one JSON line each with `sql` and `form`, until it ends.

    answers: runs the queries. out: gets for each a line of JSON with the facts, or `error` and its `kind`, and the
    number of `bytes` of the result, which follow.
    """
    for line in questions:
        asked = json.loads(line)
        payload = b""
        try:
            facts, payload = answers.answer_query(asked["sql"], asked["form"])
        except FlywheelError as error:
            facts = {"error": str(error), "kind": type(error).__name__}
        out.write(json.dumps(facts | {"bytes": len(payload)}).encode() + b"\n" + payload)
        out.flush()


def run_sql_worker(root: str, limits: str) -> None:
    """Run the worker: confine the process, then answer queries from standard input on standard output until it ends.

    root: folder of the workspace. limits: fields of `SqlLimits` as JSON.
    """
    chosen = SqlLimits(**json.loads(limits))
    answers = SqlAnswerer(Workspace(Path(root)), chosen)
    with contextlib.suppress(FlywheelError):  # a damaged file is reported by the queries that read it
        answers.open_catalogue()
    _confine(chosen)
    # Standard output carries the responses, so what libraries print goes to stderr.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    out.write(b"ready\n")
    out.flush()
    serve_sql_queries(answers, sys.stdin.buffer, out)


if __name__ == "__main__":
    run_sql_worker(*sys.argv[1:])
