"""Read and write a recorded session on disk (input events, screens, speech), and turn its events into actions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point
from flywheel.envs.base import Task
from flywheel.envs.tasks.drawing import task_from_row, task_to_row
from flywheel.recordings import audio
from flywheel.store.partitions import table_from_rows
from flywheel.utils.errors import BadInput, DataError
from flywheel.utils.files import sha256_file
from flywheel.utils.json_text import describe_first_fault, iter_json_lines, parse_foreign_json

# Values of `kind` that the recorder writes. `drop` ends a `drag`; with `stop` the annotator ends the recording.
EVENT_KINDS = "click, double, triple, right, hover, drag, drop, key, down, up, type, scroll, navigate, back, stop"
_POINTED = {
    "click": act.Click,
    "double": act.LeftDouble,
    "triple": act.LeftTriple,
    "right": act.RightSingle,
    "hover": act.Hover,
}
_POINTED_KINDS = {action: kind for kind, action in _POINTED.items()}
_DIRECTIONS = ("up", "down", "left", "right")


_Text = Annotated[str, Field(max_length=20_000)]


@dataclass(frozen=True)
class InputEvent:
    """Hold one captured input event.

    time_s: on the screen's clock, from its start. kind: one of `EVENT_KINDS`. x, y: fractions of the viewport. key:
    keys held together, separated by spaces. text: typed text, address, direction of a scroll, or label of the element
    under the pointer. screen: number of the screen shown just before, for an event that begins an action.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    time_s: Annotated[float, Field(ge=0)]
    kind: _Text
    x: float | None = None
    y: float | None = None
    key: _Text = ""
    text: _Text = ""
    screen: int | None = None


_EVENT = TypeAdapter(InputEvent)  # as a line of a file
_TASK = TypeAdapter(Task)


@dataclass(frozen=True)
class RecordedAction:
    """Hold an action made of one or two input events. events: their indices. time_s, screen: of the first event."""

    action: Action
    events: tuple[int, ...]
    time_s: float
    screen: int | None


def events_to_actions(events: Sequence[InputEvent]) -> list[RecordedAction]:
    """Turn input events into actions: a drag with its drop is one, and so is text with an Enter right after it.

    Raises BadInput for an event that cannot be part of an action, by its index.
    """
    recorded: list[RecordedAction] = []
    for index, event in enumerate(events):
        previous = recorded[-1] if recorded else None
        if event.kind == "drop":
            if index == 0 or events[index - 1].kind != "drag":
                raise BadInput("a drop without a drag before it", where=f"event {index}")
            drag = act.Drag(previous.action.start_point, _point(event, index))
            recorded[-1] = RecordedAction(drag, (*previous.events, index), previous.time_s, previous.screen)
        elif _submits(event, previous):
            typed = act.Type(previous.action.content + "\n")
            recorded[-1] = RecordedAction(typed, (*previous.events, index), previous.time_s, previous.screen)
        else:
            if event.kind == "drag" and (index + 1 == len(events) or events[index + 1].kind != "drop"):
                raise BadInput("a drag without its drop", where=f"event {index}")
            recorded.append(RecordedAction(_action(event, index), (index,), event.time_s, event.screen))
    return recorded


def _submits(event: InputEvent, previous: RecordedAction | None) -> bool:
    """Tell whether the event is Enter right after typing, on the same screen: the recorder gives it no screen."""
    typed = previous is not None and isinstance(previous.action, act.Type)
    return typed and event.kind == "key" and event.key.lower() == "enter" and event.screen is None


def _action(event: InputEvent, index: int) -> Action:
    match event.kind:
        case "click" | "double" | "triple" | "right" | "hover":
            return _POINTED[event.kind](_point(event, index))
        case "drag":
            point = _point(event, index)
            return act.Drag(point, point)
        case "key":
            keys = tuple(event.key.lower().split())
            if not 1 <= len(keys) <= 3:
                raise BadInput(f"a key event has one to three keys, not {event.key!r}", where=f"event {index}")
            return act.Hotkey(keys)
        case "down" | "up":
            if not event.key:
                raise BadInput("a key event without a key", where=f"event {index}")
            return (act.Press if event.kind == "down" else act.Release)(event.key)
        case "type":
            return act.Type(event.text)
        case "scroll":
            if event.text not in _DIRECTIONS:
                raise BadInput(f"no scroll direction is called {event.text!r}", where=f"event {index}")
            return act.Scroll(_point(event, index), event.text)
        case "navigate":
            return act.Navigate(event.text)
        case "back":
            return act.NavigateBack()
        case "stop":
            return act.Finished(event.text)
    raise BadInput(f"no event is of kind {event.kind!r}", where=f"event {index}", fix=f"known are {EVENT_KINDS}")


