"""Read and write screens as rows of the table `images`, addressed by their sha256."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from flywheel.config.workspace import Workspace
from flywheel.store import partitions
from flywheel.utils.errors import DataError
from flywheel.utils.files import disk_full_errors


def image_digest(png: bytes) -> str:
    """Return the name of an image: the sha256 of its bytes, in 64 hex digits. png: the encoded file."""
    return hashlib.sha256(png).hexdigest()


def image_rows(screens: Mapping[str, bytes]) -> Iterator[dict[str, Any]]:
    """Yield a row of the table `images` for each screen.

    screens: sha256 -> PNG file, or another that Pillow reads; the column `format` says which. Raises OSError, as a row
    is asked for, for one that is no picture, or of too many pixels for Pillow.
    """
    for name, png in screens.items():
        try:
            with Image.open(io.BytesIO(png)) as picture:
                width, height, form = *picture.size, picture.format.lower()
        except (ValueError, Image.DecompressionBombError) as error:
            raise OSError(str(error)) from error
        yield {"sha256": name, "width": width, "height": height, "format": form, "bytes": png}


def load_images(ws: Workspace, files: Iterable[Path], wanted: Collection[str]) -> dict[str, bytes]:
    """Load the `wanted` screens, by sha256, from Parquet `files` of the table `images`, as the bytes stored there.

    ws: the workspace of the files. Files are opened in turn until all screens are found; memory holds the wanted ones
    only. Raises DataError where one is in none of the files, or for a damaged or missing file.
    """
    return dict(_iter_images(ws, files, wanted))


def copy_images_to_file(ws: Workspace, files: Iterable[Path], wanted: Collection[str], path: Path) -> ImageFile:
    """Copy the `wanted` screens (by sha256) from Parquet `files` of the table `images` into one file at `path`.

    ws: the workspace of the files. Returns a mapping sha256 -> bytes that reads the file at each access. An existing
    file is replaced; a failed call leaves part of one. Memory holds one row group. Raises DataError where a screen is
    in none of the files, or for a damaged or missing file; DiskFull.
    """
    places = {}
    path.parent.mkdir(parents=True, exist_ok=True)
    with disk_full_errors(path), path.open("wb") as file:
        for name, png in _iter_images(ws, files, wanted):
            places[name] = (file.tell(), len(png))
            file.write(png)
    return ImageFile(path, places)


class ImageFile(Mapping[str, bytes]):
    """Hold screens in one file, as a mapping sha256 -> bytes that reads the file at each access.

    So several processes can share them. path: the file. places: sha256 -> (offset of its first byte, number of bytes).
    """

    def __init__(self, path: Path, places: Mapping[str, tuple[int, int]]) -> None:
        self._path, self._places = path, places

    def __getitem__(self, name: str) -> bytes:
        """Read the bytes of the screen with the sha256 `name`.

        Raises KeyError where it is not in the file, OSError where the file is gone.
        """
        first, size = self._places[name]
        with self._path.open("rb") as file:
            file.seek(first)
            return file.read(size)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _iter_images(ws: Workspace, files: Iterable[Path], wanted: Collection[str]) -> Iterator[tuple[str, bytes]]:
    lost = set(wanted)
    for path in files:
        if not lost:
            return
        for part in partitions.iter_matching_rows(ws, "images", [path], "sha256", lost, ("sha256", "bytes")):
            for name, png in zip(part["sha256"].to_pylist(), part["bytes"].to_pylist(), strict=True):
                if name in lost and png is not None:
                    lost.remove(name)
                    yield name, png
    if lost:
        raise DataError(
            f"{len(lost)} screens are missing, the first is {min(lost)[:12]}",
            where="table images",
            fix="fetch them with `dvc checkout`",
        )
