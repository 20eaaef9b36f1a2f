"""The recorder keeps what a person does on an X display: each input once, with the screen before it, and no secret."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import displays
import httpx
import pytest
from PIL import Image
from processes import PATIENCE_S
from waiting import until
from Xlib import X
from Xlib.display import Display

from flywheel.config import Settings
from flywheel.recordings.ingest import ingest_session
from flywheel.recordings.recorder.recorder import (
    HIDDEN_TEXT,
    Recorder,
    RecordingOptions,
    finish_recording,
    read_events,
    read_inputs,
)
from flywheel.recordings.recorder.review_page import Decision, review_recording
from flywheel.recordings.session import load_session
from flywheel.utils.errors import BadInput, DataError

pytestmark = pytest.mark.skipif(bool(displays.MISSING), reason=f"no display without {', '.join(displays.MISSING)}")


@pytest.fixture(scope="module")
def hands(tmp_path_factory):
    with displays.display(tmp_path_factory.mktemp("display")) as opened:
        yield opened


class Deaf:
    """A recognizer that must not be asked: nothing was said."""

    name, whole = "deaf", False

    def recognize(self, samples, rate, deadline_s=60.0):
        raise AssertionError("the recognizer was asked")


def options(hands, **chosen) -> RecordingOptions:
    return RecordingOptions("Click it.", "ann", display=hands.name, speech=False, **chosen)


def heard(going: Recorder, count: int) -> None:
    until(lambda: going.stats.inputs >= count, f"{count} inputs, not {going.stats.inputs}")


def drawn(going: Recorder) -> tuple[int, int, int]:
    """The window's colour on the newest frame."""
    frame = going._screens.before(time.monotonic())
    return Image.frombytes("RGB", displays.SIZE, frame.pixels, "raw", "BGRX").getpixel((150, 100))


def click_and_see(going: Recorder, hands, count: int) -> list[tuple[int, int, int]]:
    """Click so often, each time once the recorder has seen what the click before led to; the colours before each."""
    first = drawn(going)
    clicked = next(n for n in range(100) if displays.colour(n) == first)
    for number in range(count):
        hands.click(20 + 40 * number, 50)
        until(lambda number=number: drawn(going) == displays.colour(clicked + number + 1), "the next colour")
    return [displays.colour(clicked + number) for number in range(count + 1)]


def at(session, number: int) -> tuple[int, int, int]:
    """The colour of the window on a screen of the session."""
    return Image.open(io.BytesIO(session.screens[number].bytes)).convert("RGB").getpixel((150, 100))


def test_each_action_has_the_screen_before_it(tmp_path, hands):
    folder, target = tmp_path / "one.recording", tmp_path / "one"
    with Recorder(folder, options(hands)) as going:
        colours = click_and_see(going, hands, 6)
        for name in ("h", "i", "Return"):
            hands.press(name)
        hands.press("Control_L", "s")
        hands.click(400, 300, button=5)
        heard(going, 6 * 2 + 3 * 2 + 4 + 1)
    meta = finish_recording(folder, target, done=True, answer="hi")
    session = load_session(target)
    told = [type(one.action).__name__ for one in session.actions]
    assert told == ["Click"] * 6 + ["Type", "Hotkey", "Scroll", "Finished"]
    assert session.actions[6].action.content == "hi\n"
    assert session.actions[7].action.keys == ("ctrl", "s")
    assert [at(session, one.screen) for one in session.actions] == [*colours, *[colours[-1]] * 3]
    assert meta.outcome.reward == 1.0
    assert session.actions[-1].action.content == "hi"
    assert session.task.instruction == "Click it."
    assert session.task.verifier == ""
    taken_in = ingest_session(target, Deaf(), Settings(), 1)
    assert taken_in.trajectory.status == "completed"
    assert [step.action_type for step in taken_in.steps] == ["click"] * 6 + ["type", "hotkey", "scroll", "finished"]
    times = [moment for step in taken_in.steps for moment in (step.started_at, step.ended_at)]
    assert times == sorted(times)


def test_what_is_hidden_paused_or_excluded_is_never_written(tmp_path, hands):
    folder = tmp_path / "two.recording"
    secret = threading.Event()
    with Recorder(folder, options(hands), hidden=lambda *span: (secret.is_set(), [])) as going:
        hands.press("a")
        secret_inputs = 2
        heard(going, secret_inputs)
        secret.set()
        for name in ("x", "y", "z", "BackSpace"):
            hands.press(name)
        until(lambda: going.stats.hidden >= 8, "the hidden keys")
        secret.clear()
        hands.press("Control_L", "Shift_L", "F9")
        until(lambda: going.stats.paused, "the pause")
        hands.press("q")
        hands.press("Control_L", "Shift_L", "F9")
        until(lambda: not going.stats.paused, "the end of the pause")
        hands.press("b")
        until(lambda: any(one.key == "b" for one in _written(going)), "the last key")
    inputs = read_inputs(folder)
    assert [one.text for one in inputs if one.kind == "key_down" and one.text] == ["a", HIDDEN_TEXT, "b"]
    assert not {"x", "y", "z", "q"} & {one.key for one in inputs}
    text = (folder / "input.jsonl").read_text()
    assert re.findall(r'"text": "[xyzq]"', text) == []


