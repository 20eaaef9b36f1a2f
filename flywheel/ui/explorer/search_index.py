"""Index the words of thoughts and the first screens of trajectories for the explorer, in SQLite with FTS5."""

from __future__ import annotations

import contextlib
import hashlib
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence, Set
from functools import lru_cache
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

import pyarrow as pa

from flywheel.config.workspace import Workspace
from flywheel.store import partitions
from flywheel.utils.errors import FlywheelError, QueryTimeout

# The file: SQLite with a full-text index (FTS5), filled by partitions, each whole or not at all. Any number of
# processes may read it; one writes at a time.

_VERSION = 1
_TABLES = (
    """CREATE TABLE partition (
        number INTEGER PRIMARY KEY, iteration INTEGER, stage TEXT, stamp TEXT, trajectories INTEGER,
        UNIQUE (iteration, stage, stamp))""",
    "CREATE TABLE trajectory (number INTEGER PRIMARY KEY, trajectory_id TEXT, partition INTEGER, screen TEXT)",
    "CREATE INDEX by_name ON trajectory (trajectory_id)",
    """CREATE VIRTUAL TABLE words USING fts5(
        thoughts, content = '', columnsize = 0, tokenize = 'unicode61 remove_diacritics 2')""",
    f"PRAGMA user_version = {_VERSION}",
)
_CLEAR_STATEMENTS = (
    "DELETE FROM partition",
    "DELETE FROM trajectory",
    "INSERT INTO words (words) VALUES ('delete-all')",
)
_COLUMNS = ["trajectory_id", "thought", "image_sha256"]
_INSERT_ROWS = 1_000
_STEP_SEPARATOR = " \ue000 "  # a word of its own between the thoughts of two steps, so that no phrase spans both
_CJK_PATTERN = re.compile(r"([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff])")
_WAIT_S = 60.0  # timeout for another process that writes
_RETRY_S = 0.01

PartitionKey = tuple[int, str, str]  # iteration, stage, digest of its content


def list_step_partitions(ws: Workspace) -> frozenset[PartitionKey]:
    """List the partitions of the table `steps` as (iteration, stage, digest of the content).

    Raises DataError for a damaged list of files.
    """
    found = set()
    for folder in ws.data.glob("steps/iteration=*/stage=*"):
        iteration, stage = (path.name.partition("=")[2] for path in (folder.parent, folder))
        if (listed := partitions.read_part_list(folder)) is not None:
            names = hashlib.sha256("\n".join(part.sha256 for part in listed).encode()).hexdigest()
            found.add((int(iteration), stage, names))
    return frozenset(found)


def format_fts_phrase(text: str) -> str:
    """Write a search in the syntax of FTS5: the words of `text` in this order, the last one as a prefix."""
    return f'"{_space_cjk(text).replace(chr(34), " ").replace(chr(0), " ")}" *'


def update_index(path: Path, ws: Workspace, wanted: Set[PartitionKey]) -> tuple[int, ...]:
    """Add the partitions `wanted` that the index file `path` lacks; return the numbers of its obsolete partitions.

    wanted: those of the store (`list_step_partitions`). If more trajectories are obsolete than wanted, the index is
    built anew. Raises DataError for a damaged partition, sqlite3.Error or OSError where the file cannot be written.
    """
    with contextlib.closing(_open_for_writing(path)) as connection:
        held = _indexed_partitions(connection)
        gone = sum(count for one, (_, count) in held.items() if one not in wanted)
        if gone > sum(count for one, (_, count) in held.items() if one in wanted):
            with _transaction(connection):
                for text in _CLEAR_STATEMENTS:
                    connection.execute(text)
            held = {}
        for one in sorted(wanted - held.keys(), reverse=True):  # the newest first
            with contextlib.suppress(partitions.PartMissing):  # replaced meanwhile: the next call adds the new one
                _add_partition(connection, ws, one)
        return tuple(number for one, (number, _) in _indexed_partitions(connection).items() if one not in wanted)


