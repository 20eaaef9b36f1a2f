"""Record episodes as animated PNGs of the screens that the agent saw, for people who look into failures.

The screens' compressed data go into the file unchanged (PNG specification, third edition, section 11.3.4: acTL, fcTL,
fdAT), so a recording costs no encoding, and each screen's data can be extracted again byte for byte.
"""

from __future__ import annotations

import io
import json
import logging
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from flywheel.agent.actions import ACTION_NAMES, Action
from flywheel.envs.base import StepResult, Task, Verdict
from flywheel.envs.browser.driver.cdp import encode_png
from flywheel.utils.files import atomic_file

log = logging.getLogger(__name__)
RECORDING_SUFFIX = ".episode.png"
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PLAIN = {(8, 2): "RGB", (8, 6): "RGBA"}  # (bit depth, colour type) -> Pillow's mode
_FRAME_MS, _LAST_MS = 500, 2000


@dataclass(frozen=True)
class EpisodeRecording:
    """Hold the recording of an episode. name: of its file. screens: PNGs, from the reset on. about: JSON values.

    The keys of `about` are those of `read_recording_description`.
    """

    name: str
    screens: tuple[bytes, ...]
    about: dict[str, Any]


class EpisodeRecorder:
    """Collect the screens of a lease's episodes, and make recordings of the episodes to keep.

    keep: failed leaves out episodes that solved their task. session: name of the lease. folder: for the recordings.
    limit: bytes of one recording's screens; later screens are left out and counted as `left_out`.
    """

    def __init__(self, keep: Literal["failed", "all"], session: str, folder: Path, limit: int) -> None:
        self.folder = folder
        self._keep, self._session, self._limit = keep, session, limit
        self._episode = 0
        self._about: dict[str, Any] = {}

    def begin(self, task: Task, seed: int, first: StepResult) -> None:
        """Begin to record an episode; the one before is dropped. first: result of the reset."""
        self._task, self._room = task, self._limit
        self._episode += 1
        self._screens: list[bytes] = []
        self._about = {"task": task.task_id, "instruction": task.instruction, "seed": seed, "session": self._session}
        self._about |= {"actions": [], "left_out": 0, "reward": 0.0}
        self._see(first)

    def add(self, action: Action | None, result: StepResult) -> None:
        """Add the result of an action; None: of a restored checkpoint."""
        if self._about:
            self._about["actions"].append([ACTION_NAMES[type(action)], asdict(action)] if action else None)
            if action is None:
                self._about["reward"] = 0.0  # an end alone has a reward, and a restored end tells it again
            self._see(result)

    def finish(self, error: str = "") -> EpisodeRecording | None:
        """End the episode and return its recording; None where it is not kept. error: what broke it off, or ""."""
        about, self._about = self._about, {}
        if not about:
            return None
        solved = about["terminated"] and Verdict(about["reward"], self._task.threshold).v and not error
        if solved and self._keep == "failed":
            return None
        outcome = "solved" if solved else "crashed" if error else "failed"
        parts = (_file_name_of(self._task.task_id), about["seed"], self._session, self._episode, outcome)
        name = "-".join(map(str, parts)) + RECORDING_SUFFIX
        return EpisodeRecording(name, tuple(self._screens), about | {"outcome": outcome, "error": error})

    def _see(self, result: StepResult) -> None:
        screen = result.observation.screenshot
        self._about |= {"terminated": result.terminated, "truncated": result.truncated}
        self._about["reward"] += result.reward
        self._room -= len(screen)
        if self._room >= 0:
            self._screens.append(screen)
        else:
            self._about["left_out"] += 1


def write_recording(film: EpisodeRecording, folder: Path, limit: int) -> Path | None:
    """Write a recording into `folder`; deletes the oldest ones there where all have more than `limit` bytes together.

    Returns its path. A full disk or an unreadable screen loses only the recording: it is logged, and None returned.
    """
    try:
        data = encode_apng(film.screens, film.about)
        path = folder / film.name
        with atomic_file(path) as temporary:
            temporary.write_bytes(data)
        _delete_oldest(folder, limit, path)
    except (OSError, ValueError) as error:
        log.warning("the recording of %s was not kept: %s", film.name, error)
        return None
    return path


