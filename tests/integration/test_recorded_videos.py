"""Screens come out of real videos, and a capture out of what openadapt-capture itself writes where it is installed."""

from __future__ import annotations

import io
import json
import struct
from fractions import Fraction
from uuid import UUID

import pytest
from PIL import Image

from flywheel.store.interop import openadapt
from flywheel.store.interop.video import read_frames
from flywheel.utils.errors import BadInput

COLOURS = ("red", "green", "blue", "white")


def write_video(path, rate=10, frames=40):
    """A video whose colour changes each second."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as video:
        stream = video.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.time_base = 64, 48, Fraction(1, rate)
        for number in range(frames):
            picture = Image.new("RGB", (64, 48), COLOURS[number // rate % 4])
            frame = av.VideoFrame.from_image(picture)
            frame.pts = number
            video.mux(stream.encode(frame))
        video.mux(stream.encode())


def colour(png: bytes) -> str | None:
    if not png:
        return None
    near = Image.open(io.BytesIO(png)).convert("RGB").getpixel((20, 20))
    known = {name: Image.new("RGB", (1, 1), name).getpixel((0, 0)) for name in COLOURS}
    return min(known, key=lambda name: sum(abs(a - b) for a, b in zip(near, known[name], strict=True)))


def test_a_frame_is_the_one_shown_at_its_time(tmp_path):
    write_video(tmp_path / "v.mp4")
    shown = read_frames(tmp_path / "v.mp4", [-1.0, 0.0, 0.95, 1.0, 1.05, 2.5, 3.95, 4.5, 60.0])
    assert [*map(colour, shown)] == [None, "red", "red", "green", "green", "blue", "white", "white", None]


@pytest.mark.parametrize("content", [b"", b"none", b"\x00\x00\x00\x18ftypmp42" + b"\x00" * 400])
def test_a_file_that_is_no_video_is_told(tmp_path, content):
    pytest.importorskip("av")
    (tmp_path / "v.mp4").write_bytes(content)
    with pytest.raises(ValueError, match=r"v\.mp4 is not a whole video"):
        read_frames(tmp_path / "v.mp4", [0.0])


def test_without_pyav_it_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(BadInput, match="PyAV") as told:
        read_frames(tmp_path / "v.mp4", [0.0])
    assert told.value.fix == "pip install 'flywheel[video]'"


def test_a_capture_of_the_package_itself(tmp_path):
    """The database by its own schema and functions, the times of frames in a box of the video as its recorder has."""
    db = pytest.importorskip("openadapt_capture.db")
    crud = pytest.importorskip("openadapt_capture.db.crud")
    zero = 1_750_000_000.125
    engine, sessions = db.create_db(str(tmp_path / "recording.db"))
    with sessions() as session:
        desktop = {"capture_desktop": {"origin": [0, 0], "viewport": [800, 600]}}
        told = {"timestamp": zero, "monitor_width": 800, "monitor_height": 600, "platform": "linux", "config": desktop,
                "task_description": "copy it", "double_click_interval_seconds": 0.5}  # fmt: skip
        recording = crud.insert_recording(session, told)
        crud.update_video_start_time(session, recording, zero)
        rows: list[dict] = []

        def act(at: float, frame: float, **row) -> None:
            row |= {"source_ordinal": len(rows) + 1, "screenshot_timestamp": zero + frame}
            rows.append(row)
            crud.insert_action_event(session, recording, zero + at, dict(row))

        def press(at: float, frame: float, name: str, row: dict) -> None:
            act(at, frame, name=name, canonical_key_name=row.get("key_name"), canonical_key_char=row.get("key_char"),
                **row)  # fmt: skip

        click = {"name": "click", "mouse_x": 400, "mouse_y": 300, "mouse_button_name": "left"}
        act(5.5, 5.0, **click, mouse_pressed=True)
        act(5.6, 5.0, **click, mouse_pressed=False)
        press(6.5, 6.0, "press", {"key_name": "ctrl"})
        for number, letter in enumerate("cv"):
            press(6.6 + 0.2 * number, 6.0, "press", {"key_char": letter})
            press(6.7 + 0.2 * number, 6.0, "release", {"key_char": letter})
        press(7.1, 7.0, "release", {"key_name": "ctrl"})
        for at in (7.5, 67.5):
            act(at, 7.0, name="scroll", mouse_x=0, mouse_y=599, mouse_dx=0, mouse_dy=1)
        session.commit()
    engine.dispose()
    write_video(tmp_path / "oa_recording-1.mp4")
    timing = {"schema": "openadapt.capture-video-timing/v1", "fps": "10/1", "frames": [],
              "captures": [[10 * k, zero + 5 + k] for k in range(4)]}  # fmt: skip
    box = json.dumps(timing).encode()
    with (tmp_path / "oa_recording-1.mp4").open("ab") as file:
        box_id = UUID("d8e90f06-20b4-4e0c-b449-4f70656e4164").bytes
        file.write(struct.pack(">I4s16s", 24 + len(box), b"uuid", box_id) + box)
    (one,) = openadapt.read_openadapt([tmp_path])
    assert [step.fault or step.action for step in one.steps] == [
        "click(point='<point>0.5000 0.5000</point>')",
        "hotkey(key='ctrl c')",
        "hotkey(key='ctrl v')",
        "scroll(point='<point>0.0000 0.9983</point>', direction='up')",
        "scroll(point='<point>0.0000 0.9983</point>', direction='up')",
    ]
    assert [colour(one.screens[step.screen]) for step in one.steps] == ["red", "green", "green", "blue", "blue"]