def _point(event: InputEvent, index: int) -> Point:
    if event.x is None or event.y is None or not (0 <= event.x < 1 and 0 <= event.y < 1):
        what = f"the point ({event.x}, {event.y}) of a {event.kind} is not on the screen"
        raise BadInput(what, where=f"event {index}")
    return Point(event.x, event.y)


def action_to_events(
    action: Action, time_s: float, screen: int, label: str = "", *, seconds: float = 0.3
) -> list[InputEvent]:
    """Make the one or two input events of an `action`.

    time_s: of the first event, in seconds on the screen's clock. seconds: after which a second one follows. screen:
    number of the screen that was seen. label: of the element under the pointer. Raises BadInput for an action that a
    person's input cannot make.
    """

    def first(kind: str, point: Point | None = None, **rest: str) -> InputEvent:
        x, y = (point.x, point.y) if point else (None, None)
        return InputEvent(round(time_s, 3), kind, x, y, screen=screen, **rest)

    later = round(time_s + seconds, 3)
    match action:
        case act.Click() | act.LeftDouble() | act.LeftTriple() | act.RightSingle() | act.Hover():
            return [first(_POINTED_KINDS[type(action)], action.point, text=label)]
        case act.Drag(start, end):
            return [first("drag", start, text=label), InputEvent(later, "drop", end.x, end.y)]
        case act.Hotkey(keys):
            return [first("key", key=" ".join(keys))]
        case act.Press(key):
            return [first("down", key=key)]
        case act.Release(key):
            return [first("up", key=key)]
        case act.Type(content) if content.endswith("\n"):
            return [first("type", text=content[:-1]), InputEvent(later, "key", key="Enter")]
        case act.Type(content):
            return [first("type", text=content)]
        case act.Scroll(point, direction):
            return [first("scroll", point, text=direction)]
        case act.Navigate(content):
            return [first("navigate", text=content)]
        case act.NavigateBack():
            return [first("back")]
        case act.Finished(content):
            return [first("stop", text=content)]
    raise BadInput(f"a person's input makes no {type(action).__name__}", where="action_to_events")


# Files of a session's folder, each checked as it is read:
# - `session.json`: see `SessionMeta`; the task is a row of the table `tasks`.
# - `events.jsonl`: one event a line, in order of time: time_s, kind, x, y, key, text, screen.
# - `screens.parquet`: one row a screen: screen (its number), time_s, sha256, url, width, height, format, bytes.
# - `speech.opus`, `.flac` or `.wav`: what was said, on a clock of its own.
# - `transcript.*`: what was said, in words, where that was written elsewhere (`transcripts.py`).

