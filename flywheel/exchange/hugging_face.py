"""Export to Hugging Face `datasets`: Parquet that `load_dataset(folder)` reads, screens as its `Image`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flywheel.exchange import samples
from flywheel.exchange.samples import SCHEMA, ExportedStep
from flywheel.files import atomic_folder, write_text

NOT_HELD = samples.NOT_HELD
BYTES = 512 * 2**20
"""Of one Parquet file, about."""
_BATCH = 100  # steps of a row group: with screens, some MB
# What `datasets` cannot tell from the Arrow types; it takes the other columns as they are.
_FEATURES = {"info": {"features": {"screen": {"_type": "Image"}}}}
_CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*.parquet
---
# {title}

{count} steps of GUI agents, a row each, with the screen that the action was chosen on. Written by `flywheel export`.

Not held: {lost}.
"""


def write(steps: Iterable[ExportedStep], folder: Path, title: str, bytes_per_file: int = BYTES) -> int:
    """Steps written, to `folder/data/train-00000.parquet` and on, with a card. The folder appears when all of it is
    there."""
    schema = SCHEMA.with_metadata({"huggingface": json.dumps(_FEATURES)})
    count, number, size, writer = 0, 0, 0, None
    with atomic_folder(folder) as temporary:
        (temporary / "data").mkdir()
        try:
            for batch in _batches(steps):
                if writer is None or size >= bytes_per_file:
                    if writer is not None:
                        writer.close()
                    writer = pq.ParquetWriter(
                        temporary / "data" / f"train-{number:05d}.parquet", schema, compression="zstd"
                    )
                    number, size = number + 1, 0
                table = pa.Table.from_pylist([_row(one) for one in batch], schema)
                writer.write_table(table)
                size, count = size + table.nbytes, count + len(table)
            if writer is None:
                pq.write_table(schema.empty_table(), temporary / "data" / "train-00000.parquet")
        finally:
            if writer is not None:
                writer.close()
        write_text(temporary / "README.md", _CARD.format(title=title, count=count, lost=", ".join(NOT_HELD)))
    return count


def _batches(steps: Iterable[ExportedStep]) -> Iterator[tuple[ExportedStep, ...]]:
    coming = iter(steps)
    while batch := tuple(islice(coming, _BATCH)):
        yield batch


def _row(one: ExportedStep) -> dict:
    screen = None if one.screen is None else {"bytes": one.screen, "path": None}
    return {**one.step, "trajectory": one.trajectory, "score": one.score, "weight": one.weight, "screen": screen}
