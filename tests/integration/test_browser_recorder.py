"""The recorder of a browser keeps what a person does on real pages, each input with the screen before it, no secret."""

from __future__ import annotations

import asyncio
import io
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import displays
import pytest
from PIL import Image
from processes import PATIENCE_S
from small_site import small_site
from waiting import until

from flywheel.config import SandboxSettings, Settings
from flywheel.envs.browser.driver import chromium
from flywheel.recordings.ingest import ingest_session
from flywheel.recordings.recorder.browser_recorder import BrowserRecorder
from flywheel.recordings.recorder.gestures import HIDDEN_TEXT
from flywheel.recordings.recorder.recorder import RecordingOptions, finish_recording, read_events
from flywheel.recordings.session import load_session
from flywheel.utils.errors import BadInput

SIZE = (640, 480)
PAGES = {
    "colours": """<body><script>let n = 0; const paint = () => { const v = (n * 2654435761) >>> 0 & 0xffffff;
        document.body.style.background = '#' + v.toString(16).padStart(6, '0'); document.title = n; };
        addEventListener('pointerdown', () => { n++; paint(); }); paint();</script>""",
    "parts": """<style>body > * { position: absolute }
        iframe { border: 5px solid; padding: 3px; width: 200px; height: 90px }</style>
        <open-one style="left:10px;top:10px"></open-one> <shut-one style="left:110px;top:10px"></shut-one>
        <canvas style="left:210px;top:10px" width=90 height=30></canvas>
        <iframe style="left:10px;top:100px" src="inner"></iframe>
        <iframe style="left:10px;top:220px" src="http://localhost:PORT/inner"></iframe>
        <script>
        const shadow = (name, mode, inner) => document.querySelector(name).attachShadow({mode}).innerHTML =
            `<style>button, input { display: block; width: 90px; height: 30px; padding: 0 }</style>${inner}`;
        shadow('open-one', 'open', '<button aria-label="Open it">x</button>');
        shadow('shut-one', 'closed', '<button>Shut it</button><input type=password aria-label=Phrase>');</script>""",
    "inner": "<body style='margin:0'><button style='position:absolute;left:100px;top:20px'>Within</button>",
    "secrets": """<style>input { display: block; width: 200px; height: 30px; margin: 4px }</style>
        <input id=a aria-label=Name><input id=b type=password aria-label=Word>
        <input id=c autocomplete='section-a cc-number'>
        <input id=d autocomplete=one-time-code><button onclick="b.type = 'text'">Show</button>""",
    "forms": """<select id=s><option>One<option>Two<option>Three</select><input id=f type=file>
        <button onclick="document.title = prompt('Who?')">Ask</button>
        <form action=colours><input id=q name=q></form><a href=inner target=_blank>New</a>""",
    "shop": "<title>Shop</title><input id=a aria-label=Item><iframe src='http://localhost:PORT/inner'></iframe>",
}


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with small_site(PAGES) as address:
        yield address


class Deaf:
    """A recognizer that must not be asked: nothing was said."""

    name, whole = "deaf", False

    def recognize(self, samples, rate, deadline_s=60.0):
        raise AssertionError("the recognizer was asked")


def options(**chosen) -> RecordingOptions:
    return RecordingOptions("Do it.", "ann", speech=False, **chosen)


@contextmanager
def recorded(folder, url: str, **chosen) -> Iterator[BrowserRecorder]:
    executable = chromium.find_chromium(SandboxSettings())
    with BrowserRecorder(folder, options(**chosen), url, executable, headless=True, sandbox=False, size=SIZE) as going:
        until(lambda: going._tabs[0].frames and going._tabs[0].frames[-1].url == url, "the first screen")
        yield going


def heard(going: BrowserRecorder, count: int) -> None:
    until(lambda: going.stats.inputs >= count, f"{count} inputs, not {going.stats.inputs}")


def settled(going: BrowserRecorder) -> None:
    """Wait until all input so far is written, and the screen that it led to is held."""
    until(going._heard.empty, "the last input")
    until(lambda: not any(one.get_name() == "_open_shadow" for one in going._tasks), "what lies in closed roots")
    number = len(going._tabs)
    going.call(going._look(going._active or going._tabs[number - 1]))


def told(folder) -> list[tuple[str, str]]:
    return [(one.kind, one.key or one.text) for one in read_events(folder)]


def everything(folder) -> str:
    return "".join(path.read_text() for path in folder.rglob("*.json*"))


