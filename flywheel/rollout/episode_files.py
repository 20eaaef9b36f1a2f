"""A finished episode as one file, there whole or not at all: a zip of its steps (JSON) and its screens (PNG)."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from flywheel.errors import DataError
from flywheel.files import atomic_file
from flywheel.rollout.episode import Episode
from flywheel.schema import from_row
from flywheel.trajectory import Step, Trajectory

_TIMES = ("started_at", "ended_at")
_ROWS, _LAST = "episode.json", "last.png"


def write(path: Path, episode: Episode, facts: Mapping[str, Any]) -> None:
    """facts: JSON values kept beside the episode. Numbers come back as they are, to the last bit."""
    rows = {"facts": facts, "trajectory": vars(episode.trajectory), "steps": [vars(step) for step in episode.steps]}
    rows["last_observation"] = episode.last_observation
    with atomic_file(path) as temporary, zipfile.ZipFile(temporary, "w") as file:  # not compressed: PNGs are
        file.writestr(_ROWS, json.dumps(rows, default=datetime.isoformat))
        for sha256, png in episode.images.items():
            file.writestr(f"{sha256}.png", png)
        if episode.last_screen is not None:
            file.writestr(_LAST, episode.last_screen)


def facts(path: Path) -> dict[str, Any]:
    """What was kept beside the episode."""
    with _opened(path) as file:
        return json.loads(file.read(_ROWS))["facts"]


def read(path: Path) -> Episode:
    """Raises DataError for a file that is missing or broken."""
    with _opened(path) as file:
        rows = json.loads(file.read(_ROWS))
        screens = {name: file.read(name) for name in file.namelist() if name != _ROWS}
    last = screens.pop(_LAST, None)
    images = {name.removesuffix(".png"): png for name, png in screens.items()}
    steps = tuple(from_row("steps", Step, _timed(row)) for row in rows["steps"])
    trajectory = from_row("trajectories", Trajectory, _timed(rows["trajectory"]))
    return Episode(trajectory, steps, images, last, rows.get("last_observation"))


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"the episode cannot be read: {error}", where=path, fix="delete its folder") from None


def _timed(row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: datetime.fromisoformat(row[name]) for name in _TIMES if row.get(name)}
