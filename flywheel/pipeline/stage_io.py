"""Read the rows and the newest model that a stage takes in, and stage the rows that its shards write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flywheel.envs.base import Task
from flywheel.envs.tasks.drawing import task_from_row
from flywheel.pipeline.stage import StageContext
from flywheel.policy import checkpoint
from flywheel.rollout.episode import Episode
from flywheel.store import manifest, partitions
from flywheel.store.images import image_rows
from flywheel.store.partitions import PartitionManifest, table_from_rows
from flywheel.store.schema import TABLES, empty_table, record_to_row
from flywheel.utils.files import atomic_file, disk_full_errors


def read_stage_rows(
    ctx: StageContext, table: str, *stages: str, columns: list[str] | None = None
) -> list[dict[str, Any]]:
    """Read the rows of a table that the named stages of this iteration wrote. columns: to read; default: all."""
    parts = (partitions.read_partition(ctx.ws, table, ctx.iteration, stage, columns) for stage in stages)
    return [row for part in parts for row in part.to_pylist()]


def read_stage_tasks(ctx: StageContext, stage: str, split: str | None = None) -> dict[str, Task]:
    """Read the tasks that `stage` wrote, by id, in the order of the table. split: train or eval alone; default:
    both."""
    found = [task_from_row(row) for row in read_stage_rows(ctx, "tasks", stage)]
    return {task.task_id: task for task in found if split in (None, task.split)}


def read_newest_model(ctx: StageContext) -> dict[str, Any]:
    """Read which model the iteration before this one promoted: `model` (folder) and `digest`."""
    return manifest.read_promotion(ctx.ws, ctx.iteration - 1)


def newest_model_folder(ctx: StageContext) -> Path:
    """Return the folder of the newest promoted model; a Hugging Face name is fetched where it must be.

    Raises ModelError where it is not there.
    """
    return checkpoint.resolve_checkpoint(read_newest_model(ctx)["model"], ctx.ws.root)


def write_shard(folder: Path, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Stage rows of a table in the shard's `folder`. They count once the shard's result is written after them.

    table: its name. rows: mappings. Raises DataError for a row that does not fit the table, DiskFull.
    """
    with disk_full_errors(folder), atomic_file(folder / f"{table}.parquet") as path:
        pq.write_table(table_from_rows(table, rows), path, compression="zstd")


def read_shards(
    results: Mapping[str, tuple[Path, Any]], table: str, key: str | tuple[str, ...] | None = None
) -> pa.Table:
    """Read the staged rows of a table of all shards.

    results: by shard, its folder and result. table: its name. key: a column, or several; of rows with the same key the
    first alone is read: what shards share, such as screens.
    """
    found = [pq.ParquetFile(folder / f"{table}.parquet").read() for folder, _ in results.values()]
    return _drop_seen_keys(pa.concat_tables([empty_table(table), *found]), key, set())


def gather_shards(
    ctx: StageContext, results: Mapping[str, tuple[Path, Any]], table: str, key: str | tuple[str, ...] | None = None
) -> PartitionManifest:
    """Write the staged rows of a table of all shards to the stage's partition, one batch in memory at a time.

    results: by shard, its folder and result. table: its name. key: a column, or several; of rows with the same key the
    first alone is written. Raises DiskFull.
    """
    seen: set[tuple] = set()
    with partitions.open_partition_writer(ctx.ws, table, ctx.iteration, ctx.stage) as writer:
        for folder, _ in results.values():
            for batch in pq.ParquetFile(folder / f"{table}.parquet").iter_batches():
                writer.write(_drop_seen_keys(pa.Table.from_batches([batch]).cast(TABLES[table]), key, seen))
    return partitions.partition_manifest(ctx.ws, table, ctx.iteration, ctx.stage)


def _drop_seen_keys(rows: pa.Table, key: str | tuple[str, ...] | None, seen: set[tuple]) -> pa.Table:
    """Rows whose key was not seen before; they are from now on."""
    if key is None:
        return rows
    columns = (key,) if isinstance(key, str) else key
    names = zip(*(rows[column].to_pylist() for column in columns), strict=True)
    return rows.filter(pa.array([name not in seen and not seen.add(name) for name in names], pa.bool_()))


def write_episode_shard(folder: Path, episodes: Iterable[Episode]) -> None:
    """Stage episodes in the shard's `folder` as rows of trajectories, steps and images. Raises DiskFull."""
    episodes = list(episodes)
    write_shard(folder, "trajectories", (record_to_row("trajectories", episode.trajectory) for episode in episodes))
    write_shard(folder, "steps", (record_to_row("steps", step) for episode in episodes for step in episode.steps))
    write_shard(folder, "images", image_rows({sha: png for episode in episodes for sha, png in episode.images.items()}))
