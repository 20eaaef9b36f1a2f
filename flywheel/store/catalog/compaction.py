"""Compact the small partitions of complete iterations into few files that the catalogue reads.

`.flywheel/closed/001-010/<table>.parquet` has the rows of ten iterations; ten such folders are merged into one of a
hundred, so their number hardly grows. All files are derived from the partitions: they may be deleted, and are made
again when an iteration ends. An iteration counts as closed while its folders in `data`, its dvc.lock and its promotion
have the modification times of its compaction; `partitions.write_partition` changes them. `flywheel workspace verify`
finds a file that something else changed in place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store import partitions
from flywheel.store.partitions import PartMissing
from flywheel.store.schema import TABLES
from flywheel.store.versioning import dvc_files, stage_records
from flywheel.utils.errors import DataError
from flywheel.utils.files import atomic_folder, remove_unfinished, write_json

_LARGE_BYTES = 8 * 2**20  # a partition of at least this size is not compacted
_HELD_BYTES = 64 * 2**20
_ROW_GROUP = 20_000
_WIDTHS = (10, 100, 1_000)
_INDEX = "index.json"


@dataclass(frozen=True)
class CompactedIterations:
    """Hold which iterations a query reads from compacted files, and which files those are.

    iterations: those that need not be read from partitions. files: by table, each compacted file with the iterations
    whose rows in it are out of date. large: by table, files of closed iterations' large partitions, which are not
    compacted.
    """

    iterations: frozenset[int]
    files: dict[str, list[tuple[Path, list[int]]]]
    large: dict[str, list[Path]]


@dataclass(frozen=True)
class _Block:
    """Describe one folder. marks: iteration -> `_compute_iteration_stamp` at its compaction. large: table -> iteration
    -> files."""

    folder: Path
    marks: dict[int, str]
    large: dict[str, dict[int, list[str]]]


def find_compacted_iterations(ws: Workspace, without: Set[int] = frozenset()) -> CompactedIterations:
    """Find the closed iterations, each in the widest folder of `.flywheel/closed` that holds it unchanged.

    without: iterations that do not count as closed.
    """
    taken: dict[int, _Block] = {}
    now: dict[int, str] = {}
    for block in _blocks(ws):
        for k, mark in block.marks.items():
            if k not in taken and k not in without and now.setdefault(k, _compute_iteration_stamp(ws, k)) == mark:
                taken[k] = block
    files, large = ({table: [] for table in TABLES} for _ in range(2))
    for block in {block.folder: block for block in taken.values()}.values():
        own = sorted(k for k, one in taken.items() if one is block)
        for table in TABLES:
            path = block.folder / f"{table}.parquet"
            if path.exists():
                files[table].append((path, sorted(block.marks.keys() - set(own))))
            here = block.large.get(table, {})
            large[table] += [ws.resolve(name) for k in own for name in here.get(k, ())]
    return CompactedIterations(frozenset(taken), files, large)


def compact_iterations(ws: Workspace) -> None:
    """Compact the iterations that were completed or changed since the last call into few files for fast queries.

    The files go to `.flywheel/closed`, where folders of ten iterations are merged into one of a hundred, and so on; the
    partitions stay. An iteration with a damaged file is left out. Call it under the workspace's lock. Raises DataError
    where DVC's file of an iteration is lost or a compacted file is damaged, DiskFull, OSError where a table cannot be
    written.
    """
    remove_unfinished(ws.state / "closed")
    seen = find_compacted_iterations(ws).iterations
    for k in stage_records.list_iterations(ws):
        if k not in seen and dvc_files.is_iteration_complete(ws, k):
            mark = _compute_iteration_stamp(ws, k)  # taken before reading, so a change meanwhile is noticed
            try:
                _write_block(ws, [k], _rows_of(ws, k), {k: mark}, _large(ws, k))
            except (DataError, FileNotFoundError):  # queries read its partitions, and report the fault
                continue
    for width in _WIDTHS:
        _merge_blocks(ws, width)


def find_compacted_file_fault(path: Path) -> DataError | None:
    """Return the error that describes what is wrong with the compacted file `path`; None where it can be read.

    The error is a PartMissing where the file is gone.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group)
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError):
        where = "/".join(path.parts[-4:])  # .flywheel/closed/001-010/<table>.parquet
        kind = DataError if path.exists() else PartMissing  # perhaps merged meanwhile: the reader tries again
        return kind("not a whole Parquet file", where=where, fix="delete .flywheel/closed: it is made again")
    return None


