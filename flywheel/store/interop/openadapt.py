"""Read captures of openadapt-capture (1.x): a folder each, with `recording.db` and a video.

The raw events of the database's table `action_event` are read, never what the package makes of them. Screens are those
of the table `screenshot`, else frames of `oa_recording-*.mp4`, which tells in a box of its own when each was taken.
https://github.com/OpenAdaptAI/openadapt-capture
"""

from __future__ import annotations

import shutil
import sqlite3
import struct
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from flywheel.agent.prompt import MAX_SIDE
from flywheel.store.interop import demonstration
from flywheel.store.interop.demonstration import MAX_CHARACTERS, Demonstration, RefusedRecord
from flywheel.store.interop.input_events import RawEvent, reduce_events
from flywheel.store.interop.video import read_frames
from flywheel.utils.json_text import parse_foreign_json

DATASET, LICENCE = "openadapt", ""
NOT_HELD = demonstration.FORMATS["not_held"][DATASET]
_STOPS = ([*"oa.stop"], ["ctrl"] * 3)  # keys with which the recorder is stopped, unless it is set otherwise
_LEAD_S = 0.1  # where an action names no screen, the one of so long before it
_TIMING_BOX = UUID("d8e90f06-20b4-4e0c-b449-4f70656e4164").bytes
_Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _Scope(_Row):
    viewport: tuple[float, float] = Field(strict=False)


class _Config(_Row):
    capture_window: _Scope | None = None
    capture_desktop: _Scope | None = None


class _Recording(_Row):
    timestamp: float
    monitor_width: int = Field(ge=1)
    monitor_height: int = Field(ge=1)
    double_click_interval_seconds: float | None = None
    platform: _Text | None = None
    task_description: _Text | None = None
    video_start_time: float | None = None


class _Event(_Row):
    id: int
    name: Literal["move", "click", "scroll", "press", "release"]
    timestamp: float
    source_ordinal: int | None = None
    screenshot_timestamp: float | None = None
    mouse_x: float | None = None
    mouse_y: float | None = None
    mouse_dx: float | None = None
    mouse_dy: float | None = None
    mouse_button_name: _Text | None = None
    mouse_pressed: Literal[0, 1] | None = None
    key_name: _Text | None = None
    key_char: _Text | None = None
    canonical_key_name: _Text | None = None
    canonical_key_char: _Text | None = None
    disabled: Literal[0, 1] | None = None


class _Timing(_Row):
    fps: _Text
    captures: list[Annotated[tuple[int, float], Field(strict=False)]] = []  # number and time of a frame


def read_openadapt(
    folders: Sequence[Path], licence: str = LICENCE, max_side: int = MAX_SIDE
) -> Iterator[Demonstration | RefusedRecord]:
    """Yield each capture as a demonstration, or as a RefusedRecord that says why it is none.

    folders: with a `recording.db` in them, at any depth. licence: stored with each demonstration. max_side: longest
    side of a screen, in pixels (policy.max_image_side). It is a generator; it raises BadInput for a folder that is
    missing or without captures when it comes to it.
    """
    yield from demonstration.read_folders(
        folders,
        "recording.db",
        "name a folder of openadapt-capture's",
        lambda one: _demonstration(one, licence, max_side),
    )


def _demonstration(folder: Path, licence: str, max_side: int) -> Demonstration:
    with tempfile.TemporaryDirectory() as copied:  # to open it may write beside it
        for path in folder.glob("recording.db*"):
            shutil.copy(path, copied)
        try:
            with closing(sqlite3.connect(Path(copied, "recording.db"))) as database:
                database.row_factory = sqlite3.Row
                recording, size, events, pictures = _read_database(database)
        except sqlite3.Error as error:
            raise ValueError(f"recording.db: {error}") from None
    events, stop = _without_stop(events)
    raw = [one for event in events if (one := _raw_event(event))]
    made = reduce_events(
        raw, size, double_click_s=recording.double_click_interval_seconds or 0.5, macos=recording.platform == "darwin"
    )
    if not made:
        raise ValueError("it has no actions")
    named = {event.timestamp: event.screenshot_timestamp for event in reversed(events)}
    times = [named.get(one.time_s) or one.time_s - _LEAD_S for one in made]
    frames = _pick_pictures(pictures, times) if pictures else _pick_frames(folder, recording, times)
    facts = {"stopped_by": stop}
    id_ = f"{folder.name}@{recording.timestamp}"
    told = recording.task_description or ""
    return demonstration.make_session_demonstration(DATASET, id_, licence, told, made, frames, max_side, facts)


