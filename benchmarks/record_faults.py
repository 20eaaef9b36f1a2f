"""What goes wrong with a display: each is done to a recorder that runs, and what is stored is held against what was
done."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench_case import BenchCase
from record_display import Recording, machine, open_server, play, recorder, wait_for
from Xlib import XK
from Xlib.display import Display

from flywheel.recordings.recorder.recorder import finish_recording
from flywheel.recordings.session import load_session

_KILLED_S = 1.0  # that a killed recorder may lose


def cases(options: Any) -> Iterator[BenchCase]:
    found = {}
    for fault in (_layout, _compose, _no_receiver, _resize, _killed_server, _killed_recorder):
        folder = options.folder / fault.__name__.strip("_")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        found[folder.name] = fault(folder)
    right = sum(found.values())
    yield BenchCase("record", "faults_right", "faults", right, None, "", None, len(found), right == len(found),
                    {key: bool(value) for key, value in found.items()} | machine())  # fmt: skip


XK.load_keysym_group("xkb")  # the dead keys


def _codes(name: str, *symbols: str) -> list[int]:
    display = Display(name)
    codes = [display.keysym_to_keycode(XK.string_to_keysym(symbol)) for symbol in symbols]
    display.close()
    return codes


def _type(name: str, folder: Path, *symbols: str) -> None:
    play(name, [(n * 0.05, "key", code, 0, 0) for n, code in enumerate(_codes(name, *symbols))], folder)


def _typed(made: Recording) -> str:
    return "".join(one.text for one in made.inputs() if one.kind == "key_down")


def _layout(folder: Path) -> bool:
    """Another layout, chosen while it records: the key of `z` types what it types then."""
    with open_server(folder) as name, recorder(folder / "made", name, "--keep-text") as made:
        (code,) = _codes(name, "z")
        for layout in ("us", "de", "us"):
            subprocess.run(["setxkbmap", "-display", name, layout], check=True)
            play(name, [(0, "key", code, 0, 0)], folder)
    return _typed(made) == "zyz"


def _compose(folder: Path) -> bool:
    """Dead keys and a compose key."""
    with open_server(folder) as name:
        layout = ["setxkbmap", "-display", name, "us", "-variant", "intl", "-option", "compose:ralt"]
        subprocess.run(layout, check=True)
        environment = os.environ.get("LC_ALL")
        os.environ["LC_ALL"] = "en_US.UTF-8"
        try:
            with recorder(folder / "made", name, "--keep-text") as made:
                _type(name, folder, "dead_acute", "e", "x", "Multi_key", "s", "s", "y")
        finally:
            os.environ.pop("LC_ALL") if environment is None else os.environ.update(LC_ALL=environment)
    return _typed(made) == "éxßy"


def _no_receiver(folder: Path) -> bool:
    """Keys on a display without any window: nothing after them is lost."""
    with open_server(folder) as name, recorder(folder / "made", name, "--keep-text") as made:
        _type(name, folder, "a", "F12", "b", "Super_L", "c")
        play(name, [(0, "click", 1, 5, 5)], folder)
    return _typed(made) == "abc" and [one.button for one in made.inputs()][-2:] == [1, 1]


def _resize(folder: Path) -> bool:
    """The display gets another size, twice: screens have the size of their time."""
    sizes = []
    with open_server(folder) as name, recorder(folder / "made", name, "--keep-text") as made:
        for size in ("1280x720", "800x600", "1920x1080"):
            subprocess.run(["xrandr", "-display", name, "--fb", size, "--output", "VNC-0", "--mode", size], check=False,
                           capture_output=True)  # fmt: skip
            shown = Display(name).screen().root.get_geometry()
            sizes.append((shown.width, shown.height))
            time.sleep(0.3)
            play(name, [(0, "click", 1, 100, 100)], folder)
    finish_recording(made.folder, folder / "session", done=True)
    session = load_session(folder / "session")
    kept = [(session.screens[one.screen].width, session.screens[one.screen].height) for one in session.actions]
    return len(set(sizes)) == 3 and kept[:3] == sizes


def _killed_server(folder: Path) -> bool:
    """The display goes away: what was recorded stays, and the recorder ends and says why."""
    server = ExitStack()
    name = server.enter_context(open_server(folder))
    with recorder(folder / "made", name, "--keep-text") as made:
        _type(name, folder, "a", "b", "c")
        time.sleep(_KILLED_S)
        server.close()
        log = folder / "made" / "log"
        wait_for(lambda: "no longer answers" in log.read_text(), "the recorder's word")
        wait_for(lambda: "look it through" in log.read_text(), "the page")
    finish_recording(made.folder, folder / "session", done=True)
    return _typed(made) == "abc" and len(load_session(folder / "session").actions) == 2


def _killed_recorder(folder: Path) -> bool:
    """kill -9: what was done a second before is there."""
    with open_server(folder) as name, recorder(folder / "made", name, "--keep-text", kill=True) as made:
        _type(name, folder, "a", "b", "c")
        time.sleep(_KILLED_S)
    return _typed(made) == "abc"
