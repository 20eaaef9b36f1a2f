"""Rows of a shard on their way to a partition: Parquet files in the shard's staging folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flywheel.files import atomic_file, disk_full_is_named
from flywheel.rollout.episode import Episode
from flywheel.schema import TABLES, empty, to_row
from flywheel.stages.base import Context
from flywheel.store import partitions
from flywheel.store.partitions import PartitionManifest, from_rows
from flywheel.store.screens import image_rows


def write_shard(folder: Path, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Stage rows of a table. The shard's result, written after it, makes them count."""
    with disk_full_is_named(folder), atomic_file(folder / f"{table}.parquet") as path:
        pq.write_table(from_rows(table, rows), path, compression="zstd")


def read_shards(
    results: Mapping[str, tuple[Path, Any]], table: str, key: str | tuple[str, ...] | None = None
) -> pa.Table:
    """The staged rows of all shards; with `key` (a column, or several), the first row of each alone: what shards share,
    such as screens."""
    found = [pq.ParquetFile(folder / f"{table}.parquet").read() for folder, _ in results.values()]
    return _fresh(pa.concat_tables([empty(table), *found]), key, set())


def gather(
    ctx: Context, results: Mapping[str, tuple[Path, Any]], table: str, key: str | tuple[str, ...] | None = None
) -> PartitionManifest:
    """Write the staged rows of all shards to the stage's partition, one shard in memory after the other; `key`: as of
    `read_shards`."""
    seen: set[tuple] = set()
    with partitions.writing(ctx.ws, table, ctx.iteration, ctx.stage) as writer:
        for folder, _ in results.values():
            for batch in pq.ParquetFile(folder / f"{table}.parquet").iter_batches():
                writer.write(_fresh(pa.Table.from_batches([batch]).cast(TABLES[table]), key, seen))
    return partitions.manifest_of(ctx.ws, table, ctx.iteration, ctx.stage)


def _fresh(rows: pa.Table, key: str | tuple[str, ...] | None, seen: set[tuple]) -> pa.Table:
    """Rows whose key was not seen before; they are from now on."""
    if key is None:
        return rows
    columns = (key,) if isinstance(key, str) else key
    names = zip(*(rows[column].to_pylist() for column in columns), strict=True)
    return rows.filter(pa.array([name not in seen and not seen.add(name) for name in names], pa.bool_()))


def write_episodes(folder: Path, episodes: Iterable[Episode]) -> None:
    """Stage episodes as rows of trajectories, steps and images."""
    episodes = list(episodes)
    write_shard(folder, "trajectories", (to_row("trajectories", episode.trajectory) for episode in episodes))
    write_shard(folder, "steps", (to_row("steps", step) for episode in episodes for step in episode.steps))
    write_shard(folder, "images", image_rows({sha: png for episode in episodes for sha, png in episode.images.items()}))