def _read_database(
    database: sqlite3.Connection,
) -> tuple[_Recording, tuple[float, float], list[_Event], list[tuple[float, bytes]]]:
    """Return the recording, the size of the screen in the units of its points, its events, and its pictures by time."""
    recordings = [dict(row) for row in database.execute("SELECT * FROM recording")]
    if len(recordings) != 1:
        raise ValueError(f"recording.db: {len(recordings)} recordings, and not one")
    recording = _validate(_Recording, recordings[0], "recording")
    config = recordings[0].get("config")
    scopes = _validate(_Config, parse_foreign_json(config.encode()) if config and config != "null" else {}, "config")
    scope = scopes.capture_window or scopes.capture_desktop
    size = scope.viewport if scope else (recording.monitor_width, recording.monitor_height)
    if min(size) <= 0:
        raise ValueError(f"recording.db: config: not the size of a screen: {size}")
    rows = database.execute("SELECT * FROM action_event ORDER BY timestamp, id")
    events = [_validate(_Event, dict(row), f"action_event {row['id']}") for row in rows]
    pictures = database.execute("SELECT timestamp, png_data FROM screenshot WHERE png_data IS NOT NULL ORDER BY 1")
    kept = [event for event in events if not event.disabled]
    kept.sort(key=lambda event: (event.source_ordinal is None, event.source_ordinal or 0))
    return recording, size, kept, [(row[0], row[1]) for row in pictures]


def _validate(kind: type[_Row], values: Any, where: str) -> Any:
    try:
        return kind.model_validate(values)
    except ValueError as error:
        raise ValueError(f"recording.db: {where}: {RefusedRecord.from_error('', error).why}") from None


def _without_stop(events: list[_Event]) -> tuple[list[_Event], str]:
    """Leave out the keys that stopped the recorder, and what came after them; return also what they are."""
    presses = [place for place, event in enumerate(events) if event.name == "press"]
    keys = [events[place].canonical_key_char or events[place].canonical_key_name or "" for place in presses]
    for stop in _STOPS:
        if [key.lower() for key in keys[-len(stop) :]] == stop:
            return events[: presses[-len(stop)]], " ".join(stop)
    return events, ""


def _raw_event(event: _Event) -> RawEvent | None:
    if event.name == "move":
        return None
    at = event.timestamp
    if event.name in ("press", "release"):
        text = " " if event.key_name == "space" else event.key_char or ""
        # What a key types depends on what is held; its name does not, so that its release is known by it.
        name = event.key_name or event.canonical_key_name or event.canonical_key_char or ""
        return RawEvent(at, event.name, name=name, text=text)
    needed = {"click": ("mouse_button_name", "mouse_pressed"), "scroll": ("mouse_dx", "mouse_dy")}[event.name]
    if lacking := [name for name in ("mouse_x", "mouse_y", *needed) if getattr(event, name) is None]:
        raise ValueError(f"recording.db: action_event {event.id}: {lacking[0]}: a {event.name} without it")
    if event.name == "click":
        kind = "down" if event.mouse_pressed else "up"
        return RawEvent(at, kind, event.mouse_x, event.mouse_y, event.mouse_button_name)
    return RawEvent(at, "scroll", event.mouse_x, event.mouse_y, dx=event.mouse_dx, dy=event.mouse_dy)


def _pick_pictures(pictures: Sequence[tuple[float, bytes]], times: Sequence[float]) -> list[bytes]:
    begins = [begin for begin, _ in pictures]
    places = [bisect_right(begins, time) - 1 for time in times]
    return [pictures[place][1] if place >= 0 else b"" for place in places]


def _pick_frames(folder: Path, recording: _Recording, times: Sequence[float]) -> list[bytes]:
    videos = sorted({*folder.glob("oa_recording-*.mp4"), *folder.glob("video.mp4")})
    if len(videos) != 1:
        raise ValueError(f"it has {len(videos)} videos, and not one")
    timing = _read_timing(videos[0])
    if timing and timing.captures:
        begins = [begin for _, begin in timing.captures]
        if begins != sorted(begins):
            raise ValueError(f"{videos[0].name}: its timing: captures: not in order of time")
        places = [bisect_right(begins, time) - 1 for time in times]
        rate = float(Fraction(timing.fps))
        shown = [(timing.captures[place][0] + 0.5) / rate if place >= 0 else -1.0 for place in places]
    elif recording.video_start_time is None:
        raise ValueError("recording.db: recording: video_start_time: it has none")
    else:
        shown = [time - recording.video_start_time for time in times]
    order = sorted(range(len(shown)), key=shown.__getitem__)
    frames = read_frames(videos[0], [shown[place] for place in order])
    return [frame for _, frame in sorted(zip(order, frames, strict=True))]


def _read_timing(path: Path) -> _Timing | None:
    """Read the box of an MP4 file in which the recorder keeps when its frames were taken; None where it has none."""
    with path.open("rb") as file:
        while len(header := file.read(8)) == 8:
            size, kind = struct.unpack(">I4s", header)
            start = file.tell()
            if size == 1:
                size = int.from_bytes(file.read(8))
            end = start - 8 + size if size else path.stat().st_size
            if kind == b"uuid" and file.read(16) == _TIMING_BOX:
                text = file.read(max(0, end - file.tell()))
                try:
                    return _Timing.model_validate(parse_foreign_json(text))
                except ValueError as error:
                    raise ValueError(f"{path.name}: its timing: {RefusedRecord.from_error('', error).why}") from None
            if end < start:
                return None
            file.seek(end)
    return None
