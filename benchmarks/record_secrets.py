"""Secrets typed into password fields of GTK and Chromium, into excluded windows, and pasted, with no time between and
at a quick pace: what of them is in what is stored. Secrets are letters; what may be kept is digits."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from bench_case import BenchCase
from PIL import Image
from record_display import machine, open_server, recorder, wait_for
from Xlib import XK, X
from Xlib.display import Display
from Xlib.ext import xtest

from flywheel.recordings.recorder.recorder import finish_recording
from flywheel.recordings.recorder.x11_capture import open_display
from flywheel.utils.errors import BadInput

KINDS = ("gtk", "chromium", "silent", "vault", "pasted")  # silent: a Chromium that tells nothing of the focus
_VAULT = (255, 0, 254)  # its colour, which no stored picture may have
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PART = 5  # letters of one secret in a row that count as stored: of fewer, another secret has some by chance
_PAGE = """<title>TITLE 0</title><input id=a><br><input type=password id=b><script>
onfocus = () => a.focus(); let n = 0; b.oninput = () => {document.title = "TITLE " + ++n}</script>"""
_FORM = ["zenity", "--forms", "--title", "form", "--add-entry", "Name", "--add-password", "Word"]
_CHROMIUM = ["chromium", "--no-sandbox", "--no-first-run", "--window-size=500,300", "--window-position=700,380"]


def cases(options: Any) -> Iterator[BenchCase]:
    if missing := [name for name in ("dbus-run-session", _FORM[0], _CHROMIUM[0]) if not shutil.which(name)]:
        what = f"not installed: {', '.join(missing)}"
        raise BadInput(what, where="flywheel bench record", fix="install them, or leave secrets out of --only")
    folder = options.folder / "secrets"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    command = ["dbus-run-session", "--", sys.executable, __file__, str(folder), str(options.secrets)]
    with (folder / "log").open("w") as log:
        subprocess.run(command, stdout=log, stderr=log, check=True, timeout=1800)
    found = json.loads((folder / "found.json").read_text())
    stored = sum(found["stored"].values()) + found["pictures"]
    yield BenchCase("record", "secrets_stored", "secrets", stored, None, "", None, 0, stored == 0, found | machine())


class _Hands:
    """Type on the display, without waiting for anybody."""

    def __init__(self, name: str) -> None:
        self.display = open_display(name)
        self._root = self.display.screen().root

    def window(self, title: str) -> Any:
        listed = self._root.get_full_property(self.display.get_atom("_NET_CLIENT_LIST"), X.AnyPropertyType)
        windows = [self.display.create_resource_object("window", number) for number in (listed.value if listed else ())]
        return next((one for one in windows if title in self.title(one)), None)

    def title(self, window: Any) -> str:
        found = window.get_full_property(self.display.get_atom("_NET_WM_NAME"), X.AnyPropertyType)
        return found.value.decode() if found else window.get_wm_name() or ""

    def focus(self, window: Any, wait_s: float) -> None:
        window.set_input_focus(X.RevertToParent, X.CurrentTime)
        self.display.sync()
        time.sleep(wait_s)

    def type(self, text: str, wait_s: float) -> None:
        for letter in text:
            self.keys(letter)
            time.sleep(wait_s)

    def keys(self, *names: str) -> None:
        codes = [self.display.keysym_to_keycode(XK.string_to_keysym(name)) for name in names]
        for code in codes:
            xtest.fake_input(self.display, X.KeyPress, code)
        for code in reversed(codes):
            xtest.fake_input(self.display, X.KeyRelease, code)
        self.display.sync()


def _run(folder: Path, count: int) -> dict[str, Any]:
    rng = random.Random(2026)
    with ExitStack() as stack:
        name = stack.enter_context(open_server(folder, manager=True))
        os.environ["DISPLAY"] = name
        made = stack.enter_context(recorder(folder / "made", name, "--exclude", "vault*"))
        programs = [_FORM, ["zenity", "--entry", "--title", "vault notes"], [sys.executable, __file__, "vault", name]]
        for title, more in (("loud", ["--force-renderer-accessibility"]), ("silent", [])):
            (folder / f"{title}.html").write_text(_PAGE.replace("TITLE", title))
            profile = f"--user-data-dir={folder.resolve() / title}"
            programs.append([*_CHROMIUM, *more, profile, f"--app=file://{(folder / f'{title}.html').resolve()}"])
        for program in programs:
            stack.callback(subprocess.Popen(program, stderr=subprocess.DEVNULL).kill)
        hands = _Hands(name)
        titles = {"gtk": "form", "chromium": "loud", "silent": "silent", "vault": "vault box", "notes": "vault notes"}
        for title in titles.values():
            wait_for(lambda title=title: hands.window(title), title)
        at = {kind: hands.window(title) for kind, title in titles.items()}
        time.sleep(5)  # until Chromium's page takes keys
        planted, kept = [], dict.fromkeys(("0", "0.03"), 0)
        for number in range(count):
            kind, secret = KINDS[number % len(KINDS)], "".join(rng.choices(_LETTERS, k=10))
            pace = (0.0, 0.03)[number // len(KINDS) % 2]
            planted.append((kind, secret))
            _plant(hands, at, kind, secret, str(10000 + number), pace)
            kept[f"{pace:g}"] += kind in ("gtk", "chromium")
        time.sleep(1)
        landed = {kind: hands.title(at[kind]) for kind in ("chromium", "silent")}  # letters in the password field
    texts = [one.text for one in made.inputs() if one.kind == "key_down"]
    typed = "".join(text if len(text) == 1 else " " for text in texts)
    finish_recording(made.folder, folder / "session", done=True)
    files = [path for root in (made.folder, folder / "session") for path in root.rglob("*") if path.is_file()]
    blob = b"\n".join(path.read_bytes() for path in files)
    stored = dict.fromkeys(KINDS, 0)
    for kind, secret in planted:
        parts = [secret[n : n + _PART] for n in range(len(secret) - _PART + 1)]
        stored[kind] += any(part in typed for part in parts) or secret.encode() in blob
    pictures = sum(_shows(path) for path in files if path.suffix == ".png")
    told = {f"{pace:g}": 0 for pace in (0.0, 0.03)}
    for number, (kind, _) in enumerate(planted):
        pace = (0.0, 0.03)[number // len(KINDS) % 2]
        told[f"{pace:g}"] += kind in ("gtk", "chromium") and str(10000 + number) in typed
    shares = {f"digits_kept_at_{pace}_s": told[pace] / kept[pace] for pace in kept if kept[pace]}
    found = {"n": count, "stored": stored, "pictures": pictures, "files": len(files), "landed": landed}
    return found | shares


def _plant(hands: _Hands, at: dict[str, Any], kind: str, secret: str, digits: str, pace: float) -> None:
    """Type the secret where it is one, digits where they are none, at `pace` seconds a key."""
    if kind == "vault":
        at["vault"].configure(x=200 + int(digits) % 300, y=300)
        hands.focus(at["vault"], 5 * pace)
        hands.type(secret, pace)
        hands.focus(at["gtk"], 5 * pace)
        return
    if kind == "pasted":
        hands.focus(at["notes"], max(0.1, 5 * pace))
        hands.keys("Control_L", "a")
        hands.type(secret, pace)
        hands.keys("Control_L", "a")
        hands.keys("Control_L", "c")
        time.sleep(0.2)
    # Its first field, however far the focus had come: from what can be told, not before.
    field = at["gtk" if kind == "pasted" else kind]
    hands.focus(field, 20 * pace)
    if kind != "pasted":
        hands.type(digits, pace)
    time.sleep(pace)
    hands.keys("Tab")
    time.sleep(5 * pace)
    if kind == "pasted":
        hands.keys("Control_L", "v")
    else:
        hands.type(secret, pace)
    time.sleep(5 * pace)
    hands.keys("Shift_L", "Tab")
    time.sleep(0.5)  # the window has it done, before the next one is taken


def _shows(path: Path) -> bool:
    """Tell whether the excluded window's colour is on a picture."""
    return bool((np.asarray(Image.open(path).convert("RGB")) == _VAULT).all(axis=2).any())


def _vault(name: str) -> None:
    display = Display(name)
    screen = display.screen()
    red, green, blue = _VAULT
    colour = red << 16 | green << 8 | blue
    window = screen.root.create_window(300, 300, 300, 200, 0, screen.root_depth, X.InputOutput,
                                       background_pixel=colour, event_mask=X.KeyPressMask)  # fmt: skip
    window.set_wm_name("vault box")
    window.set_wm_class("vault", "Vault")
    window.map()
    while True:
        display.sync()
        display.next_event()


if __name__ == "__main__":
    if sys.argv[1] == "vault":
        _vault(sys.argv[2])
    else:
        told = _run(Path(sys.argv[1]), int(sys.argv[2]))
        (Path(sys.argv[1]) / "found.json").write_text(json.dumps(told))
