"""Write a partition in batches: memory stays bounded, whatever its size.

Batches are gathered to a run of about 256 MB; a run is sorted where it is not, and is one file. So a small partition is
one sorted file, and each file of a large one is sorted for itself, and after the one before it where the rows came so.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flywheel.errors import DataError
from flywheel.files import disk_full_is_named, locked, remember_sha256
from flywheel.schema import SORT, TABLES
from flywheel.store import parts
from flywheel.store.kept import kept
from flywheel.workspace import Workspace

_RUN_BYTES = 256 * 2**20  # in memory; a file of steps takes about a quarter of it
_ROWS_AT_ONCE = 2_000  # of rows that come as mappings
# A reader that wants one trajectory decodes one group of its steps, and looks at the bounds of all; one that counts all
# steps reads small groups more slowly. One that wants one screen reads a few hundred kB.
_ROW_GROUP, _SCREENS = 10_000, 100
# Values that hardly repeat: a dictionary of them costs half of the time of a reading, and room.
_NO_DICTIONARY = {"token_ids", "logprobs", "bytes", "thought", "raw_text"}
_SPLIT = {"logprobs": "logprobs.list.element"}  # floats by their bytes' places: smaller by a tenth
_LOCK_S = 600.0


class PartitionWriter:
    """Takes batches, and makes files of them under hidden names. Nothing is visible before `publish`."""

    def __init__(self, folder: Path, table: str) -> None:
        self.folder, self.table, self.schema = folder, table, TABLES[table]
        self.rows = 0
        self._held: list[pa.Table] = []
        self._files: list[tuple[Path, int, str, tuple[str, ...]]] = []

    def write(self, data: pa.Table | pa.RecordBatch | Iterable[Mapping[str, Any]]) -> None:
        """Take rows. Raises DataError where they do not fit the table's schema, naming the column."""
        if isinstance(data, pa.RecordBatch):
            data = pa.Table.from_batches([data])
        if not isinstance(data, pa.Table):
            rows = iter(data)
            while some := list(islice(rows, _ROWS_AT_ONCE)):
                self._take(from_rows(self.table, some, self.rows))
            return
        if not data.schema.equals(self.schema):
            raise DataError(f"data do not have the schema of table {self.table}", where="flywheel/schema.py")
        _refuse_empty(self.table, data)
        self._take(data)

    def _take(self, data: pa.Table) -> None:
        self.rows += data.num_rows
        data = data.replace_schema_metadata(self.schema.metadata)
        step = max(1, data.num_rows * _RUN_BYTES // max(1, data.nbytes))
        for first in range(0, data.num_rows, step):
            self._held.append(data.slice(first, step))
            if sum(part.nbytes for part in self._held) >= _RUN_BYTES:
                self._flush()

    def _flush(self) -> None:
        run = pa.concat_tables([self.schema.empty_table(), *self._held])
        self._held = []
        if not is_sorted(run, SORT[self.table]):
            run = run.sort_by([(key, "ascending") for key in SORT[self.table]])
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f".{len(self._files):05d}.part"
        with path.open("wb") as file:
            sink = _Hashed(file)
            order = [pq.SortingColumn(self.schema.get_field_index(key)) for key in SORT[self.table]]
            pq.write_table(
                run,
                sink,
                compression="zstd",
                row_group_size=_SCREENS if self.table == "images" else _ROW_GROUP,
                write_page_checksum=True,
                use_dictionary=[name for name in self.schema.names if name not in _NO_DICTIONARY],
                column_encoding={
                    leaf: "BYTE_STREAM_SPLIT" for name, leaf in _SPLIT.items() if name in self.schema.names
                },
                sorting_columns=order,
            )
        self._files.append((path, run.num_rows, sink.sha.hexdigest(), kept(self.table, run)))

    def take_file(self, path: Path, of: parts.Part) -> None:
        """Take a file as it is, from a partition on the same disk."""
        self.folder.mkdir(parents=True, exist_ok=True)
        hidden = self.folder / f".{len(self._files):05d}.part"
        hidden.unlink(missing_ok=True)
        hidden.hardlink_to(path)
        self._files.append((hidden, of.rows, of.sha256, of.kept))
        self.rows += of.rows

    def publish(self) -> list[parts.Part]:
        """Make what was taken the partition, in one step; no rows at all give one typed file without rows."""
        if self._held or not self._files:
            self._flush()
        listed = []
        for number, (path, rows, sha256, holds) in enumerate(self._files):
            there = path.rename(path.with_name(f"part-{number:05d}-{sha256[:8]}.parquet"))
            remember_sha256(there, sha256)
            listed.append(parts.part(there, rows, sha256, holds))
        os.utime(self.folder.parent)  # by it `closed.py` notices that the iteration is another, from here on
        parts.write(self.folder, self.table, listed)
        _remove(self.folder, keep={parts.NAME, *(one.name for one in listed)})
        return listed

    def discard(self) -> None:
        """Remove what is not published."""
        for path, *_ in self._files:
            path.unlink(missing_ok=True)


@contextmanager
def writing(ws: Workspace, table: str, iteration: int, stage: str) -> Iterator[PartitionWriter]:
    """A writer of the partition, which takes the place of the one before at the end, and of nothing where that fails.

    One process writes a partition at a time; another one waits. Raises DiskFull, and DataError where the other takes
    more than ten minutes.
    """
    folder = ws.partition(table, iteration, stage)
    with held_off(folder, _LOCK_S), disk_full_is_named(folder):
        writer = PartitionWriter(folder, table)
        try:
            yield writer
            writer.publish()
        finally:
            writer.discard()
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
            pa.default_memory_pool().release_unused()  # it would keep two runs for what comes next


def held_off(folder: Path, seconds: float) -> AbstractContextManager[None]:
    """No other process writes the partition meanwhile. Raises DataError where one still does after so many seconds."""
    iteration, table, ws = folder.parent, folder.parents[1], Workspace(folder.parents[3])
    name = "-".join([table.name, *(path.name.partition("=")[2] for path in (iteration, folder))])
    return locked(ws.state / "locks" / name, seconds, f"writing {ws.relative(folder)}")


def from_rows(table: str, rows: Iterable[Mapping[str, Any]], first: int = 0) -> pa.Table:
    """Rows (mappings; missing columns are null) as a table of the schema. first: the number of the first row.

    Raises DataError naming the column.
    """
    schema = TABLES[table]
    rows = list(rows)
    columns = set(schema.names)
    for number, row in enumerate(rows, first):
        if not columns.issuperset(row):
            unknown = sorted(set(row) - columns)
            raise DataError(f"table {table} has no column {unknown} (row {number})", where="flywheel/schema.py")
    try:
        result = pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"a row does not fit table {table}: {error}", where="flywheel/schema.py") from error
    _refuse_empty(table, result)
    return result


def _refuse_empty(table: str, data: pa.Table) -> None:
    for field in TABLES[table]:
        if not field.nullable and data[field.name].null_count:
            raise DataError(f"table {table}: column {field.name} is empty in a row", where="flywheel/schema.py")


def is_sorted(data: pa.Table, keys: tuple[str, ...]) -> bool:
    """Whether the rows ascend by the keys; where a key is null it is not known, and False."""
    if data.num_rows < 2:
        return True
    equal = None  # rows that are as the one before them, by the keys so far
    for key in keys:
        column = data[key]
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        falls = pc.greater(before, after)
        if column.null_count or pc.any(falls if equal is None else pc.and_(equal, falls)).as_py():
            return False
        same = pc.equal(before, after)
        equal = same if equal is None else pc.and_(equal, same)
    return True


def _remove(folder: Path, keep: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in keep:
            path.unlink(missing_ok=True)


class _Hashed(io.RawIOBase):
    """A file that is hashed as it is written."""

    def __init__(self, file: io.BufferedWriter) -> None:
        self.file, self.sha = file, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self.sha.update(data)
        return self.file.write(data)
