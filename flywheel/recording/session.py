"""One recorded session as it lies on disk, and reading it with every part checked.

A session is a folder:
- `session.json`: see `Meta`; the task is a row of the table `tasks`.
- `events.jsonl`: one event a line, in order of time: time_s, kind, x, y, key, text, screen.
- `screens.parquet`: one row a screen: screen (its number), time_s, sha256, url, width, height, format, bytes.
- `speech.opus`, `.flac` or `.wav`: what was said, on a clock of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flywheel.environments.env import Task
from flywheel.errors import BadInput, DataError
from flywheel.recording.actions import InputEvent, Recorded, to_actions
from flywheel.recording.sound import audio, soundness
from flywheel.synthesis.tasks import from_row

SCREENS = pa.schema(
    [
        ("screen", pa.int32()),
        ("time_s", pa.float64()),
        ("sha256", pa.string()),
        ("url", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("format", pa.string()),
        ("bytes", pa.binary()),
    ]
)
_COPY = "copy the recording again from the annotator's machine"


class Outcome(BaseModel):
    """How the session ended. state: what the verifier reads. url: of the last page."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    terminated: bool
    reward: float
    state: dict[str, Any]


class Meta(BaseModel):
    """`session.json`.

    audio: file name. audio_sha256: of that file; empty where a recorder does not write it. sync_s: the screen's clock
    minus the audio's, as both told it at the start (wrong by up to a second); null where they were not read.
    started_at: the zero of the screen's clock. seconds: until both were stopped, on the screen's clock.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    version: Literal[1] = 1
    session: str = Field(min_length=1)
    annotator: str = Field(min_length=1)
    level: Literal["expert", "novice"]
    voice: str = ""
    task: dict[str, Any]
    width: int = Field(ge=1)
    height: int = Field(ge=1)
    audio: str
    audio_sha256: str = ""
    sync_s: float | None
    started_at: datetime
    seconds: float = Field(gt=0)
    outcome: Outcome


@dataclass(frozen=True)
class ScreenFrame:
    time_s: float
    sha256: str
    url: str
    width: int
    height: int
    format: str
    bytes: bytes = field(repr=False)


@dataclass(frozen=True)
class Session:
    """A session in memory. actions: what the events amount to. samples: float32 mono at `audio.RATE`."""

    folder: Path
    meta: Meta
    task: Task
    events: tuple[InputEvent, ...]
    actions: tuple[Recorded, ...]
    screens: Mapping[int, ScreenFrame]
    samples: np.ndarray = field(repr=False)


def load_session(folder: Path) -> Session:
    """Read a session. Raises DataError naming the part that is missing or does not hold: file, line, fault."""
    if not folder.is_dir():
        raise DataError("no such session", where=folder, fix="see recording.folder")
    meta, task = load_meta(folder)
    events = _events(folder / "events.jsonl")
    screens = _screens(folder / "screens.parquet")
    try:
        actions = to_actions(events)
    except BadInput as error:
        raise DataError(error.what, where=f"{folder / 'events.jsonl'} {error.where}", fix=error.fix or _COPY) from None
    for recorded in actions:
        if recorded.screen not in screens:
            raise DataError(
                f"the screen before event {recorded.events[0]} is missing (screen {recorded.screen})",
                where=folder / "screens.parquet",
                fix=_COPY,
            )
    samples = _samples(folder / meta.audio, meta, events)
    return Session(folder, meta, task, tuple(events), tuple(actions), screens, samples)


def _samples(path: Path, meta: Meta, events: list[InputEvent]) -> np.ndarray:
    """The speech. Raises DataError where it cannot be trusted: a thought at a wrong time goes to a wrong step."""
    samples = audio.read(path)
    if meta.audio_sha256 and _sha256(path) != meta.audio_sha256:
        raise DataError("the audio is damaged: its sha256 is not that of session.json", where=path, fix=_COPY)
    if events[-1].time_s > meta.seconds:
        raise DataError(
            f"session.json does not hold: seconds is {meta.seconds}, the last event is at {events[-1].time_s}",
            where=path.parent / "session.json",
            fix="mend that field",
        )
    soundness.check_clock(len(samples) / audio.RATE, meta.seconds, meta.sync_s, path)
    soundness.check_sound(samples, path)
    return samples


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_meta(folder: Path) -> tuple[Meta, Task]:
    """`session.json` alone. Raises DataError."""
    path = folder / "session.json"
    try:
        meta = Meta.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError("the recording has no session.json", where=path, fix=_COPY) from None
    except (ValidationError, UnicodeDecodeError) as error:
        raise DataError(f"session.json does not hold: {_first(error)}", where=path, fix="mend that field") from None
    try:
        task = from_row(meta.task)
        hash(task.task_id)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"the task is not a row of the table tasks: {error!r}", where=path, fix=_COPY) from None
    return meta, task


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        fault = error.errors()[0]
        return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
    return str(error)


def _events(path: Path) -> list[InputEvent]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DataError("the recording has no events", where=path, fix=_COPY) from None
    except UnicodeDecodeError as error:
        raise DataError(f"the events are not text: {error}", where=path, fix=_COPY) from None
    events: list[InputEvent] = []
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        try:
            event = InputEvent(**json.loads(line))
            at = float(event.time_s)
        except (ValueError, TypeError) as error:
            raise DataError(f"not an event: {error}", where=where, fix=_COPY) from None
        if events and at < events[-1].time_s:
            raise DataError("events are not in order of time", where=where, fix=_COPY)
        events.append(event)
    if not events:
        raise DataError("the recording has no events", where=path, fix=_COPY)
    return events


def _screens(path: Path) -> dict[int, ScreenFrame]:
    if not path.is_file():
        raise DataError("the recording has no screens", where=path, fix=_COPY)
    try:
        table = pq.ParquetFile(path).read()
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"not a whole Parquet file: {str(error).splitlines()[0]}", where=path, fix=_COPY) from None
    if not table.schema.equals(SCREENS):
        raise DataError("the columns of the screens differ", where=path, fix=_COPY)
    screens = {}
    for row in table.to_pylist():
        number = row.pop("screen")
        if hashlib.sha256(row["bytes"]).hexdigest() != row["sha256"]:
            raise DataError(f"screen {number} is damaged: its sha256 differs", where=path, fix=_COPY)
        screens[number] = ScreenFrame(**row)
    return screens


def write_session(
    folder: Path, meta: Meta, events: list[InputEvent], screens: list[ScreenFrame], samples: np.ndarray, rate: int
) -> None:
    """Write a session folder; the screens get the numbers 0, 1, ... in their order. `folder` must not exist."""
    import soundfile

    folder.mkdir(parents=True)
    rows = [{"screen": number, **vars(screen)} for number, screen in enumerate(screens)]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCREENS), folder / "screens.parquet", compression="zstd")
    kept = [{k: v for k, v in vars(event).items() if v not in (None, "")} for event in events]
    lines = "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in kept)
    (folder / "events.jsonl").write_text(lines, encoding="utf-8")
    opus = meta.audio.endswith(".opus")
    soundfile.write(
        folder / meta.audio, samples, rate, format="OGG" if opus else None, subtype="OPUS" if opus else None
    )
    meta = meta.model_copy(update={"audio_sha256": _sha256(folder / meta.audio)})
    (folder / "session.json").write_text(meta.model_dump_json(indent=1) + "\n", encoding="utf-8")
