"""Define the keys of a US keyboard, with the codes that browsers and desktops want, and a browser's own shortcuts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

import yaml

from flywheel.agent.actions import Action, Hotkey, Press

_LISTED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
ALT, CONTROL, META, SHIFT = 1, 2, 4, 8  # bits of `modifiers` in the DevTools protocol


@dataclass(frozen=True)
class Key:
    """Hold a key of the keyboard, as browsers and desktops know it.

    key, code: as in the DOM's KeyboardEvent. number: its Windows virtual-key code. text: what it types, "" for nothing.
    modifier: its bit, such as SHIFT; 0 for other keys.
    """

    key: str
    code: str
    number: int
    text: str = ""
    modifier: int = 0
    shifted: bool = False  # it is typed with Shift


_MODIFIERS = {"Alt": (18, ALT), "Control": (17, CONTROL), "Meta": (91, META), "Shift": (16, SHIFT)}
_DIGITS = ")!@#$%^&*("  # what the digits type with Shift


def _layout() -> dict[str, Key]:
    numbers = _LISTED["named"] | {f"F{n}": 111 + n for n in range(1, 13)}
    keys = {name: Key(name, name, number) for name, number in numbers.items()}
    keys |= {name: Key(name, f"{name}Left", number, modifier=bit) for name, (number, bit) in _MODIFIERS.items()}
    keys |= {"Enter": Key("Enter", "Enter", 13, "\r"), "Space": Key(" ", "Space", 32, " ")}
    typed = [(letter, letter.upper(), f"Key{letter.upper()}", ord(letter.upper())) for letter in ascii_lowercase]
    typed += [(str(digit), shifted, f"Digit{digit}", 48 + digit) for digit, shifted in enumerate(_DIGITS)]
    typed += [(plain, *rest) for plain, rest in _LISTED["symbols"].items()]
    for plain, shifted, code, number in typed:
        keys[plain] = Key(plain, code, number, plain)
        keys[shifted] = Key(shifted, code, number, shifted, shifted=True)
    keys[" "] = keys["Space"]
    return keys


KEYS = _layout()
_ALIASES = {name.lower(): name for name in KEYS if len(name) > 1}
_ALIASES |= {other: name for name, others in _LISTED["other_names"].items() for other in others.split(", ")}


def find_key(name: str) -> Key | None:
    """Find a key by its name in any case, such as `left`, `ctrl`, `a` or `+`; None where there is no such key."""
    name = name.strip() or name
    return KEYS.get(_ALIASES.get(name.lower(), name.lower() if len(name) == 1 else ""))


# The browser's own shortcuts run after the page's handlers, which can block them by `preventDefault()`, except for
# RESERVED_KEYS. A shortcut that needs more than one page and its viewport does nothing; its note says why.

ZOOM_LEVELS = (0.25, 0.33, 0.5, 0.67, 0.75, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0)  # Chromium's

RELOAD, BACK, FORWARD, CLOSE = "reload", "back", "forward", "close"
ZOOM_IN, ZOOM_OUT, ZOOM_RESET = "zoom in", "zoom out", "zoom reset"
FIND, FIND_NEXT, FIND_LAST = "find", "find next", "find previous"
_KEYS_BY_ACTION, _KEYS_BY_REASON, RESERVED_KEYS = (_LISTED[name] for name in ("by_action", "by_reason", "reserved"))


@dataclass(frozen=True)
class BrowserShortcut:
    """Hold what the browser itself does on a keyboard shortcut, such as to reload the page.

    does: one of the constants above, such as RELOAD; "" where it does nothing. missing: why it does nothing, else "".
    reserved: the browser never passes these keys to the page.
    """

    does: str
    missing: str
    reserved: bool


def find_shortcut(action: Action, held: int) -> BrowserShortcut | None:
    """Find the browser's shortcut that an action's keys form; None for none. held: bits of the modifiers held down."""
    if isinstance(action, Hotkey | Press):
        keys = [find_key(name) for name in (action.keys if isinstance(action, Hotkey) else (action.key,))]
        if None not in keys:
            return _TABLE.get(_parse_chord(keys, held))
    return None


def _parse_chord(keys: list[Key | None], held: int) -> tuple[int, str]:
    """Return the modifiers' bits, and the code of the only other key; "" where there is not exactly one."""
    others = [key for key in keys if key is not None and not key.modifier]
    for key in keys:
        held |= key.modifier | (SHIFT if key.shifted else 0)
    return held & (ALT | CONTROL | META | SHIFT), others[0].code if len(others) == 1 else ""


def _parse_chords(names: str) -> list[tuple[int, str]]:
    return [_parse_chord([find_key(part) for part in name.split("+")], 0) for name in names.split(", ")]


def _make_table() -> dict[tuple[int, str], BrowserShortcut]:
    reserved = set(_parse_chords(RESERVED_KEYS))
    table = {}
    for does, names in _KEYS_BY_ACTION.items():
        table |= {chord: BrowserShortcut(does, "", chord in reserved) for chord in _parse_chords(names)}
    for missing, names in _KEYS_BY_REASON.items():
        note = f"not done: {missing}"
        table |= {chord: BrowserShortcut("", note, chord in reserved) for chord in _parse_chords(names)}
    return table


_TABLE = _make_table()
