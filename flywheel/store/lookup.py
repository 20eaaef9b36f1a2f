"""Rows of a table by a key, out of many files, in bounded memory.

A row group that cannot hold what is wanted is not read; of the others the key comes first, and the columns asked for
only where it is found. Tables are sorted by their keys, so what is read goes with what is wanted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flywheel.schema import TABLES
from flywheel.store import partitions, parts
from flywheel.workspace import Workspace

_AT_ONCE = 2**17  # rows of a scan, of which few columns are read


def rows(
    ws: Workspace, table: str, files: Iterable[Path], key: str, wanted: Collection[str], columns: Collection[str]
) -> pa.Table:
    """The rows whose `key`, a text, is one of the wanted, in the files' order: it and these columns, in the table's
    order.

    Raises DataError for a damaged file.
    """
    names = _ordered(table, {key, *columns})
    nothing = pa.schema([TABLES[table].field(name) for name in names]).empty_table()
    return pa.concat_tables([nothing, *found(ws, table, files, key, wanted, columns)])


def found(
    ws: Workspace, table: str, files: Iterable[Path], key: str, wanted: Collection[str], columns: Collection[str]
) -> Iterator[pa.Table]:
    """As `rows`, a table each row group that has some, with the key among its columns."""
    names, values = _ordered(table, {key, *columns}), sorted(wanted)
    accepted = pa.array(values, pa.string())
    for path in files if values else ():
        with partitions.opened(table, path) as file:
            for group in _may_hold(file, key, values):
                keys = _read(file, path, group, [key])
                places = pc.indices_nonzero(pc.is_in(keys[key], value_set=accepted))
                if len(places):
                    data = _read(file, path, group, [name for name in names if name != key]).take(places)
                    data = data.append_column(keys.schema.field(key), keys[key].take(places))
                    data = data.select([name for name in names if name in data.column_names])
                    yield partitions.conformed(ws, table, path, data, names)


def scan(ws: Workspace, table: str, files: Iterable[Path], columns: Collection[str]) -> Iterator[pa.Table]:
    """These columns of all rows, some at a time. Raises DataError for a damaged file."""
    names = _ordered(table, columns)
    for path in files:
        with partitions.opened(table, path) as file, _damage_named(path):
            for batch in file.iter_batches(_AT_ONCE, columns=names, use_threads=False):
                yield partitions.conformed(ws, table, path, pa.Table.from_batches([batch]), names)


def _ordered(table: str, columns: Collection[str]) -> list[str]:
    return [name for name in TABLES[table].names if name in columns]


def _may_hold(file: pq.ParquetFile, key: str, values: Sequence[str]) -> Iterator[int]:
    """Numbers of the row groups that one of the values, which ascend, can be in."""
    place = file.schema.names.index(key) if file.num_row_groups else 0
    for group in range(file.num_row_groups):
        about = file.metadata.row_group(group).column(place).statistics
        if about is None or not about.has_min_max:
            yield group
            continue
        first = bisect_left(values, about.min)
        if first < len(values) and values[first] <= about.max:
            yield group


def _read(file: pq.ParquetFile, path: Path, group: int, columns: list[str]) -> pa.Table:
    with _damage_named(path):
        return file.read_row_group(group, columns=columns, use_threads=False)


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise parts.damaged(path, f"not a whole Parquet file: {parts.first_line(error)}") from error