def encode_apng(screens: Sequence[bytes], about: dict[str, Any]) -> bytes:
    """Encode the screens as one animated PNG of the first one's size. Raises ValueError for no screens, or no PNGs.

    about: JSON values, the file's description of the episode.
    """
    if not screens:
        raise ValueError("no screens")
    header = _png_header(screens[0])
    size = _IHDR.unpack(header)[:2]
    if _pillow_mode(header) is None:
        header = _IHDR.pack(*size, 8, 2, 0, 0, 0)
    out = [_SIGNATURE, _encode_chunk(b"IHDR", header), _encode_chunk(b"acTL", struct.pack(">II", len(screens), 0))]
    out.append(_encode_chunk(b"iTXt", b"Description\0\0\0\0\0" + json.dumps(about, default=str).encode()))
    sequence = 0
    for number, screen in enumerate(screens):
        delay = _LAST_MS if number == len(screens) - 1 else _FRAME_MS
        out.append(_encode_chunk(b"fcTL", struct.pack(">IIIIIHHBB", sequence, *size, 0, 0, delay, 1000, 0, 0)))
        sequence += 1
        for data in _compressed_pixels(screen, header):
            if number == 0:
                out.append(_encode_chunk(b"IDAT", data))
            else:
                out.append(_encode_chunk(b"fdAT", struct.pack(">I", sequence) + data))
                sequence += 1
    return b"".join([*out, _encode_chunk(b"IEND", b"")])


def decode_apng_frames(recording: bytes) -> Iterator[bytes]:
    """Decode the screens of a recording, each as a PNG: the inverse of `encode_apng`."""
    header, data = b"", []
    for kind, body in _iterate_chunks(recording):
        if kind == b"IHDR":
            header = body
        elif kind in (b"fcTL", b"IEND") and data:
            chunks = ((b"IHDR", header), (b"IDAT", b"".join(data)), (b"IEND", b""))
            yield _SIGNATURE + b"".join(_encode_chunk(*chunk) for chunk in chunks)
            data = []
        elif kind == b"IDAT":
            data.append(body)
        elif kind == b"fdAT":
            data.append(body[4:])


def read_recording_description(recording: bytes) -> dict[str, Any]:
    """Read the description of an episode from the bytes of its recording, JSON values by name.

    Its keys: `task`, `instruction`, `seed`, `session`, `actions` ([name, fields], None for a restored checkpoint),
    `left_out` (screens), `reward`, `terminated`, `truncated`, `outcome` (solved, failed or crashed) and `error`. Raises
    ValueError for a file without a description.
    """
    for kind, body in _iterate_chunks(recording):
        if kind == b"iTXt":
            return json.loads(body.split(b"\0" * 5, 1)[1])
    raise ValueError("not a recording of an episode")


_IHDR = struct.Struct(">IIBBBBB")


def _compressed_pixels(screen: bytes, header: bytes) -> list[bytes]:
    """Return a screen's compressed data; it is drawn anew where its size or pixel format is not that of `header`."""
    if _png_header(screen) != header:
        width, height = _IHDR.unpack(header)[:2]
        mode = _pillow_mode(header)
        with Image.open(io.BytesIO(screen)) as image:
            drawn = Image.new(mode, (width, height))
            drawn.paste(image.convert(mode))
        screen = encode_png(drawn)
    return [body for kind, body in _iterate_chunks(screen) if kind == b"IDAT"]


def _png_header(screen: bytes) -> bytes:
    kind, body = next(_iterate_chunks(screen), (b"", b""))
    if kind != b"IHDR" or len(body) != _IHDR.size:
        raise ValueError("a screen is not a PNG")
    return body


def _pillow_mode(header: bytes) -> str | None:
    *_, depth, colour, _, _, interlaced = _IHDR.unpack(header)
    return None if interlaced else _PLAIN.get((depth, colour))


def _iterate_chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_SIGNATURE)
    while at + 12 <= len(png):
        (length,) = struct.unpack_from(">I", png, at)
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += 12 + length


def _encode_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(body, zlib.crc32(kind)))


def _delete_oldest(folder: Path, limit: int, newest: Path) -> None:
    films = []
    for path in folder.glob("*" + RECORDING_SUFFIX):
        try:
            found = path.stat()
        except FileNotFoundError:
            continue  # another process made room too
        films.append((found.st_mtime, path.name, found.st_size, path))
    total = sum(size for _, _, size, _ in films)
    for _, _, size, path in sorted(films):
        if total <= limit or path == newest:
            return
        path.unlink(missing_ok=True)
        total -= size


def _file_name_of(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:80]