def test_nothing_goes_on_over_a_pause_or_a_click(tmp_path, hands):
    with Recorder(tmp_path / "gap.recording", options(hands), lambda *span: (True, [])) as going:
        hands.press("x")
        hands.press("Control_L", "Shift_L", "F9")
        hands.press("q")
        hands.press("Control_L", "Shift_L", "F9")
        hands.press("y")
        hands.click(20, 50)
        hands.press("z")
    told = [(one.kind, one.text) for one in read_events(going.folder)]
    assert told == [("type", HIDDEN_TEXT), ("type", HIDDEN_TEXT), ("click", ""), ("type", HIDDEN_TEXT)]


def texts(going: Recorder) -> list[str]:
    return [one.text for one in _written(going) if one.kind == "key_down" and one.text]


def test_what_is_typed_before_a_password_field_is_told_of_is_not_kept(tmp_path, hands):
    told: list[tuple[float, float]] = []
    with Recorder(tmp_path / "told.recording", options(hands), lambda *span: (False, told)) as going:
        hands.press("a")
        heard(going, 2)  # long before
        hands.press("Tab")
        for name in ("x", "y", "z"):
            hands.press(name)
        told.append((time.monotonic(), time.monotonic()))
        until(lambda: going.stats.hidden >= 6, "the hidden keys")
    assert texts(going) == ["a", HIDDEN_TEXT]


def test_a_command_is_kept_where_text_is_not(tmp_path, hands):
    with Recorder(tmp_path / "command.recording", options(hands), lambda *span: (True, [])) as going:
        for names in (("s",), ("e",), ("Control_L", "s"), ("t",), ("Control_L", "Left"), ("Control_L", "Alt_L", "q")):
            hands.press(*names)
        hands.press("Alt_L", "F4")
        hands.press("F5")
    told = [(one.kind, one.text or one.key) for one in read_events(going.folder)]
    hidden = ("type", HIDDEN_TEXT)
    assert told == [hidden, ("key", "ctrl s"), hidden, ("key", "alt f4"), ("key", "f5")]
    assert '"q"' not in (going.folder / "input.jsonl").read_text()


@pytest.mark.skipif(not shutil.which("setxkbmap"), reason="no AltGr without setxkbmap")
def test_text_with_shift_and_altgr_is_one_text_however_fast(tmp_path):
    (tmp_path / "display").mkdir()
    with displays.display(tmp_path / "display") as own:
        subprocess.run(["setxkbmap", "-display", own.name, "de"], check=True)
        with Recorder(tmp_path / "fast.recording", options(own), lambda *span: (False, [])) as going:
            level = Display(own.name).keysym_to_keycode(0xFE03)  # AltGr
            for names in (("Shift_L", "a"), ("Shift_L", "b"), ("c",), (level, "q"), ("Shift_L", "d")):
                own.press(*names)
            heard(going, 18)
    assert [(one.kind, one.text) for one in read_events(going.folder)] == [("type", "ABc@D")]


@pytest.mark.skipif(not shutil.which("xrandr"), reason="no other size without xrandr")
def test_places_are_those_of_the_screen_that_was_shown(tmp_path):
    (tmp_path / "display").mkdir()
    with displays.display(tmp_path / "display") as own, Recorder(tmp_path / "size.recording", options(own)) as going:
        own.click(160, 120)
        subprocess.run(["xrandr", "-display", own.name, "-s", "800x600"], check=True)
        until(lambda: going._screens.before(time.monotonic()).width == 800, "the other size")
        own.click(240, 150)
        own.click(600, 540)
        heard(going, 6)
    places = [(one.x, one.y) for one in read_events(going.folder)]
    assert places == [pytest.approx(place, abs=0.002) for place in ((0.25, 0.25), (0.3, 0.25), (0.75, 0.9))]


