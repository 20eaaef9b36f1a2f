"""Text to action and back: the UI-TARS 1.5 grammar, read with tolerance, written in one form.

Nothing is evaluated and nothing is raised: text that holds no valid action gives a `ParseError`, which says what
was wrong and where. The coordinate space is an argument and is never guessed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from flywheel.agent.actions import (
    Action,
    CallUser,
    Click,
    Drag,
    Finished,
    Hotkey,
    LeftDouble,
    Navigate,
    NavigateBack,
    Parsed,
    ParseError,
    Point,
    Press,
    Release,
    RightSingle,
    Scroll,
    Type,
    Wait,
)

MAX_KEYS = 3
DIRECTIONS = ("up", "down", "left", "right")

# Parameter names, with those of older models.
_ALIASES = {
    "start_box": "point", "box": "point", "bbox": "point", "point": "point", "start_point": "start_point",
    "end_box": "end_point", "end_point": "end_point", "key": "key", "keys": "key", "content": "content",
    "text": "content", "url": "content", "direction": "direction",
}  # fmt: skip
_NAMES = (
    "click", "left_single", "left_double", "right_single", "drag", "select", "hotkey", "type", "scroll", "wait",
    "finished", "call_user", "navigate", "navigate_back", "press", "release",
)  # fmt: skip
_POINTED = {"click": Click, "left_single": Click, "left_double": LeftDouble, "right_single": RightSingle}

_LABEL = re.compile(r"^[ \t*#]*(thought|action)[ \t*]*[:：][ \t*]*", re.IGNORECASE | re.MULTILINE)
_CALL = re.compile(rf"({'|'.join(sorted(_NAMES, key=len, reverse=True))})\s*\(")
_PARAMETER = re.compile(r"\s*,?\s*([A-Za-z_]+)\s*=\s*")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_NUMBERS = re.compile(r"[\s,;()\[\]]*(-?\d+(?:\.\d+)?(?:[\s,;()\[\]]+-?\d+(?:\.\d+)?)*)[\s,;()\[\]]*")
_TAGS = re.compile(r"</?(?:point|bbox|box)>|<\|(?:box|point)_(?:start|end)\|>")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "'": "'", '"': '"', "\\": "\\"}


class _Fault(Exception):
    """Internal: becomes a ParseError at the one place that catches it."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.error = ParseError(reason, position)


@dataclass(frozen=True)
class _Value:
    text: str
    position: int


def parse(text: str, coordinates: int) -> Parsed:
    """Read one model output. `coordinates`: points count from 0 to coordinates - 1 on both axes.

    The action is the first call after the first `Action:` that begins a line; without that label, the first call
    that begins a line. A box gives its centre. Several actions, one to a line, give the first.
    """
    thought, start = _split(text)
    try:
        return Parsed(thought, _action(text, start, coordinates))
    except _Fault as fault:
        return Parsed(thought, fault.error)


def _split(text: str) -> tuple[str, int]:
    """The thought, and where the action begins (-1 where nothing marks one)."""
    labels = list(_LABEL.finditer(text))
    action = next((label for label in labels if label[1].lower() == "action"), None)
    first = next((label for label in labels if label[1].lower() == "thought"), None)
    if action is None:
        # `Thought: ... Action: click(...)` on one line.
        inline = re.search(rf"action\s*[:：]\s*(?={_CALL.pattern})", text, re.IGNORECASE)
        bare = re.search(rf"^\s*(?={_CALL.pattern})", text, re.MULTILINE)
        found = inline or bare
        end, start = (found.start(), found.end()) if found else (len(text), -1)
    else:
        end, start = action.start(), action.end()
    begin = first.end() if first is not None and first.end() <= end else 0
    return text[begin:end].strip(), start


def _action(text: str, start: int, coordinates: int) -> Action:
    if start < 0:
        raise _Fault("there is no action", len(text))
    while start < len(text) and text[start] in " \t\r\n`*":
        start += 1
    call = _CALL.match(text, start)
    if call is None:
        word = re.match(r"[^\s(]*", text[start:])
        raise _Fault(f"unknown action {word[0][:40]!r}" if word and word[0] else "the action is empty", start)
    name = call[1]
    values = _parameters(text, call.end())
    return _build(name, values, start, coordinates)


def _parameters(text: str, at: int) -> dict[str, _Value]:
    values: dict[str, _Value] = {}
    while True:
        rest = re.compile(r"[\s,]*\)").match(text, at)
        if rest:
            return values
        parameter = _PARAMETER.match(text, at)
        if parameter is None:
            raise _Fault("a parameter or a closing bracket was expected", at)
        name = _ALIASES.get(parameter[1].lower())
        if name is None:
            raise _Fault(f"unknown parameter {parameter[1][:40]!r}", parameter.start(1))
        value, at = _value(text, parameter.end())
        values.setdefault(name, value)


def _value(text: str, at: int) -> tuple[_Value, int]:
    """A quoted string, or an unquoted point or word."""
    if at < len(text) and text[at] in "'\"":
        end = _closing(text, at)
        return _Value(_unescape(text[at + 1 : end]), at + 1), end + 1
    bare = re.compile(r"<\|box_start\|>[^<]*<\|box_end\|>|<(\w+)>[^<]*</\1>|[\[(][^\])]*[\])]|[^\s,)'\"]+").match(
        text, at
    )
    if bare is None:
        raise _Fault("a value was expected", at)
    return _Value(bare[0], at), bare.end()


