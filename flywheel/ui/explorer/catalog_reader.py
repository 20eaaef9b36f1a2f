"""Run the explorer's own queries on a catalogue that stays open, each within a time limit."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from flywheel.config.workspace import Workspace
from flywheel.store.catalog import database
from flywheel.store.catalog.database import CatalogConnection
from flywheel.ui.explorer.search_index import ThoughtIndex
from flywheel.ui.explorer.sql_worker import interrupt_after
from flywheel.utils.errors import BadInput, FlywheelError, QueryTimeout

T = TypeVar("T")
Row = dict[str, Any]
_MAX_QUERIES = max(2, os.cpu_count() or 1)  # concurrent queries, of one thread each
# Materialised views: `trajectory_outcomes`, and `trained_on`, whose planning alone takes a sixth of the time of a
# trajectory's page.
OUTCOMES_TABLE, TRAINED_ON_TABLE = "explorer.listed", "explorer.trained"
QUERIES = database.read_queries("flywheel.ui.explorer")


class NotInStore(BadInput):
    """Signal that a URL names something that is not in the store, or not any more."""


def _materialise_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the explorer's tables from the views. If a file is damaged, a view takes the table's place, so that only
    queries that read the file fail."""
    connection.execute("CREATE SCHEMA explorer")
    for table, view, columns in (
        (OUTCOMES_TABLE, "trajectory_outcomes", "*, row_number() OVER () AS rowid"),
        (TRAINED_ON_TABLE, "trained_on", "*"),
    ):
        try:
            database.run_query(connection, f"CREATE TABLE {table} AS FROM {view}")
            connection.execute(f"CREATE INDEX {view}_by_id ON {table} (trajectory_id)")
        except (FlywheelError, duckdb.Error):
            connection.execute(f"CREATE VIEW {table} AS SELECT {columns} FROM {view}")


class CatalogReader:
    """Run the explorer's queries on a workspace's catalogue, with the user's choices as parameters.

    limit_s: time limit of a query, and of the wait until fewer queries run. lists: whether trajectories are listed and
    searched too, which needs tables and an index.
    """

    def __init__(self, ws: Workspace, limit_s: float = 20.0, *, lists: bool = True) -> None:
        self.ws, self._limit_s, self._lists = ws, limit_s, lists
        self.index = ThoughtIndex(ws, limit_s)
        self._resident = CatalogConnection(ws, self._prepare)
        self._places = threading.Semaphore(_MAX_QUERIES)

    def _prepare(self, connection: duckdb.DuckDBPyConnection) -> None:
        if self._lists:
            _materialise_tables(connection)
            self.index.begin()
        # With two threads per query, twenty users wait a third longer: the cores are busy with other queries.
        connection.execute("SET GLOBAL threads = 1")

    def words(self, text: str) -> pa.Table:
        """Find trajectories by the words of `text` in their thoughts; return a table with the column `trajectory_id`.

        The index has the present state of the store. Call it only where `lists` is true. Raises as `ask` and
        `ThoughtIndex.find`.
        """
        self.ask(lambda connection: None)
        return self.index.find(text)

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Run the query `sql` and return its rows, each a mapping by column.

        parameters: of the query, by name; None: it has none. Raises as `ask` and `run_query`: QueryTimeout, DataError
        for a damaged or lost file, BadInput for SQL that fails, FlywheelError where it needs too much memory.
        """
        return self.ask(lambda connection: database.query_rows(connection, sql, parameters))

    @cached_property
    def columns(self) -> list[Row]:
        """Return the columns of the view `trajectory_outcomes`: name, type and meaning; only new code changes them.

        Raises as `rows`.
        """
        return self.rows(QUERIES["columns"])

    def ask(self, work: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        """Call `work` with a connection to the catalogue and return its result.

        Raises QueryTimeout after the time limit, what `work` raises, and DataError as `CatalogConnection.run`.
        """

        def timed(connection: duckdb.DuckDBPyConnection) -> T:
            with interrupt_after(connection, self._limit_s) as over:
                try:
                    return work(connection)
                except (FlywheelError, duckdb.Error):
                    if over.is_set():
                        raise QueryTimeout(f"it took longer than {self._limit_s:g} s", fix="ask for less") from None
                    raise

        if not self._places.acquire(timeout=self._limit_s):
            raise QueryTimeout(f"others' questions were at work for {self._limit_s:g} s", fix="ask again")
        try:
            return self._resident.run(timed)
        finally:
            self._places.release()

    def digest(self) -> str:
        """Return a digest of the store, 16 hex digits, which changes with every partition and promotion.

        It does so when one is added, removed or replaced.
        """
        return self._resident.digest()
