"""Read and write the Parquet partitions of a table. Half a partition is never visible.

A partition is a folder (`Workspace.partition`) owned by one stage of one iteration. What a stage hands on is
a `PartitionManifest`: paths, rows, sha256, never the rows. Which files are a partition's says `parts.py`, how they are
written `partition_writer.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from flywheel.errors import DataError
from flywheel.schema import ADDED, SCHEMA_VERSION, TABLES
from flywheel.store import parts
from flywheel.store.partition_writer import PartitionWriter, from_rows, held_off, writing
from flywheel.workspace import Workspace, label

__all__ = ["from_rows", "writing"]

T = TypeVar("T")
_REPLACED_S = 30.0  # how long a reader begins again while a partition is replaced under it
_HELD_OFF_AFTER = 4  # readings that a writer was faster than


@dataclass(frozen=True)
class Part:
    """One Parquet file: path relative to the workspace, its rows, the sha256 of its bytes."""

    path: str
    rows: int
    sha256: str


@dataclass(frozen=True)
class PartitionManifest:
    """What one stage wrote to one table."""

    table: str
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


def write(
    ws: Workspace, table: str, iteration: int, stage: str, data: pa.Table | Iterable[Mapping]
) -> PartitionManifest:
    """Replace the partition by `data`, sorted and compressed; zero rows give one typed zero-row file.

    Raises DataError where the data do not fit the schema, DiskFull where there is no space.
    """
    with writing(ws, table, iteration, stage) as writer:
        writer.write(data)
    return manifest_of(ws, table, iteration, stage)


def files(ws: Workspace, table: str, iteration: int, stage: str) -> list[Path]:
    """The partition's files. Raises DataError where it is missing or its list is damaged."""
    folder = ws.partition(table, iteration, stage)
    found = parts.read(folder)
    if found is None:
        raise DataError("no such partition", where=ws.relative(folder), fix=f"run the stage {stage} first")
    return [folder / part.name for part in found]


def all_files(ws: Workspace, table: str, without: Set[int] = frozenset()) -> list[Path]:
    """The files of all partitions of a table, oldest iteration first, but those of the iterations `without`.

    Raises DataError for a damaged list.
    """
    place, closed = ws.data / table, {f"iteration={label(k)}" for k in without}
    names = {path.name for path in place.iterdir()} - closed if place.is_dir() else set()
    folders = [folder for name in sorted(names) for folder in sorted((place / name).glob("stage=*"))]
    return [folder / part.name for folder in folders for part in parts.read(folder) or ()]


def read(ws: Workspace, table: str, iteration: int, stage: str, columns: list[str] | None = None) -> pa.Table:
    """The partition's rows. Raises DataError where it is missing, damaged, or of another schema."""

    def once() -> pa.Table:
        paths = files(ws, table, iteration, stage)
        return pa.concat_tables([read_file(ws, table, path, columns) for path in paths])

    return while_replaced(once)


def while_replaced(read: Callable[[], T]) -> T:
    """What `read` gives. Where a file is gone that a list named, the partition was replaced meanwhile, perhaps: read
    again, by the new list. A reader that was too slow for its writer several times holds the writer off.
    """
    deadline = time.monotonic() + _REPLACED_S
    missing, tries = None, 0
    waiting: set[Path] = set()
    with ExitStack() as held:
        while True:
            try:
                return read()
            except parts.PartMissing as error:
                # The same file missed twice was not lost to a writer, but for good.
                if error.where == missing or time.monotonic() > deadline:
                    raise
                missing, tries = error.where, tries + 1
                if tries >= _HELD_OFF_AFTER and error.folder not in waiting:
                    waiting.add(error.folder)
                    with suppress(OSError):  # where nothing can be written, there is no lock, and no writer either
                        held.enter_context(held_off(error.folder, deadline - time.monotonic()))


def read_file(ws: Workspace, table: str, path: Path, columns: list[str] | None = None) -> pa.Table:
    """One Parquet file of a table, checked against its partition's list, its checksums and the schema.

    A whole reading hashes all of the file; one of some columns looks at its size, its footer, and the checksums of the
    pages that it reads.
    """
    with opened(table, path, wholly=columns is None) as file:
        try:
            data = file.read(columns=columns)  # not a dataset read: hive columns must not be added
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise parts.damaged(path, f"not a whole Parquet file: {parts.first_line(error)}") from error
    return conformed(ws, table, path, data, columns)


