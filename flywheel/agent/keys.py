"""Keys as models write them, one or several pressed together: to words in lower case and back."""

from __future__ import annotations

import re

from flywheel.agent.parse_failure import ParseFailure, ambiguous

MODIFIERS = frozenset({"ctrl", "control", "alt", "option", "shift", "cmd", "command", "meta", "win", "super"})
# Words for the signs that also separate keys. `plus` and `comma` are written, the others only read.
_SIGNS = {"plus": "+", "comma": ",", "minus": "-", "hyphen": "-", "dash": "-"}
# Names of xdotool, pyautogui and Windows's virtual keys that no browser's keyboard has.
_FOREIGN = {
    **{
        f"{name}{side}": key
        for key, names in {
            "ctrl": ("control_", "ctrl_"),
            "alt": ("alt_",),
            "shift": ("shift_",),
            "win": ("super_", "win_"),
            "meta": ("meta_",),
        }.items()
        for name in names
        for side in "lr"
    },
    **{
        f"{side}{name}": key
        for name, key in {"control": "ctrl", "menu": "alt", "shift": "shift", "win": "win"}.items()
        for side in "lr"
    },
    **{f"{name}{side}": name for name in ("ctrl", "alt", "shift", "win") for side in ("left", "right")},
    "kp_enter": "enter",
    "prior": "pageup",
    "next": "pagedown",
    "spacebar": "space",
}
_LONGEST = 200  # characters
_COMMAS = re.compile(r"(?<=[^\s,])\s*,\s*(?=[^\s,])")
_LIST = re.compile(r"[\[(](?:\S.*|.*['\"][^'\"\s]+['\"].*)[\])]", re.DOTALL)
_DANGLING_END = re.compile(r"[^+]\+\Z")
_NAME = re.compile(r"\w+(?:-+\w+)*")
_ITEM = re.compile(r"'([^']+)'|\"([^\"]+)\"|([\w+-]+)")
_ITEMS = re.compile(rf"\s*(?:{_ITEM.pattern})\s*(?:,\s*(?:{_ITEM.pattern})\s*)*,?\s*")


def split_keys(text: str, at: int = 0) -> list[str]:
    """`Ctrl+Shift t`, `ctrl, c`, `['ctrl', 'c']`, `ctrl-c` -> the keys. A separator that separates nothing is a key.

    Raises ParseFailure for a comma that may be either, and for keys one after the other (`ctrl+a delete`).
    """
    if len(text) > _LONGEST:
        raise ParseFailure("too long for keys", at)
    text = text.lower()
    if text[:1] in ("[", "(") and len(text) > 3 and _LIST.fullmatch(text):
        if not _ITEMS.fullmatch(text, 1, len(text) - 1):
            raise ParseFailure(f"not a list of keys: {text[:40]!r}", at)
        return [key for item in _ITEM.findall(text[1:-1]) for key in split_keys("".join(item), at)]
    if "," in text and text != ",":
        text = _without_commas(text, at)
    words, keys = text.split(), []
    if words and (_DANGLING_END.search(words[-1]) or (words[0][0] == "+" and words[0].strip("+"))):
        raise ParseFailure(f"a key is missing beside the plus: {text[:40]!r}", at)
    for index, word in enumerate(words):
        if word == "+":
            keys += ["+"] if index in (0, len(words) - 1) else []
            continue
        parts = [key for part in word.split("+") if part for key in _hyphened(part, at)]
        if len(parts) > 1 and index + 1 < len(words) and words[index + 1] != "+" and parts[-1] not in MODIFIERS:
            raise ambiguous(f"keys together, or one after the other? {text[:40]!r}", at)
        keys += parts
        keys += ["+"] if word.endswith("++") else []
    return keys if words or not text else ["space"]


def _without_commas(text: str, at: int) -> str:
    """A comma between two keys separates them (`ctrl, c`, `ctrl,c`); behind a plus, or alone, it is the key."""
    words = text.split()
    if "," in words[1:-1] or (words and len(words[-1]) > 1 and words[-1][-1] == "," and words[-1][-2] != "+"):
        raise ambiguous(f"the key comma, or one that separates? {text[:40]!r}", at)
    return _COMMAS.sub(lambda found: found[0] if text[found.start() - 1] == "+" else " ", text)


def _hyphened(word: str, at: int) -> list[str]:
    """`ctrl-c` -> ctrl, c; other hyphens belong to the name of the key."""
    if "-" in word and len(word) > 1:
        first, _, rest = word.partition("-")
        if first in MODIFIERS and rest:
            return [first, *_hyphened(rest, at)]
    if len(word) > 1 and not _NAME.fullmatch(word):
        raise ParseFailure(f"no key is called {word[:20]!r}", at)
    return [_SIGNS.get(word) or _FOREIGN.get(word, word)]


def spell_keys(keys: tuple[str, ...]) -> list[str]:
    """Each key as one word: the signs that separate keys have names."""
    return [{"+": "plus", ",": "comma"}.get(key, key) for key in keys]