def _blocks(ws: Workspace) -> list[_Block]:
    """List the folders, the widest first; those of another schema, or half written, are left out."""
    found = []
    for path in (ws.state / "closed").glob(f"[0-9]*/{_INDEX}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # damaged: written again
            raw = json.loads(path.read_text(encoding="utf-8"))
            large = {t: {int(k): names for k, names in one.items()} for t, one in raw["large"].items()}
            marks = {int(k): mark for k, mark in raw["iterations"].items()}
            if raw["schema"] == _schema():
                found.append(_Block(path.parent, marks, large))
    return sorted(found, key=lambda block: -len(block.marks))


def _merge_blocks(ws: Workspace, width: int) -> None:
    """Merge ten folders of unchanged iterations into one. The narrow ones are removed at the next call, since a
    connection may still read them."""
    blocks = [
        block
        for block in _blocks(ws)
        if all(_compute_iteration_stamp(ws, k) == mark for k, mark in block.marks.items())
    ]
    by_first: dict[int, list[_Block]] = {}
    for block in blocks:
        by_first.setdefault((min(block.marks) - 1) // width, []).append(block)
    for number, inside in by_first.items():
        wide = [block for block in inside if len(block.marks) >= width]
        narrow = [block for block in inside if len(block.marks) < width]
        if wide:
            for block in narrow if all(block.marks.items() <= wide[0].marks.items() for block in narrow) else ():
                shutil.rmtree(block.folder)
            continue
        marks: dict[int, str] = {}
        large: dict[str, dict[int, list[str]]] = {}
        parts = []
        for block in narrow:  # the widest first: no iteration is taken twice
            if not marks.keys() & block.marks.keys():
                parts.append(block)
                marks |= block.marks
                for table, own in block.large.items():
                    large.setdefault(table, {}).update(own)
        if len(marks) == width:
            ordered = sorted(parts, key=lambda block: min(block.marks))
            _write_block(ws, range(number * width + 1, (number + 1) * width + 1), _rows_in(ordered), marks, large)


def _write_block(
    ws: Workspace,
    which: Iterable[int],
    rows: Iterator[tuple[str, pa.Table]],
    marks: dict[int, str],
    large: dict[str, dict[int, list[str]]],
) -> None:
    name = f"{iteration_label(min(which))}-{iteration_label(max(which))}"
    with atomic_folder(ws.state / "closed" / name) as folder:
        for table, parts in groupby(rows, key=lambda one: one[0]):
            _write(folder / f"{table}.parquet", (some for _, some in parts))
        write_json(folder / _INDEX, {"schema": _schema(), "iterations": marks, "large": large})


def _write(path: Path, parts: Iterator[pa.Table]) -> None:
    """Write in large row groups: binding a view reads the footers of its files, which list every row group."""
    held = [next(parts)]
    with pq.ParquetWriter(path, held[0].schema, compression="zstd", write_page_checksum=True) as writer:
        for part in parts:
            held.append(part)
            if sum(one.nbytes for one in held) > _HELD_BYTES:
                writer.write_table(pa.concat_tables(held), row_group_size=_ROW_GROUP)
                held = []
        if held:
            writer.write_table(pa.concat_tables(held), row_group_size=_ROW_GROUP)


def add_partition_keys(rows: pa.Table, iteration: int, stage: str) -> pa.Table:
    """Return a partition's `rows` with the columns `iteration` and `stage` in front, as its view has them."""
    rows = rows.add_column(0, "iteration", pa.array([iteration] * len(rows), pa.int32()))
    return rows.add_column(1, "stage", pa.array([stage] * len(rows), pa.string()))


def _rows_of(ws: Workspace, iteration: int) -> Iterator[tuple[str, pa.Table]]:
    """Yield (table, rows with iteration and stage) of the iteration's small partitions."""
    for table, stage, files in _partitions(ws, iteration):
        if _size(files) < _LARGE_BYTES:
            rows = partitions.read_partition(ws, table, iteration, stage)
            yield table, add_partition_keys(rows, iteration, stage)


def _rows_in(blocks: list[_Block]) -> Iterator[tuple[str, pa.Table]]:
    for table in TABLES:
        for block in blocks:
            if (path := block.folder / f"{table}.parquet").exists():
                try:
                    with pq.ParquetFile(path, page_checksum_verification=True) as file:
                        data = file.read()
                except (pa.ArrowException, OSError, ValueError) as error:
                    raise find_compacted_file_fault(path) or error from None
                if len(data):
                    yield table, data


def _large(ws: Workspace, iteration: int) -> dict[str, dict[int, list[str]]]:
    large: dict[str, dict[int, list[str]]] = {}
    for table, _, files in _partitions(ws, iteration):
        if _size(files) >= _LARGE_BYTES:
            for path in files:
                partitions.check_file_schema(ws, table, path)
            large.setdefault(table, {}).setdefault(iteration, []).extend(map(ws.relative, files))
    return large


def _partitions(ws: Workspace, iteration: int) -> Iterator[tuple[str, str, list[Path]]]:
    """Yield (table, stage, files) of each partition of the iteration."""
    for table in TABLES:
        for folder in sorted((ws.data / table / f"iteration={iteration_label(iteration)}").glob("stage=*")):
            stage = folder.name.removeprefix("stage=")
            yield table, stage, partitions.partition_files(ws, table, iteration, stage)


def _size(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def _compute_iteration_stamp(ws: Workspace, iteration: int) -> str:
    """Hash the times and inodes that change when the iteration's partitions or records are written."""
    name = f"iteration={iteration_label(iteration)}"
    places = [f"{ws.data}/{table}/{name}" for table in TABLES]
    places += [str(dvc_files.dvc_lock_path(ws, iteration)), str(ws.promotion(iteration))]
    found = []
    for place in places:
        try:
            status = os.stat(place)  # noqa: PTH116 - a third of the time that Path takes, some thousand times
            found.append((status.st_mtime_ns, status.st_ino))
        except FileNotFoundError:
            found.append((0, 0))
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]


def _schema() -> str:
    """Hash the schemas of all tables: folders written under other schemas are written again."""
    return hashlib.sha256(repr(sorted((name, str(one)) for name, one in TABLES.items())).encode()).hexdigest()[:16]
