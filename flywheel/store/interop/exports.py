"""Export the steps of a training store to Hugging Face `datasets` or WebDataset."""

from __future__ import annotations

import io
import json
import math
import tarfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flywheel.config.workspace import Workspace
from flywheel.store import images, manifest, partitions
from flywheel.store.interop.demonstration import FORMATS
from flywheel.store.schema import TABLES
from flywheel.utils.errors import BadInput
from flywheel.utils.files import atomic_folder, write_text

TRAJECTORY_COLUMNS = [name for name in TABLES["trajectories"].names if name not in ("trajectory_id", "final_state")]
_TRAJECTORIES_AT_ONCE = 64  # trajectories whose screens are in memory
_FILE_BYTES = 512 * 2**20  # approximate size of one file


@dataclass(frozen=True)
class ExportedStep:
    """Hold one step of a training store to export.

    step: columns of `steps`. trajectory: `TRAJECTORY_COLUMNS` of its trajectory. score, weight: columns of its store.
    screen: the encoded file; None where the step has none.
    """

    step: dict[str, Any]
    trajectory: dict[str, Any]
    score: float | None
    weight: float
    screen: bytes | None = field(repr=False)


def read_store_steps(ws: Workspace, store: str, iteration: int) -> Iterator[ExportedStep]:
    """Yield every step of the store `ct` or `sft` that the iteration's manifest names, each with its screen.

    store: its name. Steps come oldest iteration first, file by file; within a batch of trajectories by (trajectory_id,
    step). The screen is None where the step has none. It is a generator; it raises BadInput for another store,
    DataError for missing or damaged files.
    """
    if store not in ("ct", "sft"):
        raise BadInput(f"no training store is called {store}", where="export", fix="ct or sft")
    named = manifest.read_manifest(ws, iteration)

    def files(table: str, k: int) -> list[Path]:
        return [ws.resolve(shard.path) for shard in named.shards(table) if shard.iteration == k]

    def rows_of(table: str, k: int, ids: Collection[str]) -> list[dict[str, Any]]:
        columns = TABLES[table].names
        return partitions.find_rows(ws, table, files(table, k), "trajectory_id", ids, columns).to_pylist()

    for shard in named.shards(store):
        rows = partitions.read_partition_file(ws, store, ws.resolve(shard.path)).to_pylist()
        for first in range(0, len(rows), _TRAJECTORIES_AT_ONCE):
            own = {row["trajectory_id"]: row for row in rows[first : first + _TRAJECTORIES_AT_ONCE]}
            episodes = {
                row["trajectory_id"]: {name: row[name] for name in TRAJECTORY_COLUMNS}
                for row in rows_of("trajectories", shard.iteration, own)
            }
            steps = rows_of("steps", shard.iteration, own)
            wanted = {row["image_sha256"] for row in steps} - {None}
            seen = images.load_images(ws, files("images", shard.iteration), wanted)
            for row in sorted(steps, key=lambda row: (row["trajectory_id"], row["step"])):
                name = row["trajectory_id"]
                score, weight = own[name]["score"], own[name]["weight"]
                yield ExportedStep(row, episodes[name], score, weight, seen.get(row["image_sha256"]))


def find_not_held(form: str) -> dict[str, str]:
    """Return what an export of a training store leaves out: what it is -> why, or what is in its place.

    form: name of the format, as in `exports` of `formats.yaml`, such as `huggingface` or `webdataset`. Raises KeyError
    for another.
    """
    return FORMATS["exports"]["store"] | FORMATS["exports"][form]