def test_each_action_has_the_screen_before_it(tmp_path, site):
    folder, target = tmp_path / "one.recording", tmp_path / "one"
    with recorded(folder, f"{site}colours") as going:
        (page,) = going.pages
        for number in range(8):
            going.call(page.mouse.click(20 + 40 * number, 300))
            settled(going)
        going.call(page.keyboard.type("hi"))
        going.call(page.keyboard.press("Enter"))
        going.call(page.keyboard.press("Control+s"))
        going.call(page.mouse.wheel(0, 300))
        going.call(page.mouse.click(100, 100, click_count=2))
        going.call(page.mouse.click(100, 200, button="right"))
        going.call(page.mouse.move(50, 50))
        going.call(page.mouse.down())
        going.call(page.mouse.move(200, 150))
        going.call(page.mouse.up())
        settled(going)
    finish_recording(folder, target, done=True, answer="hi")
    session = load_session(target)
    kinds = [type(one.action).__name__ for one in session.actions]
    rest = ["Type", "Hotkey", "Scroll", "LeftDouble", "RightSingle", "Drag", "Finished"]
    assert kinds == ["Click"] * 8 + rest
    seen = [Image.open(io.BytesIO(session.screens[one.screen].bytes)) for one in session.actions[:8]]
    colours = [one.convert("RGB").getpixel((600, 20)) for one in seen]
    assert colours == [displays.colour(number) for number in range(8)]
    assert seen[0].size == SIZE
    assert [round(one.action.point.x * SIZE[0]) for one in session.actions[:8]] == list(range(20, 340, 40))
    assert session.actions[8].action.content == "hi\n"
    assert session.actions[9].action.keys == ("ctrl", "s")
    assert session.task.params == {"url": f"{site}colours"}
    taken_in = ingest_session(target, Deaf(), Settings(), 1)
    assert taken_in.trajectory.status == "completed"
    assert len(taken_in.steps) == len(kinds)


def test_elements_have_names_in_shadows_and_frames_and_a_canvas_has_none(tmp_path, site):
    folder = tmp_path / "two.recording"
    with recorded(folder, f"{site}parts") as going:
        (page,) = going.pages
        until(lambda: sum(len(one.contexts) > 0 for one in going._tabs[0].targets) == 2, "the frame of another site")
        places = [(55, 25), (155, 25), (255, 25), (10 + 8 + 110, 100 + 8 + 30), (10 + 8 + 110, 220 + 8 + 30)]
        for x, y in places:
            going.call(page.mouse.move(x, y))
            settled(going)  # as a hand is slow; the name is asked for as the pointer comes
            going.call(page.mouse.click(x, y))
            settled(going)
        going.call(page.mouse.click(155, 55))
        going.call(page.keyboard.type("sesame"))
        settled(going)
    events = read_events(folder)
    assert [one.text for one in events] == [
        "Open it (button)", "Shut it (button)", "canvas, without a label", "Within (button)", "Within (button)",
        "Phrase (textbox)", HIDDEN_TEXT,
    ]  # fmt: skip
    at = [(round(one.x * SIZE[0]), round(one.y * SIZE[1])) for one in events[:5]]
    assert all(abs(x - a) <= 1 and abs(y - b) <= 1 for (x, y), (a, b) in zip(at, places, strict=True)), at
    assert "sesame" not in everything(folder)


def test_no_secret_is_stored_neither_as_text_nor_on_a_screen(tmp_path, site):
    folder = tmp_path / "three.recording"
    with recorded(folder, f"{site}secrets") as going:
        (page,) = going.pages
        session = going._tabs[0].targets[0].session
        for field, typed in (("#a", "Eve"), ("#b", "hunter2"), ("#c", "visa4111"), ("#d", "pin 987654")):
            going.call(page.click(field))
            going.call(page.keyboard.type(typed))
            settled(going)
        going.call(page.click("button"))
        going.call(page.click("#b"))
        going.call(page.keyboard.type("shown3"))
        going.call(page.click("#a"))
        going.call(session.send("Input.imeSetComposition", {"text": "に", "selectionStart": 1, "selectionEnd": 1}))
        going.call(session.send("Input.imeSetComposition", {"text": "日本", "selectionStart": 2, "selectionEnd": 2}))
        going.call(session.send("Input.insertText", {"text": "日本語"}))
        going.call(session.send("Input.insertText", {"text": "!"}))
        settled(going)
        masked = Image.open(io.BytesIO(going._tabs[0].frames[-1].png()))
    typed = [one.text for one in read_events(folder) if one.kind == "type"]
    assert typed == ["Eve", *[HIDDEN_TEXT] * 4, "日本語!"]
    assert not any(word in everything(folder) for word in ("hunter2", "visa4111", "pin 987654", "shown3", '"h"', '"8"'))
    centres = {field: (100, 8 + 4 + 15 + number * 34) for number, field in enumerate("abcd")}
    assert {field: masked.convert("RGB").getpixel(at) == (0, 0, 0) for field, at in centres.items()} == {
        "a": False, "b": True, "c": True, "d": True,
    }  # fmt: skip


