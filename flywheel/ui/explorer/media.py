"""Read the screens, thumbnails, sound and token texts of trajectories for the explorer."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image
from tokenizers import Tokenizer

from flywheel.config.workspace import Workspace
from flywheel.recordings import audio, selection
from flywheel.recordings.session import load_session_meta
from flywheel.store.schema import session_trajectory_id
from flywheel.ui.explorer.catalog_reader import OUTCOMES_TABLE, CatalogReader, NotInStore
from flywheel.utils.errors import BadInput, FlywheelError

_SHA256 = re.compile(r"[0-9a-f]{64}")
IMAGE_TYPES = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp", "gif": "image/gif"}
_THUMBNAIL = (192, 192)
_MAX_PIXELS = 64_000_000  # largest picture that a thumbnail is made of


class ScreenImages:
    """Read screens and thumbnails by the sha256 of the screen's bytes, so that a URL always returns the same image."""

    def __init__(self, asking: CatalogReader) -> None:
        self._asking = asking
        self.read_thumbnail = lru_cache(maxsize=4096)(self._shrink)  # a thumbnail of a screen; raises as `read_screen`

    def read_screen(self, iteration: int, sha256: str) -> tuple[bytes, str]:
        """Return a screen's bytes and media type.

        Raises NotInStore where there is none, BadInput for an invalid sha256 or a format that browsers do not show, and
        as `CatalogReader.rows`.
        """
        if not _SHA256.fullmatch(sha256):
            raise BadInput("no screen has such a name", where=sha256[:80])
        found = self._asking.rows(
            "SELECT bytes, format FROM images WHERE sha256 = $sha256 AND iteration = $iteration LIMIT 1",
            {"sha256": sha256, "iteration": iteration},
        )
        if not found or found[0]["bytes"] is None:
            raise NotInStore("the screen is not here", where=f"iteration {iteration}, {sha256[:12]}")
        kind = IMAGE_TYPES.get(str(found[0]["format"]).lower())
        if kind is None:
            raise BadInput("the screen is of a format that no page shows", where=sha256[:12])
        return found[0]["bytes"], kind

    def _shrink(self, iteration: int, sha256: str) -> tuple[bytes, str]:
        data, kind = self.read_screen(iteration, sha256)
        try:
            with Image.open(io.BytesIO(data)) as picture:
                if max(picture.size) <= max(_THUMBNAIL):
                    return data, kind
                if picture.width * picture.height > _MAX_PIXELS:
                    raise BadInput("the screen is too large to be made small", where=sha256[:12])
                picture.thumbnail(_THUMBNAIL)
                file = io.BytesIO()
                picture.convert("RGB").save(file, "WEBP", quality=80)
        except (OSError, ValueError, Image.DecompressionBombError):
            raise BadInput("the screen is no picture", where=sha256[:12]) from None
        return file.getvalue(), "image/webp"


_AUDIO_TYPES = {".opus": "audio/ogg", ".ogg": "audio/ogg", ".flac": "audio/flac", ".wav": "audio/wav"}
_PEAKS = 1_200  # peaks of a waveform, more than the pixels that a page has for them
_TOLERANCE_S = 1e-4  # an utterance and its speech segment differ less than this in length


@dataclass(frozen=True)
class Waveform:
    """Hold a sound's waveform.

    seconds: length of the sound. peaks: loudest sample of each of equal parts, 0 to 1. offset_s: seconds to add to the
    sound's time to get the screens' time; None if unknown.
    """

    seconds: float
    peaks: tuple[float, ...]
    offset_s: float | None


