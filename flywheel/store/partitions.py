"""Write and read the Parquet partitions of a table. Half a partition is never visible.

A partition is a folder (`Workspace.partition`) owned by one stage of one iteration. What a stage hands on is
a `PartitionManifest`: paths, rows, sha256, never the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flywheel.errors import DataError
from flywheel.files import atomic_folder, disk_full_is_named, known_sha256, remember_sha256, sha256_file
from flywheel.schema import ADDED, SORT, TABLES
from flywheel.workspace import Workspace

_ROWS_PER_FILE = 1_000_000
_BYTES_PER_FILE = 512 * 2**20
# About 100 screens a row group: a reader that wants one screen reads no more than a few hundred kB.
_ROW_GROUP = {"images": 100}


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


def from_rows(table: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows (mappings; missing columns are null) as a table of the schema. Raises DataError naming the column."""
    schema = TABLES[table]
    rows = list(rows)
    columns = set(schema.names)
    for number, row in enumerate(rows):
        if not columns.issuperset(row):
            unknown = sorted(set(row) - columns)
            raise DataError(f"table {table} has no column {unknown} (row {number})", where="flywheel/schema.py")
    try:
        result = pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"a row does not fit table {table}: {error}", where="flywheel/schema.py") from error
    for field in schema:
        if not field.nullable and result[field.name].null_count:
            raise DataError(f"table {table}: column {field.name} is empty in a row", where="flywheel/schema.py")
    return result


def write(
    ws: Workspace, table: str, iteration: int, stage: str, data: pa.Table | Iterable[Mapping]
) -> PartitionManifest:
    """Replace the partition by `data`, sorted and compressed; zero rows give one typed zero-row file.

    Raises DataError where the data do not fit the schema, DiskFull where there is no space.
    """
    if not isinstance(data, pa.Table):
        data = from_rows(table, data)
    if not data.schema.equals(TABLES[table]):
        raise DataError(f"data do not have the schema of table {table}", where="flywheel/schema.py")
    data = data.replace_schema_metadata(TABLES[table].metadata).sort_by([(key, "ascending") for key in SORT[table]])
    folder = ws.partition(table, iteration, stage)
    rows_per_file = _ROWS_PER_FILE
    if data.num_rows and data.nbytes > _BYTES_PER_FILE:
        rows_per_file = max(1, int(data.num_rows * _BYTES_PER_FILE / data.nbytes))
    parts = []
    with disk_full_is_named(folder), atomic_folder(folder) as temporary:
        for number, start in enumerate(range(0, max(data.num_rows, 1), rows_per_file)):
            path = temporary / f"part-{number:05d}.parquet"
            chunk = data.slice(start, rows_per_file)
            pq.write_table(chunk, path, compression="zstd", row_group_size=_ROW_GROUP.get(table, 100_000))
            parts.append(Part(ws.relative(folder / path.name), chunk.num_rows, sha256_file(path)))
    for part in parts:
        remember_sha256(ws.resolve(part.path), part.sha256)
    return PartitionManifest(table, tuple(parts))


def read(ws: Workspace, table: str, iteration: int, stage: str, columns: list[str] | None = None) -> pa.Table:
    """The partition's rows. Raises DataError where it is missing, cut off, or of another schema."""
    folder = ws.partition(table, iteration, stage)
    files = sorted(folder.glob("part-*.parquet"))
    if not files:
        raise DataError("no such partition", where=ws.relative(folder), fix=f"run the stage {stage} first")
    return pa.concat_tables([read_file(ws, table, path, columns) for path in files])


def read_file(ws: Workspace, table: str, path: Path, columns: list[str] | None = None) -> pa.Table:
    """One Parquet file of a table, checked against its schema."""
    where = ws.relative(path)
    try:
        # Not a dataset read: hive columns must not be added, the path alone holds them.
        data = pq.ParquetFile(path).read(columns=columns)
    except (pa.ArrowInvalid, OSError) as error:
        raise _not_whole(path, error) from error
    expected = TABLES[table] if columns is None else pa.schema([TABLES[table].field(name) for name in columns])
    for place, field in enumerate(expected):
        if field.name in ADDED.get(table, ()) and field.name not in data.column_names:
            data = data.add_column(place, field, pa.nulls(data.num_rows, field.type))
    if not data.schema.equals(expected):
        raise DataError(
            f"columns differ from table {table} of this version",
            where=where,
            fix="`flywheel doctor` looks at all of them",
        )
    return data


def fault(path: Path, *, wholly: bool = True) -> DataError | None:
    """What is wrong with a table's Parquet file; None where it can be read. wholly: its rows too, else its footer."""
    try:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups if wholly else 0):
                file.read_row_group(group)
    except (pa.ArrowException, OSError) as error:
        return _not_whole(path, error)
    return None


def _not_whole(path: Path, error: Exception) -> DataError:
    where = "/".join(path.parts[-5:])  # from the workspace: data/<table>/iteration=NNN/stage=<stage>/part-*.parquet
    return DataError(
        f"not a whole Parquet file: {str(error).splitlines()[0]}",
        where=where,
        fix=f"type `dvc checkout --force {where.rpartition('/')[0]}` in the workspace (`flywheel run` does it too)",
    )


def manifest_of(ws: Workspace, table: str, iteration: int, stage: str) -> PartitionManifest:
    """The manifest of a partition as it lies on disk; what this process wrote or hashed is not hashed again."""
    parts = []
    for path in sorted(ws.partition(table, iteration, stage).glob("part-*.parquet")):
        rows = pq.ParquetFile(path).metadata.num_rows
        parts.append(Part(ws.relative(path), rows, known_sha256(path)))
    return PartitionManifest(table, tuple(parts))
