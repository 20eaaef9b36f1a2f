"""The file behind `index.py`: SQLite with a full-text index (FTS5), filled partition by partition, each whole or not at
all. Any number of processes may read it, and one at a time writes.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Set
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flywheel.store import partitions, parts
from flywheel.workspace import Workspace

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
_CLEARED = ("DELETE FROM partition", "DELETE FROM trajectory", "INSERT INTO words (words) VALUES ('delete-all')")
_COLUMNS = ["trajectory_id", "thought", "image_sha256"]
_ROWS, _AT_ONCE = 8_192, 1_000
_BETWEEN = " \ue000 "  # thoughts of two steps: a word of its own, so that no search goes from one into the next
_SIGNS = re.compile(r"([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff])")
_WAIT_S = 60.0  # for another process that writes
_AGAIN_S = 0.01

Partition = tuple[int, str, str]  # iteration, stage, and a name of its content


def standing(ws: Workspace) -> frozenset[Partition]:
    """The partitions of `steps`. Raises DataError for a damaged list."""
    found = set()
    for folder in ws.data.glob("steps/iteration=*/stage=*"):
        iteration, stage = (path.name.partition("=")[2] for path in (folder.parent, folder))
        if (listed := parts.read(folder)) is not None:
            names = hashlib.sha256("\n".join(part.sha256 for part in listed).encode()).hexdigest()
            found.add((int(iteration), stage, names))
    return frozenset(found)


def phrase(text: str) -> str:
    """A search as FTS5 reads it: these words in this order, of which the last may go on."""
    return f'"{_spaced(text).replace(chr(34), " ").replace(chr(0), " ")}" *'


def catch_up(path: Path, ws: Workspace, wanted: Set[Partition]) -> tuple[int, ...]:
    """Bring the file up to date; gives the numbers of partitions in it that are not wanted. Raises DataError, and
    sqlite3.Error or OSError where it cannot be written."""
    with contextlib.closing(_opened(path)) as connection:
        held = _held(connection)
        gone = sum(count for one, (_, count) in held.items() if one not in wanted)
        if gone > sum(count for one, (_, count) in held.items() if one in wanted):
            with _writing(connection):
                for text in _CLEARED:
                    connection.execute(text)
            held = {}
        for one in sorted(wanted - held.keys(), reverse=True):  # the newest first
            with contextlib.suppress(parts.PartMissing):  # replaced meanwhile: that one is wanted next
                _add(connection, ws, one)
        return tuple(number for one, (number, _) in _held(connection).items() if one not in wanted)


def reading(path: Path) -> contextlib.closing[sqlite3.Connection]:
    """Raises sqlite3.OperationalError where there is none."""
    return contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_WAIT_S))


def _held(connection: sqlite3.Connection) -> dict[Partition, tuple[int, int]]:
    """Each partition with its number and how many trajectories it has."""
    rows = connection.execute("SELECT iteration, stage, stamp, number, trajectories FROM partition")
    return {tuple(row[:3]): tuple(row[3:]) for row in rows}


def _opened(path: Path) -> sqlite3.Connection:
    """To write. A file that is damaged, or of another version, is made anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for last in (False, True):
        connection = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
        try:
            _let_read(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            if _prepared(connection):
                return connection
        except sqlite3.DatabaseError as error:
            connection.close()
            if last or isinstance(error, sqlite3.OperationalError):  # it is no database, or it cannot be written
                raise
        connection.close()
        for end in ("", "-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
    raise sqlite3.OperationalError("another version of flywheel makes it at the same time")


def _let_read(connection: sqlite3.Connection) -> None:
    """Who reads does not wait for who writes. To become so, alone of all it does, SQLite itself does not wait for other
    processes."""
    ends = time.monotonic() + _WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > ends:
                raise
            time.sleep(_AGAIN_S)


def _prepared(connection: sqlite3.Connection) -> bool:
    """Whether it has the tables of this version."""
    with _writing(connection):
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for text in _TABLES if not version else ():
            connection.execute(text)
    return version in (0, _VERSION)


@contextlib.contextmanager
def _writing(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _add(connection: sqlite3.Connection, ws: Workspace, one: Partition) -> None:
    with _writing(connection):
        added = connection.execute("INSERT OR IGNORE INTO partition VALUES (NULL, ?, ?, ?, 0)", one)
        if not added.rowcount:
            return  # another process was quicker
        (before,) = connection.execute("SELECT coalesce(max(number), 0) FROM trajectory").fetchone()
        last, rows = before, _trajectories(ws, *one[:2])
        while some := list(enumerate(islice(rows, _AT_ONCE), last + 1)):
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
    """Name, thoughts and first screen of each. Rows lie in order of trajectory and step."""
    for name, steps in groupby(_rows(partitions.files(ws, "steps", iteration, stage)), itemgetter(0)):
        thoughts, screens = zip(*((thought, screen) for _, thought, screen in steps), strict=True)
        yield name, _spaced(_BETWEEN.join(filter(None, thoughts))), next(filter(None, screens), None)


def _rows(files: Iterable[Path]) -> Iterator[tuple[str, str | None, str | None]]:
    for path in files:
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(_ROWS, columns=_COLUMNS):
                    yield from zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True)
        except FileNotFoundError:
            raise parts.missing(path) from None
        except (pa.ArrowException, OSError) as error:
            raise parts.damaged(path, f"not a whole Parquet file: {parts.first_line(error)}") from error


def _spaced(text: str) -> str:
    """Each sign that is a word by itself, apart from its neighbours."""
    return text if text.isascii() else _SIGNS.sub(r" \1 ", text)
