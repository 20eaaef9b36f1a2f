"""Export to WebDataset: tar files of samples, a step each: `<trajectory_id>_<step>.json` and its screen beside it."""

from __future__ import annotations

import io
import json
import math
import tarfile
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from flywheel.exchange import samples
from flywheel.exchange.samples import ExportedStep
from flywheel.files import atomic_folder

NOT_HELD = {
    **samples.NOT_HELD,
    "types": "numbers are JSON's (a log-probability of 32 bits is written with 64), times are ISO 8601 text",
    "NaN, infinity": "JSON has none: null",
}
BYTES = 512 * 2**20
"""Of one tar file, about."""
_FORMATS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpg", b"RIFF": "webp"}


def write(steps: Iterable[ExportedStep], folder: Path, bytes_per_file: int = BYTES) -> int:
    """Steps written, to `folder/00000.tar` and on. The folder appears when all of it is there."""
    count, number, size, tar = 0, 0, 0, None
    with atomic_folder(folder) as temporary:
        try:
            for one in steps:
                if tar is None or size >= bytes_per_file:
                    if tar is not None:
                        tar.close()
                    tar = tarfile.open(temporary / f"{number:05d}.tar", "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
                    number, size = number + 1, 0
                size += _add(tar, one)
                count += 1
        finally:
            if tar is not None:
                tar.close()
    return count


def _add(tar: tarfile.TarFile, one: ExportedStep) -> int:
    key = f"{one.step['trajectory_id']}_{one.step['step']:05d}"
    told = {**one.step, "trajectory": one.trajectory, "score": one.score, "weight": one.weight}
    parts = {"json": json.dumps(_plain(told), ensure_ascii=False, allow_nan=False).encode()}
    if one.screen is not None:
        ending = next((name for magic, name in _FORMATS.items() if one.screen.startswith(magic)), "bin")
        parts[ending] = one.screen
    for ending, content in parts.items():
        entry = tarfile.TarInfo(f"{key}.{ending}")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return sum(map(len, parts.values()))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.isoformat() if isinstance(value, datetime) else value