def test_lists_files_dialogs_tabs_and_the_browsers_own_bar(tmp_path, site):
    folder = tmp_path / "four.recording"
    (tmp_path / "report.pdf").write_bytes(b"x")
    with recorded(folder, f"{site}forms") as going:
        (page,) = going.pages
        session = going._tabs[0].targets[0].session
        going.call(page.focus("#s"))
        going.call(page.keyboard.type("Th"))
        node = going.call(session.send("Runtime.evaluate", {"expression": "document.querySelector('#f')"}))["result"]
        files = {"files": [str(tmp_path / "report.pdf")], "objectId": node["objectId"]}
        going.call(session.send("DOM.setFileInputFiles", files))
        settled(going)
        clicked = asyncio.run_coroutine_threadsafe(page.click("button"), going._loop)
        answer = {"accept": True, "promptText": "Eve"}

        def answered() -> bool:
            try:
                going.call(session.send("Page.handleJavaScriptDialog", answer))
            except Exception:
                return False
            return True

        until(answered, "the dialog")
        clicked.result(PATIENCE_S)
        going.call(page.click("#q"))
        going.call(page.keyboard.type("one"))
        going.call(page.keyboard.press("Enter"))
        going.call(page.wait_for_url("**/colours*"))
        going.call(page.keyboard.type("two"))  # goes on over a page that came in between
        settled(going)
        going._acted_s = 0.0  # as after a while: what the browser does is not what the last key led to
        going.call(page.go_back())
        going.call(page.click("a"))
        until(lambda: len(going.pages) == 2 and going._tabs[1].frames, "the other tab")
        other = going.pages[1]
        going.call(other.click("button"))
        settled(going)
        going.call(page.mouse.click(600, 400))
        settled(going)
        going.call(page.goto(f"{site}inner"))
        settled(going)
        going._acted_s = 0.0
        going.call(page.close())
        settled(going)
    assert not going.stats.notes
    assert told(folder) == [
        ("type", "Th"), ("type", "report.pdf"), ("key", "Enter"), ("click", "Ask (button)"), ("type", "Eve"),
        ("key", "Enter"), ("click", "textbox"), ("type", "one"), ("key", "Enter"), ("type", "two"), ("back", ""),
        ("click", "New (link)"), ("click", "Within (button)"), ("key", "ctrl 1"), ("click", ""),
        ("navigate", f"{site}inner"), ("key", "ctrl w"),
    ]  # fmt: skip
    finish_recording(folder, tmp_path / "four", done=True)
    assert len(load_session(tmp_path / "four").actions) == 15


def test_a_list_is_opened_by_a_click_and_a_key_without_a_name_types(tmp_path, site):
    folder = tmp_path / "list.recording"
    with recorded(folder, f"{site}forms") as going:
        (page,) = going.pages
        session = going._tabs[0].targets[0].session
        box = going.call(page.locator("#s").bounding_box())
        place = {"x": box["x"] + 5, "y": box["y"] + 5, "button": "left", "clickCount": 1}
        going.call(
            session.send("Input.dispatchMouseEvent", {"type": "mousePressed", **place})
        )  # the list keeps the rest
        settled(going)
        going.call(page.keyboard.press("Escape"))
        going.call(page.focus("#q"))
        unnamed = {"key": "\0", "code": "KeyZ", "text": "ö"}
        for kind in ("keyDown", "keyUp"):
            going.call(session.send("Input.dispatchKeyEvent", {"type": kind, **unnamed}))
        settled(going)
        assert going.call(page.input_value("#q")) == "ö"
    kinds = told(folder)
    assert kinds[0][0] == "click"
    assert kinds[-1] == ("type", "ö")


