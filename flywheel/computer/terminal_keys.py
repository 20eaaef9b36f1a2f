"""What a terminal sends for keys, as an xterm does."""

from __future__ import annotations

from collections.abc import Sequence

from flywheel.computer.desktop_acts import Cannot
from flywheel.sandbox import keyboard

_PLAIN = {"Enter": "\r", "Tab": "\t", "Escape": "\x1b", "Backspace": "\x7f", " ": " "}
# CSI: a letter that ends the sequence, or a number ahead of `~`.
_LETTERS = {"ArrowUp": "A", "ArrowDown": "B", "ArrowRight": "C", "ArrowLeft": "D", "End": "F", "Home": "H"}
_LETTERS |= {"F1": "P", "F2": "Q", "F3": "R", "F4": "S"}
_NUMBERS = {"Insert": 2, "Delete": 3, "PageUp": 5, "PageDown": 6, "F5": 15, "F6": 17, "F7": 18, "F8": 19, "F9": 20}
_NUMBERS |= {"F10": 21, "F11": 23, "F12": 24}
_HELD = {"Shift": 1, "Alt": 2, "Control": 4}
_CONTROLS = "@abcdefghijklmnopqrstuvwxyz[\\]^_"


def sent(keys: Sequence[str]) -> str:
    """For keys that are pressed together. Raises Cannot where a terminal has no such keys."""
    held, pressed = 0, []
    for name in keys:
        found = keyboard.find(name)
        if found is None:
            raise Cannot(f"no key is called {name[:20]!r}")
        held |= _HELD.get(found.key, 0)
        if found.key not in _HELD:
            pressed.append(found.key)
    if len(pressed) != 1:
        raise Cannot("a terminal takes one key at a time, with ctrl, alt or shift")
    key = pressed[0]
    if key in _LETTERS:
        return f"\x1b[1;{held + 1}{_LETTERS[key]}" if held else f"\x1bO{_LETTERS[key]}"
    if key in _NUMBERS:
        return f"\x1b[{_NUMBERS[key]};{held + 1}~" if held else f"\x1b[{_NUMBERS[key]}~"
    if key == "Tab" and held == _HELD["Shift"]:
        return "\x1b[Z"
    return ("\x1b" if held & _HELD["Alt"] else "") + _character(key, held)


def typed(text: str) -> str:
    """For a text: its line ends are the key Enter."""
    return text.replace("\r\n", "\n").replace("\n", "\r")


def _character(key: str, held: int) -> str:
    character = _PLAIN.get(key, key)
    if len(character) != 1:
        raise Cannot(f"a terminal has no key {key}")
    if held & _HELD["Shift"] and character.isalpha():
        character = character.upper()
    if held & _HELD["Control"]:
        at = _CONTROLS.find("@" if character == " " else character.lower())
        if at < 0:
            raise Cannot(f"a terminal has no ctrl with {key}")
        return chr(at)
    return character
