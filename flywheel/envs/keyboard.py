"""Name the keys of a US keyboard, with the codes that browsers and desktops want."""

from __future__ import annotations

from dataclasses import dataclass

ALT, CONTROL, META, SHIFT = 1, 2, 4, 8  # bits of the protocol's `modifiers`


@dataclass(frozen=True)
class Key:
    """Describe a key.

    key, code: as in KeyboardEvent. number: its virtual key code. text: what it types, "" for none.
    """

    key: str
    code: str
    number: int
    text: str = ""
    modifier: int = 0
    shifted: bool = False  # it is typed with Shift


_NAMED = {
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Escape": 27,
    "Tab": 9,
    "Backspace": 8,
    "Delete": 46,
    "Home": 36,
    "End": 35,
    "PageUp": 33,
    "PageDown": 34,
    "Insert": 45,
    "CapsLock": 20,
    "NumLock": 144,
    "ScrollLock": 145,
    "Pause": 19,
    "PrintScreen": 44,
    "ContextMenu": 93,
    **{f"F{n}": 111 + n for n in range(1, 13)},
}
_MODIFIERS = {"Alt": (18, ALT), "Control": (17, CONTROL), "Meta": (91, META), "Shift": (16, SHIFT)}
_SYMBOLS = {
    ";": (":", "Semicolon", 186),
    "=": ("+", "Equal", 187),
    ",": ("<", "Comma", 188),
    "-": ("_", "Minus", 189),
    ".": (">", "Period", 190),
    "/": ("?", "Slash", 191),
    "`": ("~", "Backquote", 192),
    "[": ("{", "BracketLeft", 219),
    "\\": ("|", "Backslash", 220),
    "]": ("}", "BracketRight", 221),
    "'": ('"', "Quote", 222),
}
_DIGITS = ")!@#$%^&*("  # what the digits type with Shift


def _layout() -> dict[str, Key]:
    keys = {name: Key(name, name, number) for name, number in _NAMED.items()}
    keys |= {name: Key(name, f"{name}Left", number, modifier=bit) for name, (number, bit) in _MODIFIERS.items()}
    keys |= {"Enter": Key("Enter", "Enter", 13, "\r"), "Space": Key(" ", "Space", 32, " ")}
    for letter in "abcdefghijklmnopqrstuvwxyz":
        code, number = f"Key{letter.upper()}", ord(letter.upper())
        keys[letter] = Key(letter, code, number, letter)
        keys[letter.upper()] = Key(letter.upper(), code, number, letter.upper(), shifted=True)
    for digit, shifted in enumerate(_DIGITS):
        code, number = f"Digit{digit}", 48 + digit
        keys[str(digit)] = Key(str(digit), code, number, str(digit))
        keys[shifted] = Key(shifted, code, number, shifted, shifted=True)
    for plain, (shifted, code, number) in _SYMBOLS.items():
        keys[plain] = Key(plain, code, number, plain)
        keys[shifted] = Key(shifted, code, number, shifted, shifted=True)
    keys[" "] = keys["Space"]
    return keys


KEYS = _layout()
_ALIASES = {
    "left": "ArrowLeft",
    "right": "ArrowRight",
    "up": "ArrowUp",
    "down": "ArrowDown",
    "return": "Enter",
    "esc": "Escape",
    "del": "Delete",
    "ctrl": "Control",
    "cmd": "Meta",
    "command": "Meta",
    "win": "Meta",
    "super": "Meta",
    "option": "Alt",
    "pgup": "PageUp",
    "pgdn": "PageDown",
    "page_up": "PageUp",
    "page_down": "PageDown",
    "ins": "Insert",
    "plus": "+",
    "minus": "-",
    **{name.lower(): name for name in KEYS if len(name) > 1},
}


def find_key(name: str) -> Key | None:
    """Find the key called `name`, in lower case or not: `left`, `ctrl`, `a`, `+`. None for a key there is not."""
    name = name.strip() or name
    return KEYS.get(_ALIASES.get(name.lower(), name.lower() if len(name) == 1 else ""))