def test_what_is_excluded_or_paused_is_never_written(tmp_path, site):
    folder = tmp_path / "five.recording"
    with recorded(folder, f"{site}shop", excluded=("local*",)) as going:
        (page,) = going.pages
        going.call(page.click("#a"))
        going.call(page.keyboard.type("a"))
        going.call(page.frames[1].click("button"))
        going.call(page.keyboard.type("q"))
        until(lambda: going.stats.excluded >= 4, "the inputs that are left out")
        settled(going)
        frame = going._tabs[0].frames[-1]
        assert len(frame.boxes) == 1
        going.call(page.goto(site.replace("127.0.0.1", "localhost") + "shop"))
        held = len(going._tabs[0].frames)
        going.call(page.keyboard.type("q"))
        going.call(page.goto(f"{site}shop"))
        assert len(going._tabs[0].frames) - held <= 1
        going.call(page.keyboard.press("Control+Shift+F9"))
        until(lambda: going.stats.paused, "the pause")
        going.call(page.click("#a"))
        going.call(page.keyboard.type("q"))
        going.call(page.keyboard.press("Control+Shift+F9"))
        until(lambda: not going.stats.paused, "the end of the pause")
        going.call(page.keyboard.type("b"))
        settled(going)
        going.call(page.keyboard.press("Control+Shift+F10"))
        assert going.wait(PATIENCE_S) == "it was stopped"
    assert [text for kind, text in told(folder) if kind == "type"] == ["a", "b"]
    assert '"q"' not in everything(folder)
    assert "localhost" not in everything(folder)


def test_a_killed_recorder_leaves_what_was_done(tmp_path, site):
    folder = tmp_path / "six.recording"
    script = f"""
import sys; from pathlib import Path
sys.path.insert(0, {str(sys.path[0])!r})
from flywheel.config import SandboxSettings
from flywheel.envs.browser.driver import chromium
from flywheel.recordings.recorder.browser_recorder import BrowserRecorder
from flywheel.recordings.recorder.recorder import RecordingOptions
with BrowserRecorder(Path({str(folder)!r}), RecordingOptions("Go.", "ann", speech=False), {site + "colours"!r},
                     chromium.find_chromium(SandboxSettings()), headless=True, sandbox=False) as going:
    for number in range(3):
        while not going._tabs[0].frames: going.wait(0.1)
        going.call(going.pages[0].mouse.click(50 + 50 * number, 50))
    print("done", flush=True); going.wait()
"""
    killed = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert killed.stdout.readline() == "done\n"
    path = folder / "input.jsonl"
    until(lambda: path.read_text().count("release") == 3, "three clicks on the disk")
    killed.kill()
    killed.wait(PATIENCE_S)
    finish_recording(folder, tmp_path / "six", done=False)
    kinds = [type(one.action).__name__ for one in load_session(tmp_path / "six").actions]
    assert kinds == ["Click"] * 3 + ["Finished"]


def test_a_browser_that_is_closed_or_cannot_be_opened_is_told(tmp_path, site):
    with recorded(tmp_path / "seven.recording", f"{site}forms") as going:
        going.call(going.pages[0].click("#q"))
        heard(going, 2)
        asyncio.run_coroutine_threadsafe(going._browser.close(), going._loop)
        assert going.wait(PATIENCE_S) in ("the browser was closed", "the last tab was closed")
    finish_recording(tmp_path / "seven.recording", tmp_path / "seven", done=True)
    with pytest.raises(BadInput, match="cannot be opened"), recorded(tmp_path / "eight", "http://127.0.0.1:9/"):
        pass


@pytest.mark.skipif(bool(displays.MISSING), reason=f"no display without {', '.join(displays.MISSING)}")
def test_the_command_records_a_window_until_it_is_stopped(tmp_path, site):
    with displays.display(tmp_path) as hands:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
        words = ["Press it.", "--browser", f"{site}colours", "--annotator", "ben", "--to", str(tmp_path), "--no-speech"]
        command = subprocess.Popen(
            [sys.executable, "-m", "flywheel", "record", *words, "--display", hands.name, "--yes"],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        said = command.stdout.readline()
        assert "recording into" in said, command.communicate(timeout=PATIENCE_S)
        (folder,) = tmp_path.glob("*.recording")

        def clicked() -> bool:
            hands.click(400, 300)
            return "release" in (folder / "input.jsonl").read_text()

        until(clicked, "a click on the disk")
        hands.press("p")
        until(lambda: '"p"' in (folder / "input.jsonl").read_text(), "the key on the disk")
        command.send_signal(signal.SIGINT)
        out, warned = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 0, warned
    assert "once it lies in recording.folder" in out
    (session,) = [path for path in tmp_path.iterdir() if (path / "session.json").is_file()]
    kinds = [type(one.action).__name__ for one in load_session(session).actions]
    assert kinds[0] in ("Click", "LeftDouble", "LeftTriple")
    assert kinds[-2:] == ["Type", "Finished"]
