"""Metrics of folders and archives."""

from __future__ import annotations

import zipfile
from typing import Any

from flywheel.computer.osworld.metrics.metric import FILE, Metric, Options

_PIECE = 2**20


def moved(result: Any, rules: Any, _: Options) -> float:
    """A folder holds files of these names, and nothing else."""
    return float(sorted(one["name"] for one in result["children"]) == sorted(rules["expected"]))


def same_zip(result: str, expected: str, _: Options) -> float:
    """The same files to the byte, PDFs too, where OSWorld lets their texts differ a little."""
    with zipfile.ZipFile(result) as found, zipfile.ZipFile(expected) as wanted:
        names = set(wanted.namelist())
        return float(set(found.namelist()) == names and all(_alike(found, wanted, name) for name in names))


def _alike(found: zipfile.ZipFile, wanted: zipfile.ZipFile, name: str) -> bool:
    """Piece by piece: who made the one may have packed any number of bytes."""
    if found.getinfo(name).file_size != wanted.getinfo(name).file_size:
        return False
    with found.open(name) as one, wanted.open(name) as other:
        while piece := other.read(_PIECE):
            if one.read(len(piece)) != piece:
                return False
        return not one.read(1)


METRICS: dict[str, Metric] = {
    "check_moved_jpgs": Metric(moved, keys=("expected",)),
    "compare_zip_files": Metric(same_zip, FILE),
}
