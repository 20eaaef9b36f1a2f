"""An X display for tests, with a window that changes its colour at each click, and hands that use it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from Xlib import XK, X
from Xlib.display import Display
from Xlib.ext import xtest

MISSING = [name for name in ("Xvnc",) if not shutil.which(name)]
SIZE = (640, 480)
_WINDOW = """
import sys
from Xlib import X
from Xlib.display import Display
display = Display(sys.argv[1])
root = display.screen().root
window = root.create_window(0, 0, 300, 200, 0, display.screen().root_depth, X.InputOutput, override_redirect=1,
                            background_pixel=0, event_mask=X.ButtonPressMask | X.ExposureMask)
window.map()
number, pen = 0, window.create_gc(foreground=0)
while True:
    pen.change(foreground=number * 2654435761 & 0xFFFFFF)
    window.fill_rectangle(pen, 0, 0, 300, 200)
    display.sync()
    print(number, flush=True)
    if display.next_event().type == X.ButtonPress:
        number += 1
"""


def colour(clicks: int) -> tuple[int, int, int]:
    """The window's colour after so many clicks."""
    value = clicks * 2654435761 & 0xFFFFFF
    return value >> 16, value >> 8 & 255, value & 255


class Hands:
    """Use a display by XTEST. window: the process of the window, which prints how often it was clicked."""

    def __init__(self, name: str, window: subprocess.Popen) -> None:
        self.name, self._display, self._window = name, Display(name), window

    def click(self, x: int, y: int, button: int = 1) -> None:
        """Click within the window, and wait until it has drawn what follows."""
        xtest.fake_input(self._display, X.MotionNotify, x=x, y=y)
        for what in (X.ButtonPress, X.ButtonRelease):
            xtest.fake_input(self._display, what, button)
        self._display.sync()
        if x < 300 and y < 200:
            self.drawn()

    def drawn(self) -> None:
        """Wait until the window has drawn once more."""
        self._window.stdout.readline()

    def press(self, *names: str | int) -> None:
        """Press keys together, named by their X symbols or codes; the last one alone is released before the others."""
        codes = [name if isinstance(name, int) else self._display.keysym_to_keycode(XK.string_to_keysym(name))
                 for name in names]  # fmt: skip
        for code in codes:
            xtest.fake_input(self._display, X.KeyPress, code)
        for code in reversed(codes):
            xtest.fake_input(self._display, X.KeyRelease, code)
        self._display.sync()


@contextmanager
def display(folder: Path) -> Iterator[Hands]:
    """Open a display of `SIZE` with the window in its upper left corner."""
    reading, writing = os.pipe()
    options = ["-geometry", "{}x{}".format(*SIZE), "-SecurityTypes", "None", "-rfbport", "-1"]
    command = ["Xvnc", "-displayfd", str(writing), *options, "-rfbunixpath", str(folder / "vnc.socket")]
    with subprocess.Popen(command, pass_fds=[writing], stderr=subprocess.DEVNULL) as server:
        os.close(writing)
        with os.fdopen(reading) as told:
            name = f":{told.readline().strip()}"
        window = subprocess.Popen([sys.executable, "-c", _WINDOW, name], stdout=subprocess.PIPE, text=True)
        try:
            hands = Hands(name, window)
            hands.drawn()
            yield hands
        finally:
            window.kill()
            window.wait()
            server.terminate()
