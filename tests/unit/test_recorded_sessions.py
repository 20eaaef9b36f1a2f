"""Sessions of AgentNetTool and captures of openadapt-capture become trajectories, from their raw events."""

from __future__ import annotations

import io
import json
import sqlite3

import pytest
from PIL import Image

from flywheel.config import Settings
from flywheel.recordings.rows import demonstration_rows
from flywheel.store.interop import agentnet_tool, openadapt, osworld
from flywheel.store.interop.demonstration import Demonstration, RefusedRecord, save_demonstration
from flywheel.utils.errors import BadInput


def screen(second: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (80, 60), (second, 0, 0)).save(out, "png")
    return out.getvalue()


def seconds_shown(one: Demonstration) -> list[int | None]:
    """The second that each step's screen is of."""
    shown = [one.screens[step.screen] if step.screen else None for step in one.steps]
    return [None if png is None else Image.open(io.BytesIO(png)).getpixel((0, 0))[0] for png in shown]


def actions(one: Demonstration) -> list[str]:
    return [step.fault or step.action for step in one.steps]


# AgentNetTool. Its clock has another zero than the video, which OBS begins a moment later than it was asked to.

ZERO = 5000.0
METADATA = {
    "system": "Windows",
    "screen_width": 800,
    "screen_height": 600,
    "video_start_timestamp": ZERO - 0.5,
    "obs_record_state_timings": {"OBS_WEBSOCKET_OUTPUT_STARTED": [ZERO]},
}
MIDDLE = {"x": 400, "y": 300}
CLICK = [{"action": "click", **MIDDLE, "button": "left", "pressed": pressed} for pressed in (True, False)]


def key(name: str, *inside: dict) -> list[dict]:
    return [{"action": "press", "name": name}, *inside, {"action": "release", "name": name}]


def tool_session(folder, *events, metadata=METADATA, **files):
    """A session in the form of AgentNetTool's recorder. events: (seconds of the video, event)."""
    folder.mkdir(parents=True)
    lines = [{"time_stamp": ZERO + at, **event, "event_idx": number} for number, (at, event) in enumerate(events)]
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = {"metadata.json": metadata, "task_name.json": {"task_name": "sort it", "description": ""}} | files
    for name, value in told.items():
        (folder / name).write_text("\ufeff" + json.dumps(value), encoding="utf-8")
    (folder / "2024-11-05 18-56-31.mp4").write_bytes(b"video")


def timed(*parts: tuple[float, list[dict]]) -> list[tuple[float, dict]]:
    return [(at + 0.01 * number, event) for at, events in parts for number, event in enumerate(events)]


@pytest.fixture
def video(monkeypatch):
    """A video that shows each second another screen; the last one at 60 seconds."""

    def frames(path, times):
        assert list(times) == sorted(times)
        return [screen(int(time)) if 0 <= time <= 60 else b"" for time in times]

    for module in (agentnet_tool, openadapt):
        monkeypatch.setattr(module, "read_frames", frames)


EVENTS = timed(
    (2.05, CLICK),
    (4.5, [{"action": "move", "x": 1, "y": 2}, *key("ctrl_l", *key("C"))]),
    (6.5, [*key("a"), *key("space"), *key("b"), *key("enter")]),
    (8.5, [{"action": "scroll", **MIDDLE, "dx": 0, "dy": -1}]),
    (9.0, [{"action": "pause"}]),
    (29.0, [{"action": "resume"}]),
    (30.5, [*CLICK, *CLICK]),
    (90.0, key("esc")),
    (95.0, key("ctrl_l", *key("alt_l", *key("T")))),
)


def test_a_session_of_agentnettool(tmp_path, video):
    tool_session(tmp_path / "one", *EVENTS)
    (one,) = agentnet_tool.read_agentnet_tool([tmp_path])
    assert actions(one) == [
        "click(point='<point>0.5000 0.5000</point>')",
        "hotkey(key='ctrl c')",
        "type(content='a b\\n')",
        "scroll(point='<point>0.5000 0.5000</point>', direction='down')",
        "left_double(point='<point>0.5000 0.5000</point>')",
        "the screen before it was not kept",  # the video had ended
    ]
    # A tenth of a second before each; the video stood still during the pause of 20 seconds.
    assert seconds_shown(one) == [1, 4, 6, 8, 10, None]
    assert (one.instruction, one.split, one.facts) == ("sort it", "train", {"stopped_by": "ctrl + alt + t"})
    assert save_demonstration(one, tmp_path / "recordings")
    made = demonstration_rows(tmp_path / "recordings" / one.name, Settings(), 1)
    assert (made.trajectory.status, made.trajectory.author, made.trajectory.steps) == ("completed", "human", 6)


def test_without_the_states_of_obs_the_video_begins_when_it_was_asked_to(tmp_path, video):
    metadata = {name: value for name, value in METADATA.items() if name != "obs_record_state_timings"}
    tool_session(tmp_path / "one", *timed((2.7, CLICK)), metadata=metadata)
    (one,) = agentnet_tool.read_agentnet_tool([tmp_path])
    assert seconds_shown(one) == [3]


