"""The sound of a recorded session, for the page of its trajectory: the file, and what its waveform is drawn from."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from flywheel.errors import FlywheelError
from flywheel.explorer.asking import LISTED, Asking, NotHere
from flywheel.recording.session import load_meta
from flywheel.recording.sound import audio
from flywheel.store import sessions
from flywheel.trajectory import session_id

_TYPES = {".opus": "audio/ogg", ".ogg": "audio/ogg", ".flac": "audio/flac", ".wav": "audio/wav"}
_PEAKS = 1_200  # of a waveform; more than a page has room for
_SAME_S = 1e-4  # an utterance and the stretch of sound that it was heard in are as long as one another


@dataclass(frozen=True)
class Waveform:
    """peaks: the loudest sample of equal parts, 0 to 1. offset_s: what is added to the sound's clock to get the
    screen's, as it was estimated when the session was taken in; None where that cannot be told any more."""

    seconds: float
    peaks: tuple[float, ...]
    offset_s: float | None


class Sound:
    """Of a workspace's recordings, as long as they lie where they were taken in."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._drawn = lru_cache(maxsize=64)(self._draw)
        self._one = threading.Lock()  # at a time: a recording may last for hours

    def file(self, name: str) -> tuple[Path, str]:
        """The sound file of a trajectory, and its media type. Raises NotHere where it has none, or none here any
        more."""
        rows = self._asking.rows(
            f"SELECT iteration, task_id, source FROM {LISTED} WHERE trajectory_id = $id", {"id": name}
        )
        if not rows or rows[0]["source"] != "recording":
            raise NotHere("no sound was recorded with this trajectory")
        ws, iteration, task = self._asking.ws, rows[0]["iteration"], rows[0]["task_id"]
        try:
            listed = sessions.listed(ws, iteration)
        except FlywheelError:
            listed = []
        for session in listed:
            if session_id(iteration, task, session.id) == name:
                return _inside(ws.resolve(session.path))
        raise NotHere("the session that this is from is not known here any more")

    def waveform(self, name: str) -> Waveform:
        """Raises NotHere, DataError for a file that is damaged."""
        path, _ = self.file(name)
        with self._one:
            return self._drawn(name, path, path.stat().st_mtime_ns)

    def _draw(self, name: str, path: Path, _: int) -> Waveform:
        samples = audio.read(path)
        parts = np.array_split(np.abs(samples), min(_PEAKS, len(samples)))
        peaks = tuple(round(float(part.max()), 3) for part in parts)
        said = self._asking.rows(
            "SELECT start_s, end_s FROM thoughts WHERE trajectory_id = $id ORDER BY utterance", {"id": name}
        )
        return Waveform(len(samples) / audio.RATE, peaks, _offset(said, audio.segments(samples)))


def _inside(folder: Path) -> tuple[Path, str]:
    """The session's sound. What its `session.json` names elsewhere is none of it."""
    try:
        meta, _ = load_meta(folder)
        path = (folder / meta.audio).resolve()
        if path.is_file() and path.is_relative_to(folder.resolve()) and path.suffix in _TYPES:
            return path, _TYPES[path.suffix]
    except (FlywheelError, OSError):
        pass
    raise NotHere("the recording does not lie here any more", fix="put its folder back, and look again")


def _offset(said: list[dict[str, Any]], heard: list[tuple[float, float]]) -> float | None:
    """The times of utterances are the screen's, those of the stretches of sound that they were heard in are not: the
    difference of those that are as long as one another."""
    found = [
        row["start_s"] - start
        for row in said
        for start, end in heard
        if abs((row["end_s"] - row["start_s"]) - (end - start)) < _SAME_S
    ]
    agree = [sum(abs(one - other) < _SAME_S for other in found) for one in found]
    best = [one for one, votes in zip(found, agree, strict=True) if votes == max(agree)]
    return round(median(best), 4) if best else None