class SessionAudio:
    """Read the sound of a workspace's recordings, as long as their folders stay where they were ingested from."""

    def __init__(self, asking: CatalogReader) -> None:
        self._asking = asking
        self._drawn = lru_cache(maxsize=64)(self._draw)
        self._one = threading.Lock()  # one waveform at a time: a recording may be hours long

    def file(self, name: str) -> tuple[Path, str]:
        """Return the sound file of the trajectory `name`, and its media type.

        Raises NotInStore where there never was one, or it is gone, and as `CatalogReader.rows`.
        """
        rows = self._asking.rows(
            f"SELECT iteration, task_id, source FROM {OUTCOMES_TABLE} WHERE trajectory_id = $id", {"id": name}
        )
        if not rows or rows[0]["source"] != "recording":
            raise NotInStore("no sound was recorded with this trajectory")
        ws, iteration, task = self._asking.ws, rows[0]["iteration"], rows[0]["task_id"]
        try:
            listed = selection.read_chosen_sessions(ws, iteration)
        except FlywheelError:
            listed = []
        for session in listed:
            if session_trajectory_id(iteration, task, session.id) == name:
                return find_audio_file(ws.resolve(session.path))
        raise NotInStore("the session that this is from is not known here any more")

    def waveform(self, name: str) -> Waveform:
        """Compute the waveform of the sound of a trajectory. Raises as `file`, DataError for a damaged sound."""
        path, _ = self.file(name)
        with self._one:
            return self._drawn(name, path, path.stat().st_mtime_ns)

    def _draw(self, name: str, path: Path, _: int) -> Waveform:
        samples = audio.read_audio(path)
        parts = np.array_split(np.abs(samples), min(_PEAKS, len(samples)))
        peaks = tuple(round(float(part.max()), 3) for part in parts)
        spans = self._asking.rows(
            "SELECT start_s, end_s FROM utterances WHERE trajectory_id = $id ORDER BY utterance", {"id": name}
        )
        return Waveform(
            len(samples) / audio.SAMPLE_RATE, peaks, _estimate_offset(spans, audio.speech_segments(samples))
        )


def find_audio_file(folder: Path) -> tuple[Path, str]:
    """Find the sound file of the recorded session in `folder`, and its media type.

    A path in `session.json` that leads out of the folder is ignored. Raises NotInStore where there is no sound.
    """
    try:
        meta, _ = load_session_meta(folder)
        path = (folder / meta.audio).resolve()
        if path.is_file() and path.is_relative_to(folder.resolve()) and path.suffix in _AUDIO_TYPES:
            return path, _AUDIO_TYPES[path.suffix]
    except (FlywheelError, OSError):
        pass
    raise NotInStore("the recording does not lie here any more", fix="put its folder back, and look again")


def _estimate_offset(said: list[dict[str, Any]], heard: list[tuple[float, float]]) -> float | None:
    """Estimate the seconds to add to the sound's time to get the screens' time, from utterances and speech segments of
    equal length; None if there are none. said: utterances, in the screens' time. heard: speech segments (start, end),
    in the sound's time."""
    found = [
        row["start_s"] - start
        for row in said
        for start, end in heard
        if abs((row["end_s"] - row["start_s"]) - (end - start)) < _TOLERANCE_S
    ]
    agree = [sum(abs(one - other) < _TOLERANCE_S for other in found) for one in found]
    best = [one for one, votes in zip(found, agree, strict=True) if votes == max(agree)]
    return round(median(best), 4) if best else None


@lru_cache(maxsize=4)
def _load_tokenizer(path: Path) -> Tokenizer | None:
    try:
        return Tokenizer.from_file(str(path))
    except Exception:  # the library raises a plain Exception for a file that is no tokeniser
        return None


class TokenTexts:
    """Decode token ids with the tokenisers of a workspace's checkpoints; without one, an id is shown as a number."""

    def __init__(self, ws: Workspace) -> None:
        self._root = ws.root.resolve()

    def texts(self, model: str | None, ids: Sequence[int]) -> list[str]:
        """Return one text per token id of `ids`.

        model: path of the checkpoint in the workspace; None: unknown. A part of a character becomes the replacement
        character, an id that stands for no text ⟨id⟩. Without a readable tokeniser the text of an id is its number.
        """
        if not ids:
            return []
        path = (self._root / model / "tokenizer.json").resolve() if model else None
        # Lineage may name checkpoints outside of the workspace, which are not read here.
        here = path is not None and path.is_relative_to(self._root) and path.is_file()
        if not here or (tokenizer := _load_tokenizer(path)) is None:
            return [str(number) for number in ids]
        return [tokenizer.decode([number], skip_special_tokens=False) or f"⟨{number}⟩" for number in ids]