# Schema of a row that holds an exported step.
_SCHEMA = pa.schema(
    [
        *TABLES["steps"],
        pa.field("trajectory", pa.struct([TABLES["trajectories"].field(name) for name in TRAJECTORY_COLUMNS])),
        pa.field("score", pa.float64()),
        pa.field("weight", pa.float64()),
        pa.field("screen", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
    ]
)


# Hugging Face `datasets`: Parquet files that `load_dataset(folder)` reads, with screens as its feature `Image`.

_STEPS_PER_ROW_GROUP = 100  # with screens, some MB
# Features that `datasets` cannot derive from the Arrow types.
_FEATURES = {"info": {"features": {"screen": {"_type": "Image"}}}}


def write_hugging_face(
    steps: Iterable[ExportedStep], folder: Path, title: str, bytes_per_file: int = _FILE_BYTES
) -> int:
    """Write steps as a Hugging Face data set with a card; return the number of steps.

    folder: gets `data/train-00000.parquet` and on; it appears only when it is complete, and replaces an existing one.
    title: of the card. bytes_per_file: size in memory after which the next file begins. No steps give one file without
    rows. Raises what `steps` raises, OSError or DiskFull where it cannot be written.
    """
    schema = _SCHEMA.with_metadata({"huggingface": json.dumps(_FEATURES)})
    coming, count, number, size = map(_row, steps), 0, 0, bytes_per_file
    with atomic_folder(folder) as temporary:
        (temporary / "data").mkdir()
        with ExitStack() as file:
            while (batch := list(islice(coming, _STEPS_PER_ROW_GROUP))) or not number:
                if size >= bytes_per_file:
                    file.close()
                    path = temporary / "data" / f"train-{number:05d}.parquet"
                    writer = file.enter_context(pq.ParquetWriter(path, schema, compression="zstd"))
                    number, size = number + 1, 0
                table = pa.Table.from_pylist(batch, schema)
                writer.write_table(table)
                size, count = size + table.nbytes, count + len(table)
        lost = ", ".join(find_not_held("huggingface"))
        write_text(temporary / "README.md", FORMATS["card"].format(title=title, count=count, lost=lost))
    return count


def _row(one: ExportedStep) -> dict:
    screen = None if one.screen is None else {"bytes": one.screen, "path": None}
    return {**one.step, "trajectory": one.trajectory, "score": one.score, "weight": one.weight, "screen": screen}


# WebDataset: tar files with one sample per step: `<trajectory_id>_<step>.json`, and the screen under the same name.

_IMAGE_FORMATS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"RIFF": "webp"}


def write_webdataset(steps: Iterable[ExportedStep], folder: Path, bytes_per_file: int = _FILE_BYTES) -> int:
    """Write steps as a WebDataset, `00000.tar` and on; return the number of steps.

    A sample is a step: `<trajectory_id>_<step>.json` with its columns, and the screen, if any, under the same name.
    folder: appears only when it is complete, and replaces an existing one. bytes_per_file: size of the samples after
    which the next file begins. No steps give an empty folder. Raises what `steps` raises, OSError where it cannot be
    written.
    """
    count, number, size = 0, 0, bytes_per_file
    with atomic_folder(folder) as temporary, ExitStack() as file:
        for step in steps:
            if size >= bytes_per_file:
                file.close()
                path = temporary / f"{number:05d}.tar"
                tar = file.enter_context(tarfile.open(path, "w", format=tarfile.PAX_FORMAT))
                number, size = number + 1, 0
            size += _add_sample(tar, step)
            count += 1
    return count


def _add_sample(tar: tarfile.TarFile, one: ExportedStep) -> int:
    key = f"{one.step['trajectory_id']}_{one.step['step']:05d}"
    told = {**one.step, "trajectory": one.trajectory, "score": one.score, "weight": one.weight}
    parts = {"json": json.dumps(as_plain_json(told), ensure_ascii=False, allow_nan=False).encode()}
    if one.screen is not None:
        ending = next((name for magic, name in _IMAGE_FORMATS.items() if one.screen.startswith(magic)), "bin")
        parts[ending] = one.screen
    for ending, content in parts.items():
        entry = tarfile.TarInfo(f"{key}.{ending}")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return sum(map(len, parts.values()))


def as_plain_json(value: Any) -> Any:
    """Convert `value`, a value of a column, to what JSON can hold: times to ISO 8601 text, NaN and infinity to None."""
    if isinstance(value, dict):
        return {name: as_plain_json(part) for name, part in value.items()}
    if isinstance(value, list):
        return [as_plain_json(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.isoformat() if isinstance(value, datetime) else value