def test_an_excluded_window_is_black_and_its_keys_are_gone(tmp_path, hands):
    own = Display(hands.name)
    root = own.screen().root
    with Recorder(tmp_path / "vault.recording", options(hands, excluded=("vault",))) as going:
        vault = root.create_window(320, 240, 100, 100, 0, X.CopyFromParent, override_redirect=1,
                                   background_pixel=0xFF00FE, event_mask=X.FocusChangeMask)  # fmt: skip
        vault.set_wm_class("vault", "Vault")
        vault.map()
        own.sync()
        vault.set_input_focus(X.RevertToPointerRoot, X.CurrentTime)
        own.sync()
        for name in ("s", "e"):
            hands.press(name)
        own.set_input_focus(X.PointerRoot, X.RevertToPointerRoot, X.CurrentTime)
        vault.unmap()
        own.sync()
        hands.click(20, 50)
        until(lambda: going.stats.excluded >= 4, "the keys that are left out")
    inputs = read_inputs(going.folder)
    assert not [one for one in inputs if one.kind.startswith("key")]
    for path in (going.folder / "screens").glob("*.png"):
        assert (255, 0, 254) not in {colour for _, colour in Image.open(path).convert("RGB").getcolors(1 << 24)}


@pytest.mark.skipif(not shutil.which("setxkbmap"), reason="no layouts without setxkbmap")
def test_another_layout_is_read_from_when_it_was_chosen(tmp_path):
    (tmp_path / "display").mkdir()
    with displays.display(tmp_path / "display") as own, Recorder(tmp_path / "keys.recording", options(own)) as going:
        code = Display(own.name).keysym_to_keycode(ord("z"))
        for layout in ("us", "de"):
            subprocess.run(["setxkbmap", "-display", own.name, layout], check=True)
            own.press(code)
        heard(going, 4)
    assert texts(going) == ["z", "y"]


def _written(going: Recorder) -> list:
    if not going._inputs.closed:
        going._inputs.flush()
    return read_inputs(going.folder)


def test_a_killed_recorder_leaves_what_was_done(tmp_path, hands):
    script = (
        "import sys; from pathlib import Path; from flywheel.recordings.recorder.recorder import *\n"
        f"with Recorder(Path({str(tmp_path / 'three.recording')!r}), "
        f"RecordingOptions('Go.', 'ann', display={hands.name!r}, speech=False)) as going:\n"
        "    print('ready', flush=True); going.wait()"
    )
    killed = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert killed.stdout.readline() == "ready\n"
    for number in range(3):
        hands.click(20 + 40 * number, 50)
    path = tmp_path / "three.recording" / "input.jsonl"
    until(lambda: path.read_text().count("release") == 3, "three clicks on the disk")
    killed.kill()
    killed.wait(PATIENCE_S)
    with path.open("a") as file:
        file.write('{"time_s": 9.9, "ki')
    finish_recording(path.parent, tmp_path / "three", done=False)
    session = load_session(tmp_path / "three")
    assert [type(one.action).__name__ for one in session.actions] == ["Click"] * 3 + ["Finished"]
    assert session.meta.outcome.reward == 0.0


def test_a_display_that_goes_away_ends_the_recording_and_keeps_it(tmp_path):
    (tmp_path / "display").mkdir()
    folder = tmp_path / "four.recording"
    with displays.display(tmp_path / "display") as own:
        going = Recorder(folder, options(own))
        going.__enter__()
        own.click(50, 50)
        heard(going, 2)
    assert "no longer answers" in going.wait(PATIENCE_S)
    going.__exit__()
    assert json.loads((folder / "end.json").read_text())["lost"]
    finish_recording(folder, tmp_path / "four", done=True)
    assert len(load_session(tmp_path / "four").actions) == 2


def test_what_cannot_be_written_ends_the_recording_and_nobody_waits_for_it(tmp_path, hands):
    folder = tmp_path / "six.recording"
    with Recorder(folder, options(hands)) as going:
        shutil.rmtree(folder / "screens")
        for number in range(40):
            hands.click(20 + 5 * number, 50)
        assert "a screen cannot be written" in going.wait(PATIENCE_S)
    assert json.loads((folder / "end.json").read_text())["lost"]


def test_a_person_looks_through_cuts_and_decides(tmp_path, hands):
    folder = tmp_path / "five.recording"
    with Recorder(folder, options(hands)) as going:
        click_and_see(going, hands, 4)
        heard(going, 8)

    async def look() -> Decision:
        told = asyncio.get_running_loop().create_future()
        page = asyncio.create_task(review_recording(folder, 0, told.set_result))
        async with httpx.AsyncClient(base_url=await told, timeout=PATIENCE_S) as client:
            assert "Look through" in (await client.get("")).text
            found = (await client.get("recording")).json()
            assert [one["kind"] for one in found["events"]] == ["click"] * 4
            assert (await client.get(f"screens/{found['events'][0]['screen']}")).content[:4] == b"\x89PNG"
            root = httpx.URL(str(client.base_url)).copy_with(path="/recording")
            assert (await client.get(root)).status_code == 404
            assert (await client.post("decision", content=b"{}")).status_code == 400
            edges = [one["at"] for one in found["events"]]
            said = {"keep": True, "done": True, "answer": "", "cut": [[edges[1] - 0.001, edges[3] - 0.001]]}
            await client.post("decision", json=said)
            return await page

    decision = asyncio.run(look())
    assert decision.keep
    assert decision.done
    finish_recording(folder, tmp_path / "five", done=True, cut=decision.cut)
    session = load_session(tmp_path / "five")
    places = [round(one.action.point.x * displays.SIZE[0]) for one in session.actions[:-1]]
    assert places == [20, 140]
    assert len(session.screens) == 3