def test_keys_whose_signs_are_not_told_are_not_learnt_as_text(tmp_path, video):
    letter = [{**event, "pynput_key": "<84>"} for event in key("T")]
    pad = [{**event, "pynput_key": "<97>"} for event in key("1")]
    tool_session(tmp_path / "one", *timed((1, letter), (5, key("ctrl_l", *letter)), (9, pad)))
    (one,) = agentnet_tool.read_agentnet_tool([tmp_path])
    assert actions(one) == ["which sign a key typed is not told", "hotkey(key='ctrl t')", "type(content='1')"]


def test_lines_of_two_threads_are_put_in_order(tmp_path, video):
    events = timed((3, CLICK))
    tool_session(tmp_path / "one", *reversed(events))
    (one,) = agentnet_tool.read_agentnet_tool([tmp_path])
    assert actions(one) == ["click(point='<point>0.5000 0.5000</point>')"]


@pytest.mark.parametrize(
    ("event", "files", "why"),
    [
        ({"action": "click", **MIDDLE, "button": "left", "pressed": "yes"}, {}, "events.jsonl line 1: click.pressed"),
        ({"action": "click", "x": None, "y": 2, "button": "left", "pressed": True}, {}, "line 1: click.x"),
        ({"action": "swipe"}, {}, "events.jsonl line 1"),
        ({"action": "press"}, {}, "line 1: press.name"),
        (CLICK[0], {"metadata.json": {**METADATA, "screen_width": 0}}, "metadata.json: screen_width"),
        (CLICK[0], {"metadata.json": []}, "metadata.json: the whole"),
        (CLICK[0], {"task_name.json": {"task_name": None}}, "task_name.json: task_name"),
        ({"action": "move", "x": 1, "y": 2}, {}, "it has no actions"),
    ],
)
def test_a_bad_field_refuses_its_session_and_no_other(tmp_path, video, event, files, why):
    tool_session(tmp_path / "a", (1, event), **files)
    tool_session(tmp_path / "b", *EVENTS)
    bad, good = agentnet_tool.read_agentnet_tool([tmp_path])
    assert isinstance(bad, RefusedRecord)
    assert bad.where.endswith("/a")
    assert why in bad.why
    assert isinstance(good, Demonstration)


def test_a_session_has_one_video(tmp_path, video):
    tool_session(tmp_path / "a", *EVENTS)
    (tmp_path / "a" / "other.mp4").write_bytes(b"")
    (one,) = agentnet_tool.read_agentnet_tool([tmp_path])
    assert one.why == "it has 2 .mp4 files, and not one"


# openadapt-capture. The database has the columns that are read; its own schema is in tests/integration.

RECORDING = {
    "id": 1, "timestamp": ZERO, "monitor_width": 400, "monitor_height": 300, "double_click_interval_seconds": 0.5,
    "platform": "linux", "task_description": "sort it", "video_start_time": ZERO,
    "config": json.dumps({"capture_desktop": {"viewport": [800, 600], "origin": [0, 0]}}),
}  # fmt: skip


def capture(folder, *events: dict, pictures=(), recordings=1, **recording):
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "recording.db") as database:
        columns = "mouse_x, mouse_y, mouse_dx, mouse_dy, mouse_button_name, mouse_pressed, key_name, key_char, disabled"
        database.execute(f"CREATE TABLE recording ({', '.join(RECORDING)})")
        more = "id, name, timestamp, source_ordinal, screenshot_timestamp, canonical_key_name, canonical_key_char"
        database.execute(f"CREATE TABLE action_event ({more}, {columns})")
        database.execute("CREATE TABLE screenshot (timestamp, png_data)")
        for _ in range(recordings):
            row = RECORDING | recording
            database.execute(f"INSERT INTO recording VALUES ({', '.join('?' * len(row))})", [*row.values()])
        for number, event in enumerate(events, 1):
            row = {"id": number, "source_ordinal": number, **event}
            marks = ", ".join("?" * len(row))
            database.execute(f"INSERT INTO action_event ({', '.join(row)}) VALUES ({marks})", [*row.values()])
        database.executemany("INSERT INTO screenshot VALUES (?, ?)", pictures)
    (folder / "oa_recording-5000.0.mp4").write_bytes(b"video")


def keys(at: float, name: str | None, text: str | None = None, *, pressed=True) -> dict:
    return {"name": "press" if pressed else "release", "timestamp": ZERO + at, "key_name": name, "key_char": text,
            "canonical_key_name": name, "canonical_key_char": text and text.lower()}  # fmt: skip


def taps(at: float, text: str) -> list[dict]:
    return [keys(at + 0.1 * k, None, sign, pressed=down) for k, sign in enumerate(text) for down in (True, False)]


def clicks(at: float, x: float = 400, y: float = 300, **more) -> list[dict]:
    return [
        {"name": "click", "timestamp": ZERO + at + 0.05 * up, "mouse_x": x, "mouse_y": y, "mouse_button_name": "left",
         "mouse_pressed": 1 - up, **more}
        for up in (0, 1)
    ]  # fmt: skip