def opened(table: str, path: Path, *, wholly: bool = False) -> pq.ParquetFile:
    """A file of a table to read row groups of; its pages' checksums are looked at as they are read. Raises DataError
    where it is damaged, or is not one of the table's. wholly: all of its bytes are looked at now."""
    own = {part.name: part for part in parts.read(path.parent) or ()}.get(path.name)
    if own is None:
        raise parts.missing(path)
    (parts.check_wholly if wholly else parts.check)(path, own)
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        about = file.schema_arrow.metadata or {}
    except FileNotFoundError:
        raise parts.missing(path) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError) as error:
        raise parts.damaged(path, f"not a whole Parquet file: {parts.first_line(error)}") from error
    version, of = about.get(b"schema_version", b"").decode(), about.get(b"table", b"").decode()
    if version != str(SCHEMA_VERSION) or of != table:
        file.close()
        what = f"of table {of or '?'}, version {version or '?'}; expected {table}, version {SCHEMA_VERSION}"
        raise parts.damaged(path, f"it is a file {what}")
    if file.metadata.num_rows != own.rows:
        file.close()
        raise parts.damaged(path, f"it has {file.metadata.num_rows} rows, and its list says {own.rows}")
    return file


def conformed(ws: Workspace, table: str, path: Path, data: pa.Table, columns: list[str] | None) -> pa.Table:
    """Rows as they were read, with the columns that an older file lacks. Raises DataError where others differ."""
    expected = TABLES[table] if columns is None else pa.schema([TABLES[table].field(name) for name in columns])
    for place, field in enumerate(expected):
        if field.name in ADDED.get(table, ()) and field.name not in data.column_names:
            data = data.add_column(place, field, pa.nulls(data.num_rows, field.type))
    if not data.schema.equals(expected):
        raise DataError(
            f"columns differ from table {table} of this version",
            where=ws.relative(path),
            fix="`flywheel doctor` looks at all of them",
        )
    return data


def fault(path: Path, *, wholly: bool = True) -> DataError | None:
    """What is wrong with a table's Parquet file; None where it can be read. wholly: its rows too, else its footer."""
    try:
        with opened(path.parts[-4], path, wholly=wholly) as file:
            for group in range(file.num_row_groups if wholly else 0):
                file.read_row_group(group)
    except DataError as error:
        return error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        return parts.damaged(path, f"not a whole Parquet file: {parts.first_line(error)}")
    return None


def verify(ws: Workspace, table: str, iteration: int, stage: str) -> None:
    """Hold all bytes of the partition against its list, and its columns against the schema. Raises DataError."""

    def once() -> None:
        for path in files(ws, table, iteration, stage):
            with opened(table, path, wholly=True) as file:
                conformed(ws, table, path, file.schema_arrow.empty_table(), None)

    while_replaced(once)


def kept(ws: Workspace, table: str, iteration: int, stage: str) -> set[str]:
    """Contracts that all of the partition's rows were seen to keep when they were written. Of rows whose bytes are as
    the list has them (`verify`) they hold still."""
    found = parts.read(ws.partition(table, iteration, stage)) or ()
    return set.intersection(*(set(part.kept) for part in found)) if found else set()


def adopt(ws: Workspace, staged: Workspace, table: str, iteration: int, stage: str) -> PartitionManifest:
    """Make a partition of another workspace this one's too; where it lies stays as it is."""
    with writing(ws, table, iteration, stage) as writer:
        take(staged, writer, table, iteration, stage)
    return manifest_of(ws, table, iteration, stage)


def take(
    ws: Workspace, writer: PartitionWriter, table: str, iteration: int, stage: str, only: Path | None = None
) -> None:
    """Take the files of a partition, or one of them, into another one as they are; they are not written anew."""
    folder = ws.partition(table, iteration, stage)
    for path in files(ws, table, iteration, stage) if only is None else [only]:
        writer.take_file(path, next(part for part in parts.read(folder) if part.name == path.name))


def examine(ws: Workspace, *, wholly: bool = False) -> tuple[int, list[DataError]]:
    """How many files the partitions of all tables have, and what is wrong with them; wholly: with their bytes too."""
    count, faults = 0, []
    for table in TABLES:
        for folder in sorted((ws.data / table).glob("iteration=*/stage=*")):
            try:
                names = [part.name for part in parts.read(folder) or ()]
            except DataError as error:
                faults.append(error)
                continue
            count += len(names)
            faults += filter(None, (fault(folder / name, wholly=wholly) for name in names))
    return count, faults


def manifest_of(ws: Workspace, table: str, iteration: int, stage: str) -> PartitionManifest:
    """What the partition's list says; the files are not read. Empty where there is no such partition."""
    folder = ws.partition(table, iteration, stage)
    found = parts.read(folder) or ()
    return PartitionManifest(
        table, tuple(Part(ws.relative(folder / part.name), part.rows, part.sha256) for part in found)
    )
