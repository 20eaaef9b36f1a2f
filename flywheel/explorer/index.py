"""What the list of trajectories is looked up in: the words of their thoughts, and their first screens.

`.flywheel/explorer/index.sqlite` is made of the partitions of `steps`, each of which is read once, when it is new: what
an iteration costs here does not grow with those before it. It may be deleted; it is made again, also where most of it
is of partitions that are gone.

A search is words in their order, of which the last may be unfinished; small and large letters are alike, and those with
accents and without. Signs of Chinese, Japanese and Korean are words each.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa

from flywheel.errors import FlywheelError, QueryTimeout
from flywheel.explorer import index_file
from flywheel.explorer.index_file import Partition
from flywheel.workspace import Workspace

_KEPT = 16  # searches: a reader who scrolls asks the same again
_STEPS = 10_000  # of SQLite's machine, after which it looks at the time
_AT_ONCE = 2  # searches at work: each may hold the name of every trajectory
_ROWS = 10_000  # names that are Python's for a moment, at a time


class Index:
    """Of a workspace, for many threads; brought up to date by one of its own. limit_s: for a search."""

    def __init__(self, ws: Workspace, limit_s: float) -> None:
        self._ws, self._limit_s = ws, limit_s
        self._path = ws.state / "explorer" / "index.sqlite"
        self._lock = threading.Lock()
        self._wanted: frozenset[Partition] = frozenset()
        self._gone: tuple[int, ...] = ()  # numbers of partitions that are in it, and not in the store
        self._failed: FlywheelError | None = None
        self._done = threading.Event()
        self._at_work = False
        self._found = lru_cache(maxsize=_KEPT)(self._match)
        self._places = threading.Semaphore(_AT_ONCE)

    def begin(self) -> None:
        """Bring it up to date with the store as it is now; nobody waits for that but who searches."""
        with self._lock:
            self._done.clear()
            try:
                self._wanted, self._failed = index_file.standing(self._ws), None
            except FlywheelError as error:
                self._failed = error
                self._done.set()
                return
            if not self._at_work:
                self._at_work = True
                threading.Thread(target=self._catch_up, name="index", daemon=True).start()

    def find(self, text: str) -> pa.Table:
        """The names of trajectories (column `trajectory_id`) in whose thoughts the words stand. Raises QueryTimeout,
        DataError for a damaged file of the store, FlywheelError where the index cannot be written."""
        if not self._done.wait(self._limit_s):
            raise QueryTimeout("the words of new thoughts are still being indexed", fix="ask again in a moment")
        if self._failed:
            raise self._failed
        return self._found(index_file.phrase(text), self._wanted, self._gone)

    def screens(self, names: Sequence[str]) -> dict[str, str | None]:
        """The sha256 of each one's first screen, of those that are in the index by now."""
        asked = ", ".join("?" * len(names))
        try:
            with index_file.reading(self._path) as connection:
                return dict(
                    connection.execute(
                        f"""SELECT trajectory_id, screen FROM trajectory WHERE trajectory_id IN ({asked})
                        ORDER BY number""",  # what a newer partition says comes last, and stays
                        names,
                    )
                )
        except sqlite3.Error:  # there is none yet
            return {}

    def _match(self, phrase: str, _: frozenset[Partition], gone: tuple[int, ...]) -> pa.Table:
        if not self._places.acquire(timeout=self._limit_s):
            raise QueryTimeout(f"others' searches were at work for {self._limit_s:g} s", fix="ask again")
        over = time.monotonic() + self._limit_s
        try:
            with index_file.reading(self._path) as connection:
                connection.set_progress_handler(lambda: time.monotonic() > over, _STEPS)
                found = connection.execute(
                    f"""SELECT trajectory_id FROM words JOIN trajectory ON number = words.rowid
                    WHERE words MATCH ? AND partition NOT IN ({", ".join(map(str, gone))})""",
                    (phrase,),
                )
                some = iter(lambda: found.fetchmany(_ROWS), [])
                names = pa.chunked_array([[name for (name,) in rows] for rows in some], pa.string())
        except sqlite3.Error as error:
            if time.monotonic() > over:
                raise QueryTimeout(f"it took longer than {self._limit_s:g} s", fix="give more words") from None
            raise self._unusable(error) from None
        finally:
            self._places.release()
        return pa.table({"trajectory_id": names})

    def _catch_up(self) -> None:
        """Until it is as the store is, which may change meanwhile."""
        while True:
            wanted, gone, failed = self._wanted, (), None
            try:
                gone = index_file.catch_up(self._path, self._ws, wanted)
            except FlywheelError as error:
                failed = error
            except (sqlite3.Error, OSError) as error:
                failed = self._unusable(error)
            with self._lock:
                if wanted == self._wanted:
                    self._gone, self._failed, self._at_work = gone, failed, False
                    self._done.set()
                    return

    def _unusable(self, error: Exception) -> FlywheelError:
        return FlywheelError(f"the index of words cannot be used: {error}", where=self._ws.relative(self._path))
