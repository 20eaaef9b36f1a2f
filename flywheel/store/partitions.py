"""Read and write the Parquet partitions of a table; a half-written partition is never visible."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import sys
import time
import warnings
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store.schema import SCHEMA_VERSION, SORT_KEYS, TABLES, declaring_file, empty_table
from flywheel.utils.errors import DataError, did_you_mean
from flywheel.utils.files import cached_sha256, disk_full_errors, file_lock, remember_sha256, write_json

if TYPE_CHECKING:
    import duckdb

# `_parts.json` lists a partition's files; other files in the folder do not count. It is written last and replaced in
# one step, so a reader sees either the old rows or the new ones: files are named by their content, those of the old
# list are removed once the new list is in place, and a reader that then misses one starts again.

# DuckDB 2 warns so at each query; the way without the copy, `sql`, runs nothing but SELECT in DuckDB 1.5.
warnings.filterwarnings("ignore", "Arrow output on a DB-API result makes an extra copy", UserWarning)
E = TypeVar("E", bound=DataError)
PARTS_FILE = "_parts.json"  # pandas, pyarrow and Spark ignore files that begin with `_`
_PARTS_VERSION = 1
_FOOTER_TAIL = 8  # bytes: the footer's length, and Parquet's magic number
_LISTED = re.compile(r"part-\d{5}-[0-9a-f]{8}\.parquet")


class PartMissing(DataError):
    """Signal that a file that a partition's list names is missing: lost, or removed since the partition was replaced.

    folder: the partition's; None where the file is in no partition, or the error came from another process.
    """

    folder: Path | None = None


@dataclass(frozen=True)
class ListedFile:
    """Hold what a partition's list says of one Parquet file.

    name: in the partition's folder. rows, bytes: their numbers. sha256: of all its bytes, in hex. footer: sha256 of its
    footer, which its page checksums do not cover; footer and size are checked whenever it is read, at the cost of a few
    kB. kept: names of the contracts that all its rows were found to keep when it was written.
    """

    name: str
    rows: int
    bytes: int
    sha256: str
    footer: str
    kept: tuple[str, ...] = ()


def describe_part_file(path: Path, rows: int, sha256: str, kept: tuple[str, ...] = ()) -> ListedFile:
    """Return the list entry of the Parquet file `path` as the file is now.

    rows: their number. sha256: of its bytes. kept: contracts that all its rows keep. Raises FileNotFoundError where it
    is missing, ValueError where it is cut off.
    """
    return ListedFile(path.name, rows, path.stat().st_size, sha256, _footer_sha256(path), kept)


def write_part_list(folder: Path, table: str, parts: list[ListedFile]) -> None:
    """Write `parts`, in this order, as the list of the partition's files; other files there stay.

    folder: the partition's. table: its name. Raises as `write_json`.
    """
    listed = [{name: value for name, value in asdict(part).items() if value != ()} for part in parts]
    write_json(folder / PARTS_FILE, {"version": _PARTS_VERSION, "table": table, "parts": listed})


def read_part_list(folder: Path) -> list[ListedFile] | None:
    """Read the list of the files of the partition in `folder`, in order; None where there is no partition.

    A partition of an earlier version, without a list, consists of all files named `part-NNNNN.parquet`, which are read
    completely. Raises DataError for a damaged list, or a damaged file among those.
    """
    path = folder / PARTS_FILE
    try:
        status = path.stat()
    except FileNotFoundError:
        return _list_parts_without_list(folder)
    return list(_parse_part_list(path, status.st_mtime_ns, status.st_ino, status.st_size))


@lru_cache(maxsize=4096)
def _parse_part_list(path: Path, *_: int) -> tuple[ListedFile, ...]:
    """Parse a list of files. The further arguments, its time, inode and size, are part of the cache's key."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["version"] != _PARTS_VERSION:
            raise ValueError(f"version {found['version']}")
        return tuple(ListedFile(**{**part, "kept": tuple(part.get("kept", ()))}) for part in found["parts"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged_file_error(path, f"not a list of a partition's files: {error!r}") from None


def _list_parts_without_list(folder: Path) -> list[ListedFile] | None:
    names = sorted(path.name for path in folder.glob("part-*.parquet"))
    old = [folder / name for name in names if not _LISTED.fullmatch(name)]  # the others are left by a killed writer
    found = []
    for path in old:
        with _name_damaged_file(path):
            found.append(describe_part_file(path, pq.read_metadata(path).num_rows, cached_sha256(path)))
    return found or None


def _check_part_file(path: Path, of: ListedFile, *, wholly: bool) -> None:
    """Check a file's size and footer against its entry `of` in the list, or, if `wholly`, all of its bytes.

    A file is hashed once per process while it does not change. Raises DataError where they differ, PartMissing where it
    is gone.
    """
    with _name_damaged_file(path):
        if path.stat().st_size != of.bytes or _footer_sha256(path) != of.footer:
            raise ValueError("its size or its footer changed since it was written")
        if wholly and cached_sha256(path) != of.sha256:
            raise ValueError("its bytes changed since it was written")


@contextmanager
def _name_damaged_file(path: Path) -> Iterator[None]:
    """Turn errors of reading the file into DataError, or PartMissing where it is gone."""
    try:
        yield
    except FileNotFoundError:
        raise missing_part_error(path) from None
    except (pa.ArrowException, OSError, ValueError) as error:  # UnicodeDecodeError too
        raise damaged_file_error(path, f"not a whole Parquet file: {exception_first_line(error)}") from error


def missing_part_error(path: Path) -> PartMissing:
    """Return (not raise) the error for a partition's missing file `path`, with the command that restores it.

    The error's `folder` is that of the file, the partition's.
    """
    error = damaged_file_error(path, "a file of the partition is missing", PartMissing)
    error.folder = path.parent
    return error


def damaged_file_error(path: Path, what: str, kind: type[E] = DataError) -> E:
    """Return (not raise) the error for a damaged table file, with the command that restores it.

    path: of the file, in its partition's folder. what: the fault in words. kind: class of the error.
    """
    where = "/".join(path.parts[-5:])  # from the workspace: data/<table>/iteration=NNN/stage=<stage>/<file>
    return kind(
        what,
        where=where,
        fix=f"type `dvc checkout --force {where.rpartition('/')[0]}` in the workspace (`flywheel run` does it too)",
    )


def exception_first_line(error: Exception) -> str:
    """Return the first line of the message of `error`, or the name of its class where the message is empty."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _footer_sha256(path: Path) -> str:
    """Hash the footer together with its length and the magic number after it."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _FOOTER_TAIL))
        length = int.from_bytes(file.read(4), "little")
        if size < length + _FOOTER_TAIL:
            raise ValueError("it is cut off")
        file.seek(size - _FOOTER_TAIL - length)
        return hashlib.sha256(file.read()).hexdigest()


# Some row contracts are checked on whole columns as a file is written, at a fiftieth of what reading them again costs.
# The list names the kept ones beside the file's sha256, so `contracts.check_row_contracts` need not read their columns.
# The list names none for a file of another program, and for a file with a row that may break a contract.


def check_contracts_at_write(table: str, data: pa.Table) -> tuple[str, ...]:
    """Return the names of the contracts that all rows of `data`, new rows of `table` in its schema, certainly keep."""
    return ("logprobs_match",) if table == "steps" and all(map(_logprobs_match, data.to_batches())) else ()


def _logprobs_match(rows: pa.RecordBatch) -> bool:
    """Check the contract `logprobs_match` of `contracts.yaml`, for people's steps too. NaN, which compares false,
    fails."""
    tokens, logprobs = rows["token_ids"], rows["logprobs"]
    lengths = [pc.fill_null(pc.list_value_length(column), 0) for column in (tokens, logprobs)]
    ids, values = tokens.flatten(), logprobs.flatten()
    if not lengths[0].equals(lengths[1]) or ids.null_count or values.null_count:
        return False
    ids, values = ids.to_numpy(), values.to_numpy()
    return not len(ids) or bool(ids.min() >= 0 and values.max() <= 0.001 and values.min() > -math.inf)


# Batches are collected into runs of about 256 MB; each run is sorted and becomes one file. So memory is bounded, and a
# small partition is one sorted file.

_RUN_BYTES = 256 * 2**20  # in memory; a file of steps has about a quarter of it
_ROWS_AT_ONCE, _QUERIED_ROWS = 2_000, 20_000  # per batch, of mappings and of a query
# Reading one trajectory decodes one row group of steps, and the statistics of all; small groups make a scan of all
# steps slower. Reading one screen reads a few hundred kB.
_ROW_GROUP, _IMAGE_ROW_GROUP = 10_000, 100
# Columns whose values hardly repeat: a dictionary would double the time to read them, and take space.
_NO_DICTIONARY = {"token_ids", "logprobs", "bytes", "thought", "raw_text"}
_SPLIT = {"logprobs": "logprobs.list.element"}  # BYTE_STREAM_SPLIT makes floats a tenth smaller
_LOCK_S = 600.0


class PartitionWriter:
    """Hold a partition that is being written: its files have hidden names until `publish` puts them in place.

    folder: the partition's. table: its name. Its methods raise OSError where writing fails; `open_partition_writer`
    turns a full disk into DiskFull.
    """

    def __init__(self, folder: Path, table: str) -> None:
        self.folder, self.table, self.schema = folder, table, TABLES[table]
        self.rows = 0
        self._held: list[pa.Table] = []
        self._files: list[tuple[Path, int, str, tuple[str, ...]]] = []

    def write(self, data: pa.Table | pa.RecordBatch | Iterable[Mapping[str, Any]]) -> None:
        """Append rows. data: a table or batch of the schema, or mappings.

        Raises DataError where they do not fit the schema.
        """
        if isinstance(data, pa.RecordBatch):
            data = pa.Table.from_batches([data])
        if not isinstance(data, pa.Table):
            rows = iter(data)
            while some := list(islice(rows, _ROWS_AT_ONCE)):
                self._take(table_from_rows(self.table, some, self.rows))
            return
        if not data.schema.equals(self.schema):
            raise DataError(f"data do not have the schema of table {self.table}", where=declaring_file(self.table))
        _refuse_nulls(self.table, data)
        self._take(data)

    def write_query(self, connection: duckdb.DuckDBPyConnection, sql: str) -> None:
        """Append the rows of the query `sql` in batches; no other query may run on `connection` meanwhile.

        Raises duckdb.Error for the query, ValueError or pyarrow.ArrowException where its columns are not the table's or
        do not convert to them, DataError where a column is null and must not be.
        """
        for batch in connection.execute(sql).to_arrow_reader(_QUERIED_ROWS):
            self.write(pa.Table.from_batches([batch]).cast(self.schema))

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
        if not is_sorted(run, SORT_KEYS[self.table]):
            run = run.sort_by([(key, "ascending") for key in SORT_KEYS[self.table]])
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f".{len(self._files):05d}.part"
        with path.open("wb") as file:
            sink = _HashingFile(file)
            order = [pq.SortingColumn(self.schema.get_field_index(key)) for key in SORT_KEYS[self.table]]
            pq.write_table(
                run,
                sink,
                compression="zstd",
                row_group_size=_IMAGE_ROW_GROUP if self.table == "images" else _ROW_GROUP,
                write_page_checksum=True,
                use_dictionary=[name for name in self.schema.names if name not in _NO_DICTIONARY],
                column_encoding={
                    leaf: "BYTE_STREAM_SPLIT" for name, leaf in _SPLIT.items() if name in self.schema.names
                },
                sorting_columns=order,
            )
        self._files.append((path, run.num_rows, sink.sha.hexdigest(), check_contracts_at_write(self.table, run)))

    def take_file(self, path: Path, of: ListedFile) -> None:
        """Append a file unchanged, by a hard link.

        path: of the file, on the same file system, else OSError is raised. of: its entry in its own partition's list.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        hidden = self.folder / f".{len(self._files):05d}.part"
        hidden.unlink(missing_ok=True)
        hidden.hardlink_to(path)
        self._files.append((hidden, of.rows, of.sha256, of.kept))
        self.rows += of.rows

    def publish(self) -> list[ListedFile]:
        """Replace the partition by what was appended, at once; return the list of its files.

        No rows give one file without rows. Nothing may be written afterwards.
        """
        if self._held or not self._files:
            self._flush()
        listed = []
        for number, (path, rows, sha256, holds) in enumerate(self._files):
            there = path.rename(path.with_name(f"part-{number:05d}-{sha256[:8]}.parquet"))
            remember_sha256(there, sha256)
            listed.append(describe_part_file(there, rows, sha256, holds))
        os.utime(self.folder.parent)  # the new time tells `compaction.py` that the iteration changed
        write_part_list(self.folder, self.table, listed)
        keep = {PARTS_FILE, *(one.name for one in listed)}
        for path in self.folder.iterdir():
            if path.name not in keep:
                path.unlink(missing_ok=True)
        return listed

    def discard(self) -> None:
        """Remove the files that are not published."""
        for path, *_ in self._files:
            path.unlink(missing_ok=True)


@contextmanager
def open_partition_writer(ws: Workspace, table: str, iteration: int, stage: str) -> Iterator[PartitionWriter]:
    """Yield a writer of a partition, which replaces the old one at the end of the block, unless the block fails.

    table, iteration, stage: name the partition. It gets only what is written within the block; if that is nothing, one
    file without rows. Only one process writes a partition at a time; others wait. Raises DataError where the wait takes
    more than ten minutes, DiskFull, OSError where nothing can be written (a read-only disk), KeyError for an unknown
    table; what the block raises passes.
    """
    folder = ws.partition(table, iteration, stage)
    with lock_partition(folder, _LOCK_S), disk_full_errors(folder):
        writer = PartitionWriter(folder, table)
        try:
            yield writer
            writer.publish()
        finally:
            writer.discard()
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
            pa.default_memory_pool().release_unused()  # else two runs stay allocated


def lock_partition(folder: Path, seconds: float) -> AbstractContextManager[None]:
    """Hold the lock of a partition within the block: nobody else can write it, this process included.

    folder: `data/TABLE/iteration=NNN/stage=NAME` of a workspace. seconds: timeout of the wait for the lock. A writer of
    the same partition that is opened within the block waits for this one. Raises DataError where the partition is still
    being written after `seconds`, OSError where the lock file cannot be made, as on a read-only disk.
    """
    iteration, table, ws = folder.parent, folder.parents[1], Workspace(folder.parents[3])
    name = "-".join([table.name, *(path.name.partition("=")[2] for path in (iteration, folder))])
    return file_lock(ws.state / "locks" / name, seconds, f"writing {ws.relative(folder)}")


def hide_pandas_from_pyarrow() -> None:
    """Make pyarrow convert Python values without pandas from here on in this process.

    At its first conversion pyarrow imports pandas, which takes half a second, to recognise values of that library;
    flywheel has none. Importing pandas, or asking pyarrow for a data frame, still works.
    """
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _PandasHidden)
    try:
        pa.array([])  # pyarrow remembers that pandas was not found
    finally:
        sys.meta_path.remove(_PandasHidden)


class _PandasHidden:
    """Find modules, before all other finders, as if pandas were not installed."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"{name} is left out", name=name)


def table_from_rows(table: str, rows: Iterable[Mapping[str, Any]], first: int = 0) -> pa.Table:
    """Make a table of the schema from `rows`, mappings; missing columns are null, no rows give an empty table.

    table: its name. first: number of the first row, for messages. Raises DataError for an unknown column, a value that
    does not fit its column, or a column that is null and must not be; KeyError for an unknown table.
    """
    schema = TABLES[table]
    rows = list(rows)
    columns = set(schema.names)
    for number, row in enumerate(rows, first):
        if not columns.issuperset(row):
            unknown = sorted(map(str, set(row) - columns))
            what = f"table {table} has no column {', '.join(unknown)} (row {number})"
            raise DataError(what, where=declaring_file(table), fix=did_you_mean(unknown[0], schema.names))
    try:
        result = pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowTypeError, OverflowError, ValueError) as error:  # ArrowInvalid and UnicodeEncodeError too
        raise DataError(f"a row does not fit table {table}: {error}", where=declaring_file(table)) from error
    _refuse_nulls(table, result)
    return result


def _refuse_nulls(table: str, data: pa.Table) -> None:
    for field in TABLES[table]:
        if not field.nullable and data[field.name].null_count:
            what = f"table {table}: column {field.name} is empty in a row"
            fix = f"give each row its {field.name}: a column of that name is never null (`NOT_NULL` of schema.py)"
            raise DataError(what, where=declaring_file(table), fix=fix)


def is_sorted(data: pa.Table, keys: tuple[str, ...]) -> bool:
    """Tell whether no row of `data` is below the one before it, by the columns `keys` in turn.

    Equal rows may follow each other. True for fewer than two rows; else False where a key is null. Raises KeyError
    where `data` lacks one of the `keys` that it compares.
    """
    if data.num_rows < 2:
        return True
    equal = None  # rows equal to the one before them, by the keys so far
    for key in keys:
        column = data[key]
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        falls = pc.greater(before, after)
        if column.null_count or pc.any(falls if equal is None else pc.and_(equal, falls)).as_py():
            return False
        same = pc.equal(before, after)
        equal = same if equal is None else pc.and_(equal, same)
    return True


class _HashingFile(io.RawIOBase):
    """Hash a file while writing it."""

    def __init__(self, file: io.BufferedWriter) -> None:
        self.file, self.sha = file, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self.sha.update(data)
        return self.file.write(data)


# A partition is a folder (`Workspace.partition`) that one stage of one iteration owns. Stages pass on a
# `PartitionManifest` (paths, row counts, sha256), never the rows.

T = TypeVar("T")
_RETRY_S = 30.0  # how long a reader retries while a partition is being replaced
_LOCK_AFTER_TRIES = 4  # failed reads before the reader takes the lock


@dataclass(frozen=True)
class PartitionManifest:
    """Hold what one stage wrote to one table: the files of its partition.

    table: name. parts: the files, in order. folder: the partition's, relative to the workspace; "" where it is not
    known.
    """

    table: str
    parts: tuple[ListedFile, ...]
    folder: str = ""

    @property
    def rows(self) -> int:
        """Return the number of rows in all files."""
        return sum(part.rows for part in self.parts)


def write_partition(
    ws: Workspace, table: str, iteration: int, stage: str, data: pa.Table | Iterable[Mapping]
) -> PartitionManifest:
    """Replace a partition by `data`, sorted and compressed; no rows give one file without rows.

    table, iteration, stage: name the partition. data: a table of the schema, or rows as mappings, of which missing
    columns are null. Returns its manifest. Raises DataError where the data do not fit the schema, or another process
    has been writing it for ten minutes; otherwise as `open_partition_writer`.
    """
    with open_partition_writer(ws, table, iteration, stage) as writer:
        writer.write(data)
    return partition_manifest(ws, table, iteration, stage)


def partition_files(ws: Workspace, table: str, iteration: int, stage: str) -> list[Path]:
    """Return the paths of a partition's files, in order. table, iteration, stage: name it.

    Raises DataError where it is missing or its list damaged.
    """
    folder = ws.partition(table, iteration, stage)
    found = read_part_list(folder)
    if found is None:
        raise DataError("no such partition", where=ws.relative(folder), fix=f"run the stage {stage} first")
    return [folder / part.name for part in found]


def table_files(ws: Workspace, table: str, without: Set[int] = frozenset()) -> list[Path]:
    """Return the paths of the files of all partitions of `table`, oldest iteration first, stages of one by name.

    without: iterations left out. Raises DataError for a damaged list.
    """
    place, closed = ws.data / table, {f"iteration={iteration_label(k)}" for k in without}
    names = {path.name for path in place.iterdir()} - closed if place.is_dir() else set()
    oldest_first = sorted(names, key=lambda name: (len(name), name))  # iteration=1000 comes after iteration=999
    folders = [folder for name in oldest_first for folder in sorted((place / name).glob("stage=*"))]
    return [folder / part.name for folder in folders for part in read_part_list(folder) or ()]


def read_partition(ws: Workspace, table: str, iteration: int, stage: str, columns: list[str] | None = None) -> pa.Table:
    """Read the rows of a partition, in the order of its files; retry where it was replaced meanwhile.

    table, iteration, stage: name it. columns: those to read, in this order; None: all. Raises DataError where it is
    missing, damaged or of another schema, or has been replaced again and again for half a minute; KeyError for a column
    that the table lacks.
    """

    def once() -> pa.Table:
        paths = partition_files(ws, table, iteration, stage)
        return pa.concat_tables([read_partition_file(ws, table, path, columns) for path in paths])

    return retry_while_replaced(once)


def retry_while_replaced(read: Callable[[], T]) -> T:
    """Return what `read` returns; call it again where a partition was replaced meanwhile.

    read: raises PartMissing for a file that is gone, and can be called several times; its other errors are passed on.
    After four failed calls the writer is locked out. Raises PartMissing where the same file is gone in two calls in a
    row, so that it is lost, DataError where the writer does not end within half a minute.
    """
    deadline = time.monotonic() + _RETRY_S
    missing, tries = None, 0
    waiting: set[Path] = set()
    with ExitStack() as held:
        while True:
            try:
                return read()
            except PartMissing as error:
                # The same file missing twice was not removed by a writer: it is lost.
                if error.where == missing or time.monotonic() > deadline:
                    raise
                missing, tries = error.where, tries + 1
                if tries >= _LOCK_AFTER_TRIES and error.folder and error.folder not in waiting:
                    waiting.add(error.folder)
                    with suppress(OSError):  # on a read-only disk there is no lock, and no writer
                        held.enter_context(lock_partition(error.folder, deadline - time.monotonic()))


def read_partition_file(ws: Workspace, table: str, path: Path, columns: list[str] | None = None) -> pa.Table:
    """Read one Parquet file of a table, and check it against its partition's list, its checksums and the schema.

    ws, table: of the file `path`. columns: those to read, in this order, for which its size, its footer and the
    checksums of the pages read are checked; None: all, for which the whole file is hashed. Raises DataError where the
    file or the list is damaged, or the columns are not the table's; PartMissing where it is gone or not in the list;
    KeyError for a column that the table lacks.
    """
    with open_partition_file(table, path, wholly=columns is None) as file, _name_damaged_file(path):
        data = file.read(columns=columns)  # not `read_table`, which would add columns from the path
    _check_schema(ws, table, path, data.schema, columns)
    return data


def open_partition_file(table: str, path: Path, *, wholly: bool = False) -> pq.ParquetFile:
    """Open a file of `table` to read row groups of; page checksums are checked as pages are read. Close it after use.

    path: of the file. wholly: check all of its bytes at once. Raises DataError where the file or its partition's list
    is damaged, or it belongs to another table; PartMissing where it is gone or not in the list.
    """
    own = {part.name: part for part in read_part_list(path.parent) or ()}.get(path.name)
    if own is None:
        raise missing_part_error(path)
    _check_part_file(path, own, wholly=wholly)
    with _name_damaged_file(path):
        file = pq.ParquetFile(path, page_checksum_verification=True)
        about = file.schema_arrow.metadata or {}
    version, of = about.get(b"schema_version", b"").decode(), about.get(b"table", b"").decode()
    if version != str(SCHEMA_VERSION) or of != table:
        file.close()
        what = f"of table {of or '?'}, version {version or '?'}; expected {table}, version {SCHEMA_VERSION}"
        raise damaged_file_error(path, f"it is a file {what}")
    if file.metadata.num_rows != own.rows:
        file.close()
        raise damaged_file_error(path, f"it has {file.metadata.num_rows} rows, and its list says {own.rows}")
    return file


def _check_schema(ws: Workspace, table: str, path: Path, found: pa.Schema, columns: list[str] | None) -> None:
    """Compare columns with the table's schema. Raises DataError where they differ."""
    expected = TABLES[table] if columns is None else pa.schema([TABLES[table].field(name) for name in columns])
    if not found.equals(expected):
        raise DataError(
            f"columns differ from table {table} of this version",
            where=ws.relative(path),
            fix="`flywheel workspace migrate` writes those of an earlier version anew",
        )


def check_file_schema(ws: Workspace, table: str, path: Path) -> None:
    """Compare the columns of one Parquet file of a table, and their types, with the schema; only its footer is read.

    ws, table: of the file `path`. Raises DataError where they differ or it is damaged, PartMissing where it is gone.
    """
    with _name_damaged_file(path):
        schema = pq.read_schema(path)
    _check_schema(ws, table, path, schema, None)


def find_part_file_fault(path: Path, *, wholly: bool = True) -> DataError | None:
    """Return the error that describes what is wrong with the table file `path`; None where it can be read.

    wholly: check its rows, not only its footer.
    """
    try:
        with open_partition_file(path.parts[-4], path, wholly=wholly) as file, _name_damaged_file(path):
            for group in range(file.num_row_groups if wholly else 0):
                file.read_row_group(group)
    except DataError as error:
        return error
    return None


def verify_partition(ws: Workspace, table: str, iteration: int, stage: str) -> None:
    """Check all bytes of a partition against its list, and its columns against the schema.

    table, iteration, stage: name it. Raises DataError for the first fault.
    """

    def once() -> None:
        for path in partition_files(ws, table, iteration, stage):
            with open_partition_file(table, path, wholly=True) as file:
                _check_schema(ws, table, path, file.schema_arrow, None)

    retry_while_replaced(once)


def contracts_checked_at_write(ws: Workspace, table: str, iteration: int, stage: str) -> set[str]:
    """Return the names of the contracts that all rows of a partition were found to keep when they were written.

    table, iteration, stage: name it. They hold as long as its bytes are as listed (`verify_partition`). Empty where
    there is no such partition. Raises DataError for a damaged list.
    """
    found = read_part_list(ws.partition(table, iteration, stage)) or ()
    return set.intersection(*(set(part.kept) for part in found)) if found else set()


def adopt_partition(ws: Workspace, staged: Workspace, table: str, iteration: int, stage: str) -> PartitionManifest:
    """Replace a partition of `ws` by that of the workspace `staged`, by hard links; return its manifest.

    The source stays. table, iteration, stage: name it. Both workspaces must lie on one file system. Raises DataError
    where the source is missing, a list is damaged, or another process has been writing the target for ten minutes;
    OSError where they lie on two file systems, or a file is gone; DiskFull.
    """
    with open_partition_writer(ws, table, iteration, stage) as writer:
        link_partition_files(staged, writer, table, iteration, stage)
    return partition_manifest(ws, table, iteration, stage)


def link_partition_files(
    ws: Workspace, writer: PartitionWriter, table: str, iteration: int, stage: str, only: Path | None = None
) -> None:
    """Append the files of a partition to `writer` by hard links; both must lie on one file system.

    ws, table, iteration, stage: name the partition. only: path of the one file to take; None: all. Raises DataError
    where the partition is missing, its list is damaged or does not name `only`; OSError where they lie on two file
    systems or a file is gone.
    """
    files = partition_files(ws, table, iteration, stage)
    listed = {part.name: part for part in read_part_list(ws.partition(table, iteration, stage)) or ()}
    for path in files if only is None else [only]:
        if path.name not in listed:
            raise missing_part_error(path)
        writer.take_file(path, listed[path.name])


def check_all_partitions(ws: Workspace) -> tuple[int, list[DataError]]:
    """Count the files of all tables' partitions, and list the faults of their lists, sizes and footers.

    Returns both; the files of a partition with a damaged list are not counted.
    """
    count, faults = 0, []
    for table in TABLES:
        for folder in sorted((ws.data / table).glob("iteration=*/stage=*")):
            try:
                names = [part.name for part in read_part_list(folder) or ()]
            except DataError as error:
                faults.append(error)
                continue
            count += len(names)
            faults += filter(None, (find_part_file_fault(folder / name, wholly=False) for name in names))
    return count, faults


def partition_manifest(ws: Workspace, table: str, iteration: int, stage: str) -> PartitionManifest:
    """Return the files of a partition, as its list says, with their numbers of rows and hashes.

    No files where there is no such partition. table, iteration, stage: name it. Files are opened only where the
    partition is of an earlier version (`read_part_list`). Raises DataError for a damaged list, or a damaged file that
    is opened.
    """
    folder = ws.partition(table, iteration, stage)
    return PartitionManifest(table, tuple(read_part_list(folder) or ()), ws.relative(folder))


# Rows are found by a key in bounded memory: row groups whose statistics exclude the wanted keys are skipped; of the
# others the key is read first, and other columns only where it matches. Tables are sorted by their keys.

_SCAN_ROWS = 2**17  # rows per batch of a scan, which reads few columns


def find_rows(
    ws: Workspace, table: str, files: Iterable[Path], key: str, wanted: Collection[str], columns: Collection[str]
) -> pa.Table:
    """Return the rows of `files` whose `key` is among `wanted`, in the files' order; an empty table if there are none.

    ws, table: of the files. key: a text column by which the table is sorted. wanted: values; one that is not found is
    no error. columns: to return besides the key, in the table's order; names that the table lacks are left out. Raises
    DataError for a damaged or missing file, KeyError for an unknown table.
    """
    names = _in_table_order(table, {key, *columns})
    return pa.concat_tables(
        [empty_table(table).select(names), *iter_matching_rows(ws, table, files, key, wanted, columns)]
    )


def iter_matching_rows(
    ws: Workspace, table: str, files: Iterable[Path], key: str, wanted: Collection[str], columns: Collection[str]
) -> Iterator[pa.Table]:
    """Yield the rows of `files` whose `key` is among `wanted`, a table for each row group that has some.

    They come in the files' order. ws, table: of the files. key: a text column by which the table is sorted. wanted:
    values; one that is not found is no error. columns: to return besides the key, in the table's order; names that the
    table lacks are left out. It is a generator: errors come as it is read. Raises DataError for a damaged or missing
    file, KeyError for an unknown table.
    """
    names, values = _in_table_order(table, {key, *columns}), sorted(wanted)
    accepted = pa.array(values, pa.string())
    for path in files if values else ():
        with open_partition_file(table, path) as file:
            for group in _row_groups_that_may_hold(file, key, values):
                keys = _read_row_group(file, path, group, [key])
                places = pc.indices_nonzero(pc.is_in(keys[key], value_set=accepted))
                if len(places):
                    data, others = keys.take(places), [name for name in names if name != key]
                    more = _read_row_group(file, path, group, others).take(places) if others else data.select([])
                    for field, column in zip(more.schema, more.columns, strict=True):
                        data = data.append_column(field, column)
                    data = data.select([name for name in names if name in data.column_names])
                    _check_schema(ws, table, path, data.schema, names)
                    yield data


def scan_columns(ws: Workspace, table: str, files: Iterable[Path], columns: Collection[str]) -> Iterator[pa.Table]:
    """Yield the `columns` of all rows of `files`, in tables of at most 131,072 rows of one file.

    ws, table: of the files. columns: they come in the table's order; names that the table lacks are left out. It is a
    generator: errors come as it is read. Raises DataError for a damaged or missing file, KeyError for an unknown table.
    """
    names = _in_table_order(table, columns)
    for path in files:
        with open_partition_file(table, path) as file, _name_damaged_file(path):
            for batch in file.iter_batches(_SCAN_ROWS, columns=names, use_threads=False):
                _check_schema(ws, table, path, batch.schema, names)
                yield pa.Table.from_batches([batch])


def _in_table_order(table: str, columns: Collection[str]) -> list[str]:
    return [name for name in TABLES[table].names if name in columns]


def _row_groups_that_may_hold(file: pq.ParquetFile, key: str, values: Sequence[str]) -> Iterator[int]:
    """Yield the numbers of the row groups that may hold one of `values`, which ascend."""
    place = file.schema.names.index(key) if file.num_row_groups else 0
    for group in range(file.num_row_groups):
        about = file.metadata.row_group(group).column(place).statistics
        if about is None or not about.has_min_max:
            yield group
            continue
        first = bisect_left(values, about.min)
        if first < len(values) and values[first] <= about.max:
            yield group


def _read_row_group(file: pq.ParquetFile, path: Path, group: int, columns: list[str]) -> pa.Table:
    with _name_damaged_file(path):
        return file.read_row_group(group, columns=columns, use_threads=False)