def open_index(path: Path) -> contextlib.closing[sqlite3.Connection]:
    """Open the index file `path` for reading. Raises sqlite3.OperationalError where there is none."""
    return contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_WAIT_S))


def _indexed_partitions(connection: sqlite3.Connection) -> dict[PartitionKey, tuple[int, int]]:
    """Return the partitions in the index: key -> (number, number of trajectories)."""
    rows = connection.execute("SELECT iteration, stage, stamp, number, trajectories FROM partition")
    return {tuple(row[:3]): tuple(row[3:]) for row in rows}


def _open_for_writing(path: Path) -> sqlite3.Connection:
    """Open the index file for writing. A file that is damaged, or of another version, is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for last in (False, True):
        connection = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
        try:
            _set_wal(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            if _create_tables(connection):
                return connection
        except sqlite3.DatabaseError as error:
            connection.close()
            if last or isinstance(error, sqlite3.OperationalError):  # the new file fails too, or it cannot be written
                raise
        connection.close()
        for end in ("", "-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
    raise sqlite3.OperationalError("another version of flywheel makes it at the same time")


def _set_wal(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging, so that readers do not wait for the writer. For this statement alone SQLite's own
    timeout does not apply, so it is retried here."""
    ends = time.monotonic() + _WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > ends:
                raise
            time.sleep(_RETRY_S)


def _create_tables(connection: sqlite3.Connection) -> bool:
    """Create the tables in a new file; return whether the file has the tables of this version."""
    with _transaction(connection):
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for text in _TABLES if not version else ():
            connection.execute(text)
    return version in (0, _VERSION)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _add_partition(connection: sqlite3.Connection, ws: Workspace, one: PartitionKey) -> None:
    with _transaction(connection):
        added = connection.execute("INSERT OR IGNORE INTO partition VALUES (NULL, ?, ?, ?, 0)", one)
        if not added.rowcount:
            return  # another process has added it
        (before,) = connection.execute("SELECT coalesce(max(number), 0) FROM trajectory").fetchone()
        last, rows = before, _trajectories(ws, *one[:2])
        while some := list(enumerate(islice(rows, _INSERT_ROWS), last + 1)):
            connection.executemany(
                "INSERT INTO trajectory VALUES (?, ?, ?, ?)",
                [(number, name, added.lastrowid, screen) for number, (name, _, screen) in some],
            )
            connection.executemany(
                "INSERT INTO words (rowid, thoughts) VALUES (?, ?)", [(number, said) for number, (_, said, _) in some]
            )
            last += len(some)
        connection.execute("UPDATE partition SET trajectories = ? WHERE number = ?", (last - before, added.lastrowid))


def _trajectories(ws: Workspace, iteration: int, stage: str) -> Iterator[tuple[str, str, str | None]]:
    """Yield id, thoughts and first screen of each trajectory in a partition, whose rows are sorted by trajectory and
    step."""
    files = partitions.partition_files(ws, "steps", iteration, stage)
    tables = partitions.scan_columns(ws, "steps", files, _COLUMNS)
    rows = (row for table in tables for row in zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True))
    for name, steps in groupby(rows, itemgetter(0)):
        thoughts, screens = zip(*((thought, screen) for _, thought, screen in steps), strict=True)
        yield name, _space_cjk(_STEP_SEPARATOR.join(filter(None, thoughts))), next(filter(None, screens), None)


def _space_cjk(text: str) -> str:
    """Surround each Chinese, Japanese and Korean character with blanks, so that it is indexed as a word."""
    return text if text.isascii() else _CJK_PATTERN.sub(r" \1 ", text)


# `.flywheel/explorer/index.sqlite` is built from the partitions of `steps`. Each partition is read once, when it is
# new, so the cost of an iteration does not grow with the number of earlier ones. The file may be deleted and is then
# built again, as it is if most of its content is obsolete. A search is a phrase, whose last word may be incomplete,
# without regard to case and accents. Each Chinese, Japanese or Korean character is a word.

