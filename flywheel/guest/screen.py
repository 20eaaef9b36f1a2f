"""The screen that is acted upon: hands and eyes, by what this machine has."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

from server import Refused


class Hands(Protocol):
    """Pointer and keys. Pixels count from the upper left; keys are named as in KeyboardEvent.key."""

    size: tuple[int, int]

    def position(self) -> tuple[int, int]: ...
    def move(self, x: int, y: int) -> None: ...
    def button(self, name: str, down: bool) -> None: ...
    def scroll(self, direction: str, notches: int) -> None: ...
    def key(self, name: str, down: bool) -> None: ...
    def text(self, text: str) -> None: ...
    def windows(self) -> list[dict]: ...
    def activate(self, number: int) -> None: ...
    def close_window(self, number: int) -> None: ...


class Eyes(Protocol):
    def take(self) -> bytes: ...
    def settled(self, rest: Callable[[float], bool], after_ms: float, within_ms: float) -> bytes: ...


class Screen:
    """hands, eyes: of the display that DISPLAY names, of this machine's own on Windows and macOS; found at the first
    use. rest: waits until the programs with a window are at rest, or until a time."""

    def __init__(self) -> None:
        self._alone = threading.Lock()
        self._hands: Hands | None = None
        self._eyes: Eyes | None = None

    @property
    def hands(self) -> Hands:
        self._find()
        return self._hands

    @property
    def eyes(self) -> Eyes:
        self._find()
        return self._eyes

    def forget(self) -> None:
        """Look for the display anew."""
        with self._alone:
            self._hands = self._eyes = None

    def rest(self, until: float) -> bool:
        if not hasattr(self.hands, "programs"):
            return True
        from quiet import Watched

        watched = Watched(self.hands.programs())
        while watched.wait(until) and time.monotonic() < until:
            before, watched = watched, Watched(self.hands.programs())
            if watched.pids == before.pids:  # else one has begun meanwhile, such as the shell of a new terminal
                return True
        return False

    def _find(self) -> None:
        with self._alone:
            if self._eyes is not None:
                return
            try:
                self._hands, self._eyes = _native() if sys.platform in ("win32", "darwin") else _x11()
            except ImportError as error:
                raise Refused(f"the guest's Python lacks {error.name}: pip install mss python-xlib", 501) from None


def _x11() -> tuple[Hands, Eyes]:
    name = os.environ.get("DISPLAY", "")
    if not name:
        raise Refused("there is no desktop: start one (POST /desktop/start), or set DISPLAY", 503)
    from screens import Screens
    from x11 import X11

    hands = X11(name)
    return hands, Screens(name, hands.drawn)


def _native() -> tuple[Hands, Eyes]:
    from pyautogui_hands import PyAutoGUI
    from screens import Screens

    return PyAutoGUI(), Screens()
