"""The fast path: a call exactly as `call_form.write` writes it, read without looking for slips.

Most of what a trained model writes is of this kind. `read` gives what `call_form.read` gives, or None: no text means
two things, and a test holds the two against each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point, whole
from flywheel.agent.coordinates import Space
from flywheel.agent.keys import split_keys
from flywheel.agent.parse_failure import ParseFailure
from flywheel.agent.strings import like_path, unescape
from flywheel.agent.vocabulary import MAX_KEYS

_NUMBER = r"(\d{1,6}|0\.\d{1,4})"  # the second in a space of fractions alone
_SPOT = rf"'(?:<point>|<\|box_start\|>\(|\(){_NUMBER}[ ,]{_NUMBER}(?:</point>|\)<\|box_end\|>|\))'"
_TEXT = r"'([^'\\]*(?:\\.[^'\\]*)*)'"
_LONGEST_NAME = 16

_Read = Callable[[re.Match[str], Space], Action | None]


def read(text: str, start: int, space: Space) -> Action | None:
    """The one action of `text[start:]`, in full; None where it is not written plainly."""
    bracket = text.find("(", start, start + _LONGEST_NAME)
    form = _FORMS.get(text[start:bracket]) if bracket > 0 else None
    if form is None:
        return None
    found = form[0].match(text, bracket)
    return form[1](found, space) if found else None


def _point(x: str, y: str, space: Space) -> Point | None:
    if "." in x or "." in y:
        if space.kind != "fractions":
            return None
        column, row = float(x), float(y)
    else:
        column, row = int(x), int(y)
    if column > space.x.size or row > space.y.size:
        return None
    return Point(space.x.read(column), space.y.read(row))


def _pointed(kind: Callable[[Point], Action]) -> tuple[re.Pattern[str], _Read]:
    def make(found: re.Match[str], space: Space) -> Action | None:
        point = _point(found[1], found[2], space)
        return point and kind(point)

    return re.compile(rf"\((?:point|start_box)={_SPOT}\)\s*\Z"), make


def _drag(found: re.Match[str], space: Space) -> Action | None:
    start, end = _point(found[1], found[2], space), _point(found[3], found[4], space)
    return act.Drag(start, end) if start and end else None


def _scroll(found: re.Match[str], space: Space) -> Action | None:
    point = _point(found[1], found[2], space)
    return point and act.Scroll(point, found[3])  # type: ignore[arg-type]


def _keyed(kind: Callable[[tuple[str, ...]], Action], most: int) -> tuple[re.Pattern[str], _Read]:
    def make(found: re.Match[str], space: Space) -> Action | None:
        try:
            keys = tuple(split_keys(whole(found[1])))
        except ParseFailure:
            return None
        return kind(keys) if 1 <= len(keys) <= most else None

    return re.compile(r"\(key='([^'\\]+)'\)\s*\Z"), make


def _texts(kind: Callable[..., Action], *names: str) -> tuple[re.Pattern[str], _Read]:
    def make(found: re.Match[str], space: Space) -> Action | None:
        texts = found.groups()
        return None if any(map(like_path, texts)) else kind(*map(unescape, texts))

    arguments = ", ".join(f"{name}={_TEXT}" for name in names)
    return re.compile(rf"\({arguments}\)\s*\Z", re.DOTALL), make


def _bare(kind: Callable[[], Action]) -> tuple[re.Pattern[str], _Read]:
    return re.compile(r"\(\)\s*\Z"), lambda found, space: kind()


def _finished(found: re.Match[str], space: Space) -> Action | None:
    content = found[1] or ""
    return None if like_path(content) else act.Finished(unescape(content))


_FORMS: dict[str, tuple[re.Pattern[str], _Read]] = {
    "click": _pointed(act.Click),
    "left_double": _pointed(act.LeftDouble),
    "right_single": _pointed(act.RightSingle),
    "hover": _pointed(act.Hover),
    "long_press": _pointed(act.LongPress),
    "drag": (re.compile(rf"\(start_(?:point|box)={_SPOT}, end_(?:point|box)={_SPOT}\)\s*\Z"), _drag),
    "scroll": (re.compile(rf"\((?:point|start_box)={_SPOT}, direction='(up|down|left|right)'\)\s*\Z"), _scroll),
    "hotkey": _keyed(act.Hotkey, MAX_KEYS),
    "press": _keyed(lambda keys: act.Press(keys[0]), 1),
    "release": _keyed(lambda keys: act.Release(keys[0]), 1),
    "type": _texts(act.Type, "content"),
    "navigate": _texts(act.Navigate, "content"),
    "finished": (re.compile(rf"\((?:content={_TEXT})?\)\s*\Z", re.DOTALL), _finished),
    "open_app": _texts(act.OpenApp, "app_name"),
    "terminal": _texts(act.Terminal, "command"),
    "python": _texts(act.RunPython, "code"),
    "read_file": _texts(act.ReadFile, "path"),
    "list_files": _texts(act.ListFiles, "path"),
    "wait": _bare(act.Wait),
    "call_user": _bare(act.CallUser),
    "navigate_back": _bare(act.NavigateBack),
    "press_home": _bare(act.PressHome),
    "press_back": _bare(act.PressBack),
}