_SCREENS_AT_ONCE = 32  # that are held in memory while they are written
SCREENS_SCHEMA = pa.schema(
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
_FIX_COPY_AGAIN = "copy the recording again from the annotator's machine"
_FIX_MEND = "mend it there; where it is cut off, copy the recording again from the annotator's machine"


def _damaged(what: str, where: object) -> DataError:
    return DataError(what, where=where, fix=_FIX_COPY_AGAIN)


class SessionOutcome(BaseModel):
    """Hold how a session ended. terminated: by the task itself. reward: the sum. state: for the verifier."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
    terminated: bool
    reward: float
    state: dict[str, Any]


class SessionMeta(BaseModel):
    """Hold the content of a session's `session.json`.

    session: its name. annotator: the person's name. voice: of synthetic speech. task: row of `tasks`. width, height: of
    the screen in pixels. audio: file name; "" where nothing was said, or a transcript stands in its place.
    audio_sha256: of that file; "" where the recorder does not write it. sync_s: the screen's clock minus the audio's,
    read at the start (wrong by up to a second); None where they were not read. started_at: the zero of the screen's
    clock. seconds: length of the recording on the screen's clock.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
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
    outcome: SessionOutcome

    @field_validator("started_at", mode="before")
    @classmethod
    def _moment(cls, value: Any) -> Any:
        return datetime.fromisoformat(value) if isinstance(value, str) else value


@dataclass(frozen=True)
class ScreenFrame:
    """Hold a screen of a session. time_s: since the session began. width, height: in pixels. bytes: the file's, in
    `format`."""

    time_s: float
    sha256: str
    url: str
    width: int
    height: int
    format: str
    bytes: bytes = field(repr=False)


@dataclass(frozen=True)
class RecordedSession:
    """Hold a recorded session in memory. actions: made of the events. screens: by number. samples: float32 mono [n] at
    `SAMPLE_RATE`."""

    folder: Path
    meta: SessionMeta
    task: Task
    events: tuple[InputEvent, ...]
    actions: tuple[RecordedAction, ...]
    screens: Mapping[int, ScreenFrame]
    samples: np.ndarray = field(repr=False)


def load_session(folder: Path, *, speech: bool = True) -> RecordedSession:
    """Read the session in `folder`. speech: whether its sound is read; else `samples` is empty.

    Raises DataError naming the part that is missing or wrong: file, line, fault; OSError where there is no room for the
    temporary file of a long session's sound.
    """
    if not folder.is_dir():
        raise DataError("no such session", where=folder, fix="see recording.folder")
    meta, task = load_session_meta(folder)
    if meta.session != folder.name:
        what = f"session.json is of the session {meta.session[:80]!r}, the folder of another"
        raise DataError(what, where=folder, fix="name the folder as the session")
    events = _events(folder / "events.jsonl")
    screens = _screens(folder / "screens.parquet")
    try:
        actions = events_to_actions(events)
    except BadInput as error:
        where = f"{folder / 'events.jsonl'} {error.where}"
        raise DataError(error.what, where=where, fix=error.fix or _FIX_COPY_AGAIN) from None
    for recorded in actions:
        if recorded.screen not in screens:
            what = f"the screen before event {recorded.events[0]} is missing (screen {recorded.screen})"
            raise _damaged(what, folder / "screens.parquet")
    samples = _samples(folder / meta.audio, meta, events) if speech and meta.audio else np.zeros(0, np.float32)
    return RecordedSession(folder, meta, task, tuple(events), tuple(actions), screens, samples)


def _samples(path: Path, meta: SessionMeta, events: list[InputEvent]) -> np.ndarray:
    """Read the speech. Raises DataError where its times cannot be trusted: thoughts would go to wrong steps."""
    samples = audio.read_audio(path)
    if meta.audio_sha256 and sha256_file(path) != meta.audio_sha256:
        raise _damaged("the audio is damaged: its sha256 is not that of session.json", path)
    if events[-1].time_s > meta.seconds:
        what = f"session.json does not hold: seconds is {meta.seconds}, the last event is at {events[-1].time_s}"
        raise DataError(what, where=path.parent / "session.json", fix="mend that field")
    audio.check_audio_length(len(samples) / audio.SAMPLE_RATE, meta.seconds, meta.sync_s, path)
    audio.check_speech_level(samples, path)
    return samples


def load_session_meta(folder: Path) -> tuple[SessionMeta, Task]:
    """Read `session.json` of the session in `folder`, and its task.

    Raises DataError where it is missing or not valid.
    """
    path = folder / "session.json"
    try:
        meta = SessionMeta.model_validate(parse_foreign_json(path.read_bytes()))
    except FileNotFoundError:
        raise _damaged("the recording has no session.json", path) from None
    except (OSError, ValueError) as error:
        why = describe_first_fault(error) if isinstance(error, ValidationError) else error
        raise DataError(f"session.json does not hold: {why}", where=path, fix="mend that field") from None
    try:
        task = _TASK.validate_json(json.dumps(vars(task_from_row(meta.task))), strict=True)
        if not task.instruction.strip():
            raise ValueError("instruction is empty")
        if not 0 <= task.threshold <= 1 or task.max_steps < 1:
            raise ValueError("threshold is not in 0 to 1, or max_steps not 1 or more")
        table_from_rows("tasks", [task_to_row(task)])
    except (KeyError, TypeError, ValueError, RecursionError, DataError) as error:
        why = repr(error)
        if isinstance(error, ValidationError | DataError):
            why = describe_first_fault(error) if isinstance(error, ValidationError) else error.what
        raise DataError(f"the task is not a row of the table tasks: {why}", where=path, fix="mend that field") from None
    return meta, task


def _events(path: Path) -> list[InputEvent]:
    events: list[InputEvent] = []
    try:
        for number, line in iter_json_lines(path):
            where = f"{path}, line {number}"
            try:
                event = _EVENT.validate_json(json.dumps(parse_foreign_json(line)))
            except ValueError as error:
                why = describe_first_fault(error) if isinstance(error, ValidationError) else error
                raise DataError(f"not an event: {why}", where=where, fix=_FIX_MEND) from None
            if events and event.time_s < events[-1].time_s:
                raise DataError("events are not in order of time", where=where, fix=_FIX_MEND)
            events.append(event)
    except FileNotFoundError:
        raise _damaged("the recording has no events", path) from None
    except OSError as error:
        raise _damaged(f"the events cannot be read: {error.strerror}", path) from None
    if not events:
        raise _damaged("the recording has no events", path)
    return events


def _screens(path: Path) -> dict[int, ScreenFrame]:
    if not path.is_file():
        raise _damaged("the recording has no screens", path)
    try:
        table = pq.ParquetFile(path).read()
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(f"not a whole Parquet file: {str(error).splitlines()[0]}", path) from None
    if not table.schema.equals(SCREENS_SCHEMA):
        raise _damaged("the columns of the screens differ", path)
    screens = {}
    for row in table.to_pylist():
        number = row.pop("screen")
        if lacking := [name for name, value in {"number": number, **row}.items() if value is None and name != "url"]:
            raise DataError(f"a screen has no {lacking[0]} (screen {number})", where=path, fix="write every column")
        if number in screens:
            raise DataError(f"screen {number} comes twice", where=path, fix="number each once")
        if hashlib.sha256(row["bytes"]).hexdigest() != row["sha256"]:
            raise _damaged(f"screen {number} is damaged: its sha256 differs", path)
        screens[number] = ScreenFrame(**row)
    return screens


def write_session(
    folder: Path, meta: SessionMeta, events: list[InputEvent], screens: Iterable[ScreenFrame], samples: np.ndarray
) -> None:
    """Write a session folder; the screens get the numbers 0, 1, ... in their order, and few of them are held at once.

    folder: must not exist. meta: facts of the session; the sound's checksum is filled in. events: by time. samples:
    float32 mono [n] in [-1, 1] at `SAMPLE_RATE`, not written where `meta` names no sound. Raises OSError where the
    folder exists or cannot be written.
    """
    import soundfile

    folder.mkdir(parents=True)
    rows = ({"screen": number, **vars(screen)} for number, screen in enumerate(screens))
    with pq.ParquetWriter(folder / "screens.parquet", SCREENS_SCHEMA, compression="zstd") as written:
        while batch := list(islice(rows, _SCREENS_AT_ONCE)):
            written.write_table(pa.Table.from_pylist(batch, schema=SCREENS_SCHEMA))
    kept = [{k: v for k, v in vars(event).items() if v not in (None, "")} for event in events]
    lines = "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in kept)
    (folder / "events.jsonl").write_text(lines, encoding="utf-8")
    if meta.audio:
        opus = {"format": "OGG", "subtype": "OPUS"} if meta.audio.endswith(".opus") else {}
        soundfile.write(folder / meta.audio, samples, audio.SAMPLE_RATE, **opus)
        meta = meta.model_copy(update={"audio_sha256": sha256_file(folder / meta.audio)})
    (folder / "session.json").write_text(meta.model_dump_json(indent=1) + "\n", encoding="utf-8")