def test_what_is_missing_is_told_before_anything_is_written(tmp_path, hands):
    with pytest.raises(BadInput, match="no X display answers"):
        Recorder(tmp_path / "none.recording", RecordingOptions("Go.", "ann", display=":987")).__enter__()
    assert not (tmp_path / "none.recording").exists()
    (tmp_path / "empty.recording").mkdir()
    with pytest.raises(BadInput, match="no recording"):
        finish_recording(tmp_path / "empty.recording", tmp_path / "empty", done=True)
    with Recorder(tmp_path / "still.recording", options(hands)):
        pass
    with pytest.raises(DataError, match="nothing was done"):
        finish_recording(tmp_path / "still.recording", tmp_path / "still", done=True)


NO_BUS = [name for name in ("dbus-run-session", "galculator", "openbox") if not shutil.which(name)]
_ELEMENTS = """
import subprocess, sys, time
from Xlib import X
from Xlib.display import Display
from Xlib.ext import xtest
from flywheel.recordings.recorder.accessibility import ElementWatch
with ElementWatch() as elements:
    program = subprocess.Popen(["galculator"])
    found, until = set(), time.monotonic() + 60
    while not {"7", "8"} <= found and time.monotonic() < until:
        found = {elements.label(x, y) for x in range(10, 640, 30) for y in range(10, 480, 30)}
    known = elements.in_password_field(0.0, time.monotonic() - 0.1, time.monotonic(), program.pid)
    x, y = next((x, y) for y in range(5, 480, 5) for x in range(10, 640, 10) if elements.label(x, y) == "Edit")
    display = Display()
    beneath = item = elements.label(x, y + 45)
    for kind, detail, at in ((X.MotionNotify, 0, y), (X.ButtonPress, 1, y), (X.ButtonRelease, 1, y),
                             (X.MotionNotify, 0, y + 44), (X.MotionNotify, 0, y + 45)):
        xtest.fake_input(display, kind, detail, x=x, y=at)
        display.sync()
        time.sleep(0.3)
    while item == beneath and time.monotonic() < until:
        item = elements.label(x, y + 45)
    print("item", item)
    print(sorted(found), known)
    program.kill()
"""


@pytest.mark.skipif(bool(NO_BUS), reason=f"no accessibility without {', '.join(NO_BUS)}")
def test_elements_have_the_names_that_their_application_gives_them(hands):
    environment = {
        "DISPLAY": hands.name,
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "GSETTINGS_BACKEND": "memory",
    }
    ran = subprocess.run(
        ["dbus-run-session", "--", sys.executable, "-c", _ELEMENTS],
        env=environment | {"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert "'7', '8', '9'" in ran.stdout, ran.stderr
    assert "(False, [])" in ran.stdout
    assert re.search(r"^item (Cut|Copy|Paste|Preferences)", ran.stdout, re.M), "an open menu lies over its window"


def test_the_command_records_until_it_is_stopped(tmp_path, hands):
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    words = ["Press it.", "--annotator", "ben", "--to", str(tmp_path), "--display", hands.name, "--no-speech", "--yes"]
    command = subprocess.Popen(
        [sys.executable, "-m", "flywheel", "record", *words],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert "recording into" in command.stdout.readline()
    hands.click(60, 60)
    hands.press("p")
    (folder,) = tmp_path.glob("*.recording")
    until(lambda: HIDDEN_TEXT in (folder / "input.jsonl").read_text(), "the key on the disk")
    command.send_signal(signal.SIGINT)
    told, warned = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 0, warned
    assert "nothing that is typed is kept" in warned
    assert "1 stretch of hidden typing" in told
    assert "once it lies in recording.folder" in told
    (session,) = [path for path in tmp_path.iterdir() if (path / "session.json").is_file()]
    actions = [one.action for one in load_session(session).actions]
    assert [type(one).__name__ for one in actions] == ["Click", "Type", "Finished"]
    assert actions[1].content == HIDDEN_TEXT


def test_what_is_typed_where_the_focus_went_on_at_once_is_not_kept(tmp_path, hands):
    with Recorder(tmp_path / "passing.recording", options(hands), lambda *span: (False, [])) as going:
        hands.press("a")
        heard(going, 2)
        for name in ("Tab", "x", "y", "Tab"):  # no application tells of a focus so short
            hands.press(name)
        heard(going, 2 + 2 * 2 + 1)
        hands.press("b")
    assert texts(going) == ["a", HIDDEN_TEXT, "b"]