def _closing(text: str, at: int) -> int:
    """The quote that ends the string opened at `at`.

    Content may hold quotes that nobody escaped ("it's"), so a quote ends the string only where a further
    parameter or the closing bracket follows it; the first such one, since content is seldom a whole call.
    """
    quote, position, unescaped = text[at], at + 1, []
    while position < len(text):
        if text[position] == "\\":
            position += 2
            continue
        if text[position] == quote:
            if re.compile(r"\s*(?:\)\s*(?:$|\n|[`;]|[a-z_]+\()|,\s*[A-Za-z_]+\s*=\s*['\"<\[(\d])").match(
                text, position + 1
            ):
                return position
            unescaped.append(position)
        position += 1
    if unescaped:
        return unescaped[0]
    raise _Fault("the string is not closed", at)


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), text, flags=re.DOTALL)


def _build(name: str, values: dict[str, _Value], at: int, coordinates: int) -> Action:
    def need(*names: str) -> _Value:
        for key in names:
            if key in values:
                return values[key]
        raise _Fault(f"{name} needs {names[0]}", at)

    def point(*names: str) -> Point:
        return _point(need(*names), coordinates)

    if name in _POINTED:
        return _POINTED[name](point("point", "start_point"))
    if name in ("drag", "select"):
        return Drag(point("start_point", "point"), point("end_point"))
    if name == "scroll":
        direction = need("direction")
        if direction.text.strip().lower() not in DIRECTIONS:
            raise _Fault(f"unknown direction {direction.text[:20]!r}", direction.position)
        where = point("point", "start_point") if {"point", "start_point"} & set(values) else Point(0.5, 0.5)
        return Scroll(where, direction.text.strip().lower())  # type: ignore[arg-type]
    if name == "hotkey":
        return Hotkey(_keys(need("key")))
    if name in ("press", "release"):
        keys = _keys(need("key"))
        if len(keys) != 1:
            raise _Fault(f"{name} takes one key", values["key"].position)
        return Press(keys[0]) if name == "press" else Release(keys[0])
    if name == "type":
        return Type(need("content").text)
    if name == "navigate":
        return Navigate(need("content").text.strip())
    if name == "finished":
        return Finished(values["content"].text if "content" in values else "")
    return {"wait": Wait, "call_user": CallUser, "navigate_back": NavigateBack}[name]()


def _keys(value: _Value) -> tuple[str, ...]:
    keys = tuple(re.split(r"[\s+]+", value.text.strip().lower())) if value.text.strip() else ()
    if not keys or "" in keys:
        raise _Fault("no key is named", value.position)
    if len(keys) > MAX_KEYS:
        raise _Fault(f"{len(keys)} keys; {MAX_KEYS} at most", value.position)
    return keys


def _point(value: _Value, coordinates: int) -> Point:
    """`x y`, or the centre of `x1 y1 x2 y2`, as fractions. A point is the middle of the cell it names."""
    numbers = _NUMBERS.fullmatch(_TAGS.sub(" ", value.text))
    found = [float(number) for number in _NUMBER.findall(numbers[1])] if numbers else []
    if len(found) == 4:
        found = [(found[0] + found[2]) / 2, (found[1] + found[3]) / 2]
    if len(found) != 2:
        raise _Fault(f"not a point: {value.text[:40]!r}", value.position)
    for number in found:
        if not (math.isfinite(number) and 0 <= number <= coordinates):
            raise _Fault(f"{number:g} lies outside 0..{coordinates - 1}", value.position)
    x, y = ((min(number, coordinates - 1) + 0.5) / coordinates for number in found)
    return Point(x, y)


def snap(point: Point, coordinates: int) -> Point:
    """The point that `parse(serialise(...))` gives back: the middle of its cell in the coordinate space."""
    x, y = (_cell(value, coordinates) for value in (point.x, point.y))
    return Point((x + 0.5) / coordinates, (y + 0.5) / coordinates)


def _cell(fraction: float, coordinates: int) -> int:
    return min(coordinates - 1, max(0, math.floor(fraction * coordinates)))


def serialise(action: Action, coordinates: int) -> str:
    """The action in the grammar's one form; `parse` reads it back, points snapped to their cells.

    In a space of two digits (100 or fewer) numbers are written with both, so that each point takes the same number
    of tokens.
    """

    def spot(point: Point) -> str:
        width = 2 if coordinates <= 100 else 1
        return f"'<point>{_cell(point.x, coordinates):0{width}d} {_cell(point.y, coordinates):0{width}d}</point>'"

    match action:
        case Click(point):
            return f"click(point={spot(point)})"
        case LeftDouble(point):
            return f"left_double(point={spot(point)})"
        case RightSingle(point):
            return f"right_single(point={spot(point)})"
        case Drag(start, end):
            return f"drag(start_point={spot(start)}, end_point={spot(end)})"
        case Hotkey(keys):
            return f"hotkey(key='{' '.join(keys)}')"
        case Type(content):
            return f"type(content='{_escape(content)}')"
        case Scroll(point, direction):
            return f"scroll(point={spot(point)}, direction='{direction}')"
        case Wait():
            return "wait()"
        case Finished(content):
            return f"finished(content='{_escape(content)}')" if content else "finished()"
        case CallUser():
            return "call_user()"
        case Navigate(content):
            return f"navigate(content='{_escape(content)}')"
        case NavigateBack():
            return "navigate_back()"
        case Press(key):
            return f"press(key='{key}')"
        case Release(key):
            return f"release(key='{key}')"
    raise TypeError(f"not an action: {action!r}")


def _escape(text: str) -> str:
    for plain, escaped in (("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(plain, escaped)
    return text