def turn(at: float) -> dict:
    return {"name": "scroll", "timestamp": ZERO + at, "mouse_x": 200, "mouse_y": 150, "mouse_dx": 0, "mouse_dy": -1}


CAPTURED = [
    *clicks(2.5, screenshot_timestamp=ZERO + 1.5),
    keys(3, "ctrl"), *taps(3.1, "cv"), keys(3.9, "ctrl", pressed=False),
    keys(5, "ctrl"), *clicks(5.1), keys(5.9, "ctrl", pressed=False),
    turn(7), turn(57),
    *clicks(58, disabled=1),
    *taps(59.5, "oa.stop"),
]  # fmt: skip


def test_a_capture_of_openadapt_is_read_from_its_raw_events(tmp_path, video):
    capture(tmp_path / "one", *CAPTURED)
    (one,) = openadapt.read_openadapt([tmp_path])
    assert actions(one) == [
        "click(point='<point>0.5000 0.5000</point>')",
        "hotkey(key='ctrl c')",
        "hotkey(key='ctrl v')",
        "left click at (400, 300) with ctrl held down",
        "scroll(point='<point>0.2500 0.2500</point>', direction='down')",
        "scroll(point='<point>0.2500 0.2500</point>', direction='down')",
    ]
    assert seconds_shown(one) == [1, 3, 3, 5, 6, 56]  # as the first names it; the others, a tenth of a second before
    assert (one.instruction, one.facts) == ("sort it", {"stopped_by": "o a . s t o p"})


def test_pictures_of_the_database_come_before_the_video(tmp_path):
    pictures = [(ZERO + at, screen(int(at))) for at in (1, 3.05, 4.9, 8)] + [(ZERO + 9, None)]
    capture(tmp_path / "one", *CAPTURED, pictures=pictures)
    (one,) = openadapt.read_openadapt([tmp_path])
    assert seconds_shown(one) == [1, 1, 3, 4, 4, 8]


def test_three_times_ctrl_stops_the_recorder(tmp_path, video):
    stop = [keys(9 + 0.1 * k, "ctrl", pressed=down) for k in range(3) for down in (True, False)]
    capture(tmp_path / "one", *clicks(2), *stop, {**turn(9.5), "name": "move"})
    (one,) = openadapt.read_openadapt([tmp_path])
    assert (len(one.steps), one.facts) == (1, {"stopped_by": "ctrl ctrl ctrl"})


@pytest.mark.parametrize(
    ("events", "how", "why"),
    [
        ([{**clicks(1)[0], "mouse_x": None}], {}, "action_event 1: mouse_x: a click without it"),
        ([{**clicks(1)[0], "mouse_x": "left"}], {}, "action_event 1: mouse_x: Input should be a valid number"),
        ([{**clicks(1)[0], "mouse_pressed": 2}], {}, "action_event 1: mouse_pressed"),
        ([{**clicks(1)[0], "name": "swipe"}], {}, "action_event 1: name"),
        ([{**clicks(1)[0], "timestamp": None}], {}, "action_event 1: timestamp"),
        (clicks(1), {"monitor_width": None}, "recording: monitor_width"),
        (clicks(1), {"config": '{"capture_window": {"viewport": null}}'}, "config: capture_window.viewport"),
        (clicks(1), {"config": "{"}, "Expecting"),
        (clicks(1), {"recordings": 2}, "2 recordings, and not one"),
        (clicks(1), {"video_start_time": None}, "video_start_time: it has none"),
        ([], {}, "it has no actions"),
    ],
)
def test_a_bad_row_refuses_its_capture_and_no_other(tmp_path, video, events, how, why):
    capture(tmp_path / "a", *events, **how)
    capture(tmp_path / "b", *CAPTURED)
    bad, good = openadapt.read_openadapt([tmp_path])
    assert isinstance(bad, RefusedRecord)
    assert bad.where.endswith("/a")
    assert why in bad.why
    assert isinstance(good, Demonstration)


def test_a_database_that_is_cut_off_refuses_its_capture(tmp_path, video):
    capture(tmp_path / "a", *CAPTURED)
    path = tmp_path / "a" / "recording.db"
    path.write_bytes(path.read_bytes()[:5000])
    (one,) = openadapt.read_openadapt([tmp_path])
    assert one.why.startswith("recording.db: ")


@pytest.mark.parametrize("read", [agentnet_tool.read_agentnet_tool, openadapt.read_openadapt])
def test_a_folder_without_sessions_is_bad_input(tmp_path, read):
    with pytest.raises(BadInput, match="no "):
        list(read([tmp_path]))


@pytest.mark.parametrize("read", [agentnet_tool.read_agentnet_tool, openadapt.read_openadapt, osworld.read_osworld])
def test_a_folder_that_is_missing_is_not_told_as_an_empty_one(tmp_path, read):
    with pytest.raises(BadInput, match="there is no such folder"):
        next(iter(read([tmp_path / "gone"])))
    with pytest.raises(BadInput, match=r"no (events\.jsonl|recording\.db|traj\.jsonl)"):
        next(iter(read([tmp_path])))
