"""Screens as rows of the table `images`: content-addressed, each once."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from PIL import Image

from flywheel.errors import DataError
from flywheel.store import partitions
from flywheel.workspace import Workspace


def sha256(png: bytes) -> str:
    return hashlib.sha256(png).hexdigest()


def image_rows(screens: Mapping[str, bytes]) -> Iterator[dict[str, Any]]:
    """Rows of `images` for PNG files, or other pictures, by sha256."""
    for name, png in screens.items():
        with Image.open(io.BytesIO(png)) as picture:
            width, height, form = *picture.size, picture.format.lower()
        yield {"sha256": name, "width": width, "height": height, "format": form, "bytes": png}


def load(ws: Workspace, files: Iterable[Path], wanted: set[str]) -> dict[str, bytes]:
    """The wanted screens, by sha256, from Parquet files of the table `images`.

    Raises DataError where one is in none of them. Row groups are read one at a time: memory stays at what is wanted.
    """
    found: dict[str, bytes] = {}
    for path in files:
        if len(found) == len(wanted):
            break
        names = partitions.read_file(ws, "images", path, ["sha256"])["sha256"].to_pylist()
        if wanted.isdisjoint(names):
            continue
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group, columns=["sha256", "bytes"])
            rows = rows.filter(pc.is_in(rows["sha256"], value_set=pa.array(wanted - found.keys(), pa.string())))
            found |= dict(zip(rows["sha256"].to_pylist(), rows["bytes"].to_pylist(), strict=True))
    lost = wanted - found.keys()
    if lost:
        raise DataError(
            f"{len(lost)} screens are missing, the first is {min(lost)[:12]}",
            where="table images",
            fix="fetch them with `dvc checkout`",
        )
    return found
