"""The catalogue as the explorer's pages ask it: open for all of them, each question within a time limit."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from flywheel.errors import BadInput, FlywheelError, QueryTimeout
from flywheel.explorer.index import Index
from flywheel.store import catalog
from flywheel.store.resident import Resident
from flywheel.workspace import Workspace

T = TypeVar("T")
Row = dict[str, Any]
_AT_ONCE = max(2, os.cpu_count() or 1)  # questions, each of one thread
# The rows of views, put together once and not at each question: `trajectory_outcomes`, and `trained_on`, whose plan
# alone took a sixth of the time of one trajectory's page.
LISTED, TRAINED = "explorer.listed", "explorer.trained"


class NotHere(BadInput):
    """An address names what the store does not hold, or no more."""


def _listed(connection: duckdb.DuckDBPyConnection) -> None:
    """Where a file of them is damaged, who asks for it is told, and nobody else."""
    connection.execute("CREATE SCHEMA explorer")
    try:
        catalog.run(connection, f"CREATE TABLE {LISTED} AS FROM trajectory_outcomes")
        connection.execute(f"CREATE INDEX listed_by ON {LISTED} (trajectory_id)")
    except (FlywheelError, duckdb.Error):
        connection.execute(f"CREATE VIEW {LISTED} AS SELECT *, row_number() OVER () AS rowid FROM trajectory_outcomes")
    try:
        catalog.run(connection, f"CREATE TABLE {TRAINED} AS FROM trained_on")
        connection.execute(f"CREATE INDEX trained_by ON {TRAINED} (trajectory_id)")
    except (FlywheelError, duckdb.Error):
        connection.execute(f"CREATE VIEW {TRAINED} AS FROM trained_on")


class Asking:
    """Questions of our own, with what the reader chose as their parameters. limit_s: for one question, and for those
    before it. lists: whether its trajectories are asked for too, and not its views alone."""

    def __init__(self, ws: Workspace, limit_s: float = 20.0, *, lists: bool = True) -> None:
        self.ws, self._limit_s, self._lists = ws, limit_s, lists
        self.index = Index(ws, limit_s)
        self._resident = Resident(ws, self._prepare)
        self._places = threading.Semaphore(_AT_ONCE)

    def _prepare(self, connection: duckdb.DuckDBPyConnection) -> None:
        if self._lists:
            _listed(connection)
            self.index.begin()
        # By two threads each, twenty readers were answered a third later: the cores are busy with others' questions.
        connection.execute("SET GLOBAL threads = 1")

    def words(self, text: str) -> pa.Table:
        """As `Index.find`, in the store as it is now."""
        self.ask(lambda connection: None)
        return self.index.find(text)

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Raises QueryTimeout, DataError for a damaged file, BadInput."""
        return self.ask(lambda connection: catalog.rows(connection, sql, parameters))

    @cached_property
    def columns(self) -> list[Row]:
        """Of the view `trajectory_outcomes`: name, type, meaning. They change with the code alone."""
        return self.rows(
            """SELECT column_name AS name, data_type AS type, coalesce(comment, '') AS meaning FROM duckdb_columns()
            WHERE table_name = 'trajectory_outcomes' ORDER BY column_index"""
        )

    def ask(self, work: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        """As `Resident.ask`."""

        def timed(connection: duckdb.DuckDBPyConnection) -> T:
            over = threading.Event()

            def stop() -> None:
                over.set()
                connection.interrupt()

            timer = threading.Timer(self._limit_s, stop)
            timer.daemon = True
            timer.start()
            try:
                return work(connection)
            except (FlywheelError, duckdb.Error):
                if over.is_set():
                    raise QueryTimeout(f"it took longer than {self._limit_s:g} s", fix="ask for less") from None
                raise
            finally:
                timer.cancel()

        if not self._places.acquire(timeout=self._limit_s):
            raise QueryTimeout(f"others' questions were at work for {self._limit_s:g} s", fix="ask again")
        try:
            return self._resident.ask(timed)
        finally:
            self._places.release()

    def standing(self) -> str:
        """Changes when a partition or a promotion came, went or was replaced."""
        return self._resident.standing()
