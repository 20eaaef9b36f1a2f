"""A catalogue that stays open: for pages that ask again and again."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import duckdb

from flywheel.store import catalog, partitions, parts
from flywheel.workspace import Workspace

T = TypeVar("T")


class Resident:
    """One connection for many questions, from any thread. Opening a catalogue reads footers of each table and binds all
    views; here that is done again only after a partition or a promotion came, went or was replaced.
    """

    def __init__(self, ws: Workspace, prepare: Callable[[duckdb.DuckDBPyConnection], object] = lambda _: None) -> None:
        """prepare: what is done with each connection before it is asked."""
        self.ws, self._prepare = ws, prepare
        self._lock = threading.Lock()
        self._seen: frozenset | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None

    def ask(self, work: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        """What `work` makes of a connection to the catalogue as it is now, begun again where a partition is replaced
        meanwhile."""

        def once() -> T:
            with self._cursor() as cursor:
                return work(cursor)

        return partitions.while_replaced(once)

    def standing(self) -> str:
        """Names what the catalogue holds now: another name, another partition or promotion."""
        return hashlib.sha256(repr(sorted(filter(None, _standing(self.ws)))).encode()).hexdigest()[:16]

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            seen = _standing(self.ws)
            if self._connection is None or seen != self._seen:
                opened = catalog.connect(self.ws)
                self._prepare(opened)
                self._connection, self._seen = opened, seen  # whoever asks by the old one may finish
            return self._connection.cursor()


def _standing(ws: Workspace) -> frozenset[tuple[str, int, int] | None]:
    """The partitions and promotions that are there, each with what changes when it is replaced."""
    folders = ws.data.glob("*/iteration=*/stage=*")
    promotions = (ws.root / "iterations").glob("*/promotion.json")
    return frozenset([*(_stamp(path / parts.NAME) or _stamp(path) for path in folders), *map(_stamp, promotions)])


def _stamp(path: Path) -> tuple[str, int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return str(path), status.st_mtime_ns, status.st_ino
