"""Read sessions of AgentNetTool (OpenCUA), the recorder that AgentNet was made with: a folder each.

`events.jsonl` has raw input events, `metadata.json` the screen and the clocks, `task_name.json` the task, and an MP4
file of any name the screens. https://github.com/xlang-ai/AgentNetTool
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from flywheel.agent.prompt import MAX_SIDE
from flywheel.store.interop import demonstration
from flywheel.store.interop.demonstration import MAX_CHARACTERS, Demonstration, RefusedRecord
from flywheel.store.interop.input_events import RawEvent, reduce_events
from flywheel.store.interop.video import read_frames
from flywheel.utils.json_text import iter_json_lines, parse_foreign_json

DATASET, LICENCE = "agentnettool", ""
NOT_HELD = demonstration.FORMATS["not_held"][DATASET]
_LEAD_S = 0.1  # a screen is that of so long before its action: the clocks of video and events differ by about as much
_STOPS = ("ctrl + alt + t", "alt + cmd + t")  # the keys that stop the recorder
_UNSURE = re.compile(r"<(?!(9[6-9]|10[0-5]|110)>)\d+>")  # but the number pad's
_Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    time_stamp: float


class _Pointer(_Part):
    x: float
    y: float


class _Move(_Pointer):
    action: Literal["move"]


class _Button(_Pointer):
    action: Literal["click"]
    button: _Text
    pressed: bool


class _Wheel(_Pointer):
    action: Literal["scroll"]
    dx: float
    dy: float


class _Key(_Part):
    action: Literal["press", "release"]
    name: _Text
    pynput_key: _Text = ""


class _Break(_Part):
    action: Literal["pause", "resume"]


_EVENT = TypeAdapter(Annotated[_Move | _Button | _Wheel | _Key | _Break, Field(discriminator="action")])


class _States(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    started: list[float] = Field(default=[], alias="OBS_WEBSOCKET_OUTPUT_STARTED")


class _Metadata(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    system: _Text = ""
    screen_width: int = Field(ge=1)
    screen_height: int = Field(ge=1)
    video_start_timestamp: float
    obs_record_state_timings: _States = _States()


class _Task(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    task_name: _Text
    description: _Text = ""


def read_agentnet_tool(
    folders: Sequence[Path], licence: str = LICENCE, max_side: int = MAX_SIDE
) -> Iterator[Demonstration | RefusedRecord]:
    """Yield each recorded session as a demonstration, or as a RefusedRecord that says why it is none.

    folders: with an `events.jsonl` in them, at any depth. licence: stored with each demonstration. max_side: longest
    side of a screen, in pixels (policy.max_image_side). It is a generator; it raises BadInput for a folder that is
    missing or without sessions when it comes to it.
    """
    yield from demonstration.read_folders(
        folders,
        "events.jsonl",
        "name a folder of AgentNetTool's recordings",
        lambda one: _demonstration(one, licence, max_side),
    )


def _demonstration(folder: Path, licence: str, max_side: int) -> Demonstration:
    metadata = _read(folder, "metadata.json", _Metadata)
    task = _read(folder, "task_name.json", _Task)
    raw, breaks = _read_events(folder / "events.jsonl")
    size = (metadata.screen_width, metadata.screen_height)
    made = reduce_events(raw, size, macos=metadata.system == "Darwin")
    stop = made.pop().said if made and made[-1].said in _STOPS else ""
    if not made:
        raise ValueError("it has no actions")
    # The video begins when OBS says that it has started, and stands still in the breaks.
    zero = (metadata.obs_record_state_timings.started or [metadata.video_start_timestamp])[0]
    times = [_video_time(one.time_s - _LEAD_S, zero, breaks) for one in made]
    videos = sorted(folder.glob("*.mp4"))
    if len(videos) != 1:
        raise ValueError(f"it has {len(videos)} .mp4 files, and not one")
    frames = read_frames(videos[0], times)
    return demonstration.make_session_demonstration(
        DATASET,
        folder.name,
        licence,
        task.task_name,
        made,
        frames,
        max_side,
        {"description": task.description, "stopped_by": stop},
    )


def _read(folder: Path, name: str, kind: type) -> BaseModel:
    try:
        return kind.model_validate(parse_foreign_json((folder / name).read_bytes()))
    except OSError:
        raise ValueError(f"{name}: it is not there") from None
    except ValueError as error:
        raise ValueError(f"{name}: {RefusedRecord.from_error('', error).why}") from None


def _read_events(path: Path) -> tuple[list[RawEvent], list[tuple[float, float]]]:
    """Return the events but moves, by time, and the breaks of the recording as (begin, end)."""
    events: list[RawEvent] = []
    breaks: list[tuple[float, float]] = []
    paused: float | None = None
    for number, line in iter_json_lines(path):
        try:
            event = _EVENT.validate_python(parse_foreign_json(line))
        except ValueError as error:
            raise ValueError(f"{path.name} line {number}: {RefusedRecord.from_error('', error).why}") from None
        match event:
            case _Button():
                kind = "down" if event.pressed else "up"
                events.append(RawEvent(event.time_stamp, kind, event.x, event.y, event.button))
            case _Wheel():
                events.append(RawEvent(event.time_stamp, "scroll", event.x, event.y, dx=event.dx, dy=event.dy))
            case _Key():
                text = " " if event.name.lower() == "space" else event.name if len(event.name) == 1 else ""
                # pynput knew the key, as `<84>`, and not its sign: the name is that without Shift, a capital.
                doubt = (
                    "which sign a key typed is not told" if text.strip() and _UNSURE.fullmatch(event.pynput_key) else ""
                )
                events.append(RawEvent(event.time_stamp, event.action, name=event.name, text=text, doubt=doubt))
            case _Break(action="pause"):
                paused = event.time_stamp
                events.append(RawEvent(event.time_stamp, "pause"))
            case _Break() if paused is not None:
                breaks.append((paused, event.time_stamp))
                paused = None
    # Mouse and keys come from two threads, so lines may be out of order by a moment.
    return sorted(events, key=lambda one: one.time_s), breaks


def _video_time(time_s: float, zero: float, breaks: Sequence[tuple[float, float]]) -> float:
    return time_s - zero - sum(min(end, time_s) - begin for begin, end in breaks if begin < time_s)
