"""Turn X11 keycodes into key names and typed text, by the keyboard's layout and compose sequences.

What an application makes of a key is not asked, so keys that none takes are read as well. An input method (ibus,
fcitx) makes text of its own, which no keyboard event tells: where one is at work, its text is not known.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import locale
import os
from functools import cache
from typing import Any

_SHIFT, _LOCK, _CONTROL, _ALT, _LEVEL3, _META = 1, 2, 4, 8, 1 << 7, 1 << 6  # bits of an X event's state
_GROUP = 13  # bits 13 and 14 of the state: the layout's group
_NAMES = {
    "Return": "Enter", "KP_Enter": "Enter", "BackSpace": "Backspace", "Prior": "PageUp", "Next": "PageDown",
    "Left": "ArrowLeft", "Right": "ArrowRight", "Up": "ArrowUp", "Down": "ArrowDown", "Caps_Lock": "CapsLock",
    "Num_Lock": "NumLock", "Scroll_Lock": "ScrollLock", "Print": "PrintScreen", "Menu": "ContextMenu",
    "Shift_L": "Shift", "Shift_R": "Shift", "Control_L": "Control", "Control_R": "Control", "Alt_L": "Alt",
    "Alt_R": "Alt", "Super_L": "Meta", "Super_R": "Meta", "Meta_L": "Meta", "Meta_R": "Meta",
    "ISO_Left_Tab": "Tab", "KP_Home": "Home", "KP_End": "End", "KP_Prior": "PageUp", "KP_Next": "PageDown",
    "KP_Left": "ArrowLeft", "KP_Right": "ArrowRight", "KP_Up": "ArrowUp", "KP_Down": "ArrowDown",
    "KP_Insert": "Insert", "KP_Delete": "Delete",
}  # fmt: skip
_NAMED = {"Enter", "Backspace", "Tab", "Escape", "Delete", "Insert", "Home", "End", "Pause", *_NAMES.values()}
_LEVELS = {
    "ISO_Level3_Shift",
    "ISO_Level3_Latch",
    "ISO_Level3_Lock",
    "ISO_Level5_Shift",
    "ISO_Level5_Latch",
    "ISO_Level5_Lock",
    "Mode_switch",
    "ISO_Group_Shift",
}  # AltGr, and its like
_COMPOSING, _COMPOSED, _CANCELLED = 1, 2, 3  # xkb_compose_status


@cache
def _xkbcommon() -> Any:
    """Load libxkbcommon by its stable name; None where it is not installed."""
    try:
        library = ctypes.CDLL("libxkbcommon.so.0")
    except OSError:
        return None
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
        ("xkb_context_new", pointer, [ctypes.c_int]),
        ("xkb_keysym_to_utf8", ctypes.c_int, [ctypes.c_uint32, text, ctypes.c_size_t]),
        ("xkb_keysym_get_name", ctypes.c_int, [ctypes.c_uint32, text, ctypes.c_size_t]),
        ("xkb_compose_table_new_from_locale", pointer, [pointer, text, ctypes.c_int]),
        ("xkb_compose_state_new", pointer, [pointer, ctypes.c_int]),
        ("xkb_compose_state_feed", ctypes.c_int, [pointer, ctypes.c_uint32]),
        ("xkb_compose_state_get_status", ctypes.c_int, [pointer]),
        ("xkb_compose_state_get_utf8", ctypes.c_int, [pointer, text, ctypes.c_size_t]),
        ("xkb_compose_state_reset", None, [pointer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def explain_missing_xkbcommon() -> str:
    """Explain why keys cannot be read on this machine; "" where they can."""
    return "" if _xkbcommon() else "libxkbcommon is not installed: apt-get install libxkbcommon0"


class KeyReader:
    """Read the keys of one X display. Not thread-safe.

    rows: the keyboard mapping, a row of keysyms for each keycode from `first` on, as the server gives it.
    """

    def __init__(self, first: int, rows: list[list[int]]) -> None:
        self._library = _xkbcommon()
        self.remap(first, rows)
        context = self._library.xkb_context_new(0)
        name = (os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or "").encode()
        if name in (b"", b"C", b"POSIX"):
            name = b"en_US.UTF-8" if locale.getpreferredencoding(False).upper() != "ASCII" else b"C"
        table = self._library.xkb_compose_table_new_from_locale(context, name, 0)
        self._compose = self._library.xkb_compose_state_new(table, 0) if table else None

    def remap(self, first: int, rows: list[list[int]]) -> None:
        """Take another mapping, as after the layout was changed. first, rows: as for the class."""
        self._first, self._rows = first, rows

    def read(self, code: int, state: int) -> tuple[str, str]:
        """Return a pressed key's name, as KeyboardEvent.key, and the text that it types: "" for none, or not yet.

        code: X keycode. state: of modifiers and group before the press. Keys of a compose sequence have no name until
        the last one, whose text is that of the sequence; AltGr has none.
        """
        symbol = self._symbol(code, state)
        name = self.name(symbol)
        if name in _LEVELS:
            return "", ""
        if name in _NAMED or state & (_CONTROL | _ALT | _META):
            if self._compose and name not in ("Shift", "Alt", "Control", "Meta"):
                self._library.xkb_compose_state_reset(self._compose)
            return name, "" if name in _NAMED else self._text(symbol)
        if self._compose:
            self._library.xkb_compose_state_feed(self._compose, symbol)
            status = self._library.xkb_compose_state_get_status(self._compose)
            if status in (_COMPOSING, _CANCELLED):
                return "", ""
            if status == _COMPOSED:
                buffer = ctypes.create_string_buffer(64)
                self._library.xkb_compose_state_get_utf8(self._compose, buffer, 64)
                self._library.xkb_compose_state_reset(self._compose)
                text = buffer.value.decode("utf-8", "replace")
                return text, text
        text = self._text(symbol)
        return text or name, text

    def name(self, symbol: int) -> str:
        """Return the name of the keysym `symbol`, as KeyboardEvent.key; X's own where there is no such name."""
        buffer = ctypes.create_string_buffer(64)
        self._library.xkb_keysym_get_name(symbol, buffer, 64)
        found = buffer.value.decode("ascii", "replace")
        return _NAMES.get(found, found)

    def key_name(self, code: int) -> str:
        """Return the name that a key has without modifiers. code: X keycode."""
        symbol = self._symbol(code, 0)
        return (self._text(symbol) if self.name(symbol) not in _NAMED else "") or self.name(symbol)

    def _text(self, symbol: int) -> str:
        buffer = ctypes.create_string_buffer(64)
        self._library.xkb_keysym_to_utf8(symbol, buffer, 64)
        text = buffer.value.decode("utf-8", "replace")
        return text if text >= " " and text != "\x7f" else ""

    def _symbol(self, code: int, state: int) -> int:
        """Choose the symbol by group and level, as the core protocol defines it, with AltGr as the third level."""
        number = code - self._first
        row = self._rows[number] if 0 <= number < len(self._rows) else []
        group = (state >> _GROUP) & 3
        wide = bool(state & _LEVEL3)
        places = {(0, False): (0, 1), (1, False): (2, 3), (0, True): (4, 5), (1, True): (6, 7)}
        low, high = places.get((min(group, 1), wide), (0, 1))
        symbols = [row[at] if at < len(row) else 0 for at in (low, high)]
        if not any(symbols):
            symbols = [row[at] if at < len(row) else 0 for at in (0, 1)]
        plain, shifted = symbols[0], symbols[1] or symbols[0]
        keypad = self.name(shifted).startswith("KP_")
        if keypad:  # Num Lock (Mod2) turns the keypad's symbols round
            return shifted if bool(state & _SHIFT) != bool(state & 16) else plain
        if state & _LOCK and self._text(plain).isalpha():
            return plain if state & _SHIFT else shifted
        return shifted if state & _SHIFT else plain


def read_held(state: int) -> tuple[str, ...]:
    """Return the names of the modifiers that an X event's `state` holds, in the order of `gestures.MODIFIERS`."""
    bits = ((_CONTROL, "Control"), (_ALT, "Alt"), (_META, "Meta"), (_SHIFT, "Shift"))
    return tuple(name for bit, name in bits if state & bit)
