"""Build an action from its name and arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point, ToolCall, canonical_json, replace_surrogates
from flywheel.agent.coordinates import CoordinateSpace
from flywheel.agent.parsing import lexing
from flywheel.agent.parsing.lexing import MODIFIERS, ParseFailure, ambiguous_text, parse_numbers, split_keys

MAX_KEYS = 3
DIRECTIONS = ("up", "down", "left", "right")


@dataclass(slots=True)
class CallArguments:
    """The arguments of one call, by the grammar's parameter names: texts, numbers, lists and mappings. at: where the
    call begins. places: where in the text its values stand, where that is known."""

    name: str
    values: dict[str, Any]
    at: int
    space: CoordinateSpace
    places: Mapping[str, int]

    def place(self, name: str) -> int:
        return self.places.get(name, self.at)

    def need(self, *names: str) -> str:
        """Return the first of the names that is given. Raises ParseFailure where none is."""
        for name in names:
            if name in self.values:
                return name
        raise ParseFailure(f"{self.name} needs {names[0]}", self.at)

    def text(self, *names: str) -> str:
        name = self.need(*names)
        return replace_surrogates(to_text(self.values[name], self.place(name)))

    def keys(self) -> tuple[str, ...]:
        value, place = self.values[self.need("key")], self.place("key")
        words = value if isinstance(value, list) else [value]
        keys: list[str] = []
        for word in words:
            pressed = split_keys(replace_surrogates(to_text(word, place)), place)
            if len(words) > 1 and len(pressed) > 1 and pressed[-1] not in MODIFIERS:
                raise ambiguous_text(f"keys together, or one after the other? {describe_value(value)[:40]}", place)
            if not pressed and len(words) > 1:
                raise ParseFailure("a key has no name", place)
            keys += pressed
        if not keys:
            raise ParseFailure("no key is named", place)
        if len(keys) > MAX_KEYS:
            raise ParseFailure(f"{len(keys)} keys; {MAX_KEYS} at most", place)
        return tuple(keys)

    def point(self, *names: str) -> Point:
        """Return the point that two numbers name, or the middle of the box that four do."""
        name = self.need(*names)
        value, place = self.values[name], self.place(name)
        numbers = to_numbers(value)
        if len(numbers) not in (2, 4):
            raise ParseFailure(f"not a point: {describe_value(value)[:40]!r}", place)
        axes = (self.space.x, self.space.y)
        for index, number in enumerate(numbers):
            axis = axes[index % 2]
            # An integer of a thousand digits is no float, so it is compared before anything is computed.
            if not 0 <= number <= axis.size:
                written = f"{number:g}" if isinstance(number, float) or abs(number) < 1e15 else "a huge number"
                raise ParseFailure(f"{written} lies outside 0..{axis.last}", place)
        if self.space.kind != "norm1" and any(0 < number < 1 for number in numbers):
            raise ambiguous_text(
                f"{describe_value(value)[:40]} is a fraction of the screen, and policy.coordinate_format is not", place
            )
        if len(numbers) == 4:
            numbers = [(numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2]
        return Point(axes[0].read(numbers[0]), axes[1].read(numbers[1]))


def to_numbers(value: Any) -> list[float]:
    """List the numbers of a point or a box: `[1, 2]`, `[[1, 2]]`, `[[1, 2], [3, 4]]`, `{"x": 1, "y": 2}`, or a text."""
    if isinstance(value, str):
        return parse_numbers(value)
    if type(value) is list and len(value) == 2 and type(value[0]) is type(value[1]) is int:
        return value
    if isinstance(value, Mapping):
        value = [value.get("x"), value.get("y")]
    if isinstance(value, list) and value and all(isinstance(one, list) for one in value[:3]):
        value = [number for one in value[:3] for number in one]
    if not isinstance(value, list):
        return []
    if len(value) in (2, 4) and all(isinstance(one, str) for one in value):
        return parse_numbers(", ".join(value))
    return value if all(type(number) in (int, float) for number in value) else []


def to_text(value: Any, at: int) -> str:
    """Return `value` as a text. at: its place, for the error. Raises ParseFailure where it is none."""
    if isinstance(value, str):
        return value
    if type(value) in (int, float):
        return describe_value(value)
    if isinstance(value, dict):  # the arguments of a tool
        try:
            return canonical_json(value)
        except (ValueError, RecursionError):
            pass
    raise ParseFailure(f"not a text: {describe_value(value)[:40]}", at)


def describe_value(value: Any) -> str:
    """Describe a value for an error or a text; never raises."""
    try:
        return value if isinstance(value, str) else json.dumps(value)[:200]
    except (ValueError, RecursionError):  # an integer of thousands of digits; a deep nest
        return type(value).__name__


def build_action(arguments: CallArguments) -> Action:
    """Build the action. Raises ParseFailure for a missing or bad argument, and for an unknown name."""
    if arguments.name not in _BUILDERS:
        raise ParseFailure(f"unknown action {arguments.name[:40]!r}", arguments.at)
    kind, readers = _BUILDERS[arguments.name]
    given = arguments.values
    if kind is act.ToolCall:
        return _tool(arguments)
    if kind is act.Finished and "content" not in given:
        return kind()
    if kind is act.Scroll:
        # Mobile models write a swipe as a scroll with two points.
        if "end_point" in given and "direction" not in given:
            return act.Drag(_FIELDS["start_point"](arguments), _FIELDS["end_point"](arguments))
        direction = _direction(arguments)
        whole = "point" in given or "start_point" in given
        return kind(_FIELDS["point"](arguments) if whole else Point(0.5, 0.5), direction)
    return kind(*[reader(arguments) for reader in readers])


def _direction(arguments: CallArguments) -> str:
    direction = arguments.text("direction").strip().lower()
    if direction not in DIRECTIONS:
        raise ParseFailure(f"unknown direction {direction[:20]!r}", arguments.place("direction"))
    return direction


def _one_key(arguments: CallArguments) -> str:
    keys = arguments.keys()
    if len(keys) != 1:
        raise ParseFailure(f"{arguments.name} takes one key", arguments.place("key"))
    return keys[0]


def _tool(arguments: CallArguments) -> Action:
    name = arguments.text("tool", "content")
    given = arguments.text("arguments").strip() if "arguments" in arguments.values else ""
    try:
        value, end = lexing.parse_json(given or "{}", 0)
        if given[end:].strip() and given:
            raise ValueError("more stands behind it")
        return ToolCall(name, canonical_json(value))
    except ParseFailure as fault:
        reason = fault.error.reason
    except (ValueError, RecursionError) as error:
        reason = str(error)[:80]
    raise ParseFailure(f"the arguments of a tool are not a JSON object: {reason}", arguments.place("arguments"))


# How a field of an action is read: from which parameters, the best first.
_FIELDS: dict[str, Callable[[CallArguments], Any]] = {
    "point": lambda arguments: arguments.point("point", "start_point"),
    "start_point": lambda arguments: arguments.point("start_point", "point"),
    "end_point": lambda arguments: arguments.point("end_point"),
    "keys": CallArguments.keys,
    "key": _one_key,
    "content": lambda arguments: arguments.text("content"),
    "app_name": lambda arguments: arguments.text("app_name", "content"),
    "command": lambda arguments: arguments.text("command", "content"),
    "code": lambda arguments: arguments.text("code", "content"),
    "path": lambda arguments: arguments.text("path"),
}
_BUILDERS = {
    name: (kind, [_FIELDS.get(field.name) for field in fields(kind)])
    for name, kind in (*((name, kind) for kind, name in act.ACTION_NAMES.items()), ("mouse_move", act.Hover))
}
KNOWN_ACTIONS = tuple(_BUILDERS)