_CACHED_SEARCHES = 16  # searches whose results are cached: a user who scrolls repeats the same search
_PROGRESS_STEPS = 10_000  # instructions of SQLite's virtual machine between two checks of the time
_MAX_SEARCHES = 2  # concurrent searches: each may hold the id of every trajectory
_FETCH_ROWS = 10_000  # rows that are Python objects at a time


class ThoughtIndex:
    """Search a workspace's index of thoughts, from any thread; a background thread brings it up to date.

    limit_s: time limit of a search, in seconds.
    """

    def __init__(self, ws: Workspace, limit_s: float) -> None:
        self._ws, self._limit_s = ws, limit_s
        self._path = ws.state / "explorer" / "index.sqlite"
        self._lock = threading.Lock()
        self._wanted: frozenset[PartitionKey] = frozenset()
        self._gone: tuple[int, ...] = ()  # numbers of partitions that are in the index, but not in the store
        self._failed: FlywheelError | None = None
        self._done = threading.Event()
        self._at_work = False
        self._found = lru_cache(maxsize=_CACHED_SEARCHES)(self._match)
        self._places = threading.Semaphore(_MAX_SEARCHES)

    def begin(self) -> None:
        """Start to bring the index up to date with the store, in the background; only searches wait for it."""
        with self._lock:
            self._done.clear()
            try:
                self._wanted, self._failed = list_step_partitions(self._ws), None
            except FlywheelError as error:
                self._failed = error
                self._done.set()
                return
            if not self._at_work:
                self._at_work = True
                threading.Thread(target=self._catch_up, name="index", daemon=True).start()

    def find(self, text: str) -> pa.Table:
        """Find the trajectories with the words of `text`, in this order, in their thoughts.

        Returns a table with the column `trajectory_id`. Raises QueryTimeout after `limit_s`, DataError for a damaged
        file of the store, FlywheelError where the index cannot be read or written.
        """
        if not self._done.wait(self._limit_s):
            raise QueryTimeout("the words of new thoughts are still being indexed", fix="ask again in a moment")
        if self._failed:
            raise self._failed
        return self._found(format_fts_phrase(text), self._wanted, self._gone)

    def screens(self, names: Sequence[str]) -> dict[str, str | None]:
        """Return trajectory_id -> sha256 of its first screen, for those of `names` that are in the index."""
        asked = ", ".join("?" * len(names))
        try:
            with open_index(self._path) as connection:
                sql = f"SELECT trajectory_id, screen FROM trajectory WHERE trajectory_id IN ({asked}) ORDER BY number"
                return dict(connection.execute(sql, names))  # of several partitions the newest comes last, and counts
        except sqlite3.Error:  # there is no index yet
            return {}

    def _match(self, phrase: str, _: frozenset[PartitionKey], gone: tuple[int, ...]) -> pa.Table:
        if not self._places.acquire(timeout=self._limit_s):
            raise QueryTimeout(f"others' searches were at work for {self._limit_s:g} s", fix="ask again")
        over = time.monotonic() + self._limit_s
        try:
            with open_index(self._path) as connection:
                connection.set_progress_handler(lambda: time.monotonic() > over, _PROGRESS_STEPS)
                found = connection.execute(
                    f"""SELECT trajectory_id FROM words JOIN trajectory ON number = words.rowid
                    WHERE words MATCH ? AND partition NOT IN ({", ".join(map(str, gone))})""",
                    (phrase,),
                )
                some = iter(lambda: found.fetchmany(_FETCH_ROWS), [])
                names = pa.chunked_array([[name for (name,) in rows] for rows in some], pa.string())
        except sqlite3.Error as error:
            if time.monotonic() > over:
                raise QueryTimeout(f"it took longer than {self._limit_s:g} s", fix="give more words") from None
            raise self._unusable(error) from None
        finally:
            self._places.release()
        return pa.table({"trajectory_id": names})

    def _catch_up(self) -> None:
        """Update the index until it matches the store, which may change meanwhile."""
        while True:
            wanted, gone, failed = self._wanted, (), None
            try:
                gone = update_index(self._path, self._ws, wanted)
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
