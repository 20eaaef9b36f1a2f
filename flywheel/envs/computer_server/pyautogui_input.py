"""Control pointer, keys and windows by PyAutoGUI, on Windows and macOS. No test of flywheel runs it there."""

from __future__ import annotations

import json
from pathlib import Path

import pyautogui
from server import RequestRefused

pyautogui.FAILSAFE = False  # moving the pointer to a corner is a valid action
pyautogui.PAUSE = 0
_KEYS = json.loads(Path(__file__).with_name("keys.json").read_text("ascii"))["to_pyautogui"]
_NOTCH = 120  # units of Windows's wheel, to which PyAutoGUI passes the number unchanged


class PyAutoGuiInput:
    """Act on this machine's screen with the methods of `x11.X11Input`, as far as PyAutoGUI can."""

    @property
    def size(self) -> tuple[int, int]:
        return tuple(pyautogui.size())

    def position(self) -> tuple[int, int]:
        return tuple(pyautogui.position())

    def move(self, x: int, y: int) -> None:
        pyautogui.moveTo(x, y)

    def button(self, name: str, down: bool) -> None:
        (pyautogui.mouseDown if down else pyautogui.mouseUp)(button=name)

    def scroll(self, direction: str, notches: int) -> None:
        amount = notches * _NOTCH * (1 if direction in ("up", "right") else -1)
        (pyautogui.scroll if direction in ("up", "down") else pyautogui.hscroll)(amount)

    def key(self, name: str, down: bool) -> None:
        word = _KEYS.get(name, name.lower() if len(name) > 1 else name)
        if not pyautogui.isValidKey(word):
            raise RequestRefused(f"no key is called {name!r}")
        (pyautogui.keyDown if down else pyautogui.keyUp)(word)

    def text(self, text: str) -> None:
        """Type a text. Raises RequestRefused for characters that PyAutoGUI would leave out silently."""
        if lacking := sorted({char for char in text if not pyautogui.isValidKey(char)}):
            raise RequestRefused(f"PyAutoGUI cannot type {''.join(lacking)[:20]!r}: paste it", 501)
        pyautogui.write(text)

    def windows(self) -> list[dict]:
        if not hasattr(pyautogui, "getAllWindows"):
            raise RequestRefused("windows are not told on this system", 501)
        names = {"title": "title", "x": "left", "y": "top", "width": "width", "height": "height", "focused": "isActive"}
        return [
            {"id": number, "kind": "", **{name: getattr(one, theirs) for name, theirs in names.items()}}
            for number, one in enumerate(pyautogui.getAllWindows())
        ]

    def activate(self, number: int) -> None:
        pyautogui.getAllWindows()[number].activate()

    def close_window(self, number: int) -> None:
        pyautogui.getAllWindows()[number].close()
