"""Define the actions of an agent as types (UI-TARS-2 report, section 2.1), one set for all environments.

A setting says which actions a prompt offers; an environment ignores those that it lacks. Points are fractions of the
screen's width and height, 0 <= x < 1. Only parser and serialiser know a model's coordinate space (`grammar.py`).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flywheel.utils.json_text import refuse_constant

MAX_JSON_DEPTH = 32  # levels of nesting in a tool's arguments
# Action class -> its name in the grammar, which the column `action_type` holds whatever form the text has.
ACTION_NAMES: dict[type[Action], str] = {}


class Action:
    """Hold one action of an agent; the subclasses are the kinds of actions, by their `name` in the grammar."""

    def __init_subclass__(cls, name: str) -> None:
        ACTION_NAMES[cls] = name


@dataclass(frozen=True)
class Point:
    """Hold a place on the screen. x, y: fractions of its width and height, 0 <= x < 1."""

    x: float
    y: float


@dataclass(frozen=True)
class Click(Action, name="click"):
    """Click the left button at the point."""

    point: Point


@dataclass(frozen=True)
class LeftDouble(Action, name="left_double"):
    """Double-click the left button at the point."""

    point: Point


@dataclass(frozen=True)
class LeftTriple(Action, name="left_triple"):
    """Click the left button three times at the point: selects a paragraph or a line."""

    point: Point


@dataclass(frozen=True)
class RightSingle(Action, name="right_single"):
    """Click the right button at the point."""

    point: Point


@dataclass(frozen=True)
class Hover(Action, name="hover"):
    """Move the pointer to the point and leave it there; nothing is pressed."""

    point: Point


@dataclass(frozen=True)
class Drag(Action, name="drag"):
    """Drag from one point to another with the left button."""

    start_point: Point
    end_point: Point


@dataclass(frozen=True)
class Hotkey(Action, name="hotkey"):
    """Press keys together. keys: their names in lower case (`ctrl`, `a`), in the order pressed, three at most."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class Type(Action, name="type"):
    """Type a text. content: the text; a newline at its end submits it."""

    content: str


@dataclass(frozen=True)
class TypeAt(Action, name="type_at"):
    """Click the point and type a text there. content: as of `Type`. clear: whether to empty the field in between."""

    point: Point
    content: str
    clear: bool = False


@dataclass(frozen=True)
class Scroll(Action, name="scroll"):
    """Scroll in a direction, with the pointer at the point.

    direction: where the view moves to; the environment decides how far.
    """

    point: Point
    direction: Literal["up", "down", "left", "right"]


@dataclass(frozen=True)
class Wait(Action, name="wait"):
    """Do nothing for a moment."""


@dataclass(frozen=True)
class Finished(Action, name="finished"):
    """End the task. content: the answer, where one is asked for."""

    content: str = ""


@dataclass(frozen=True)
class CallUser(Action, name="call_user"):
    """Give the task back to the user."""


@dataclass(frozen=True)
class Navigate(Action, name="navigate"):
    """Open an address. content: the address."""

    content: str


@dataclass(frozen=True)
class NavigateBack(Action, name="navigate_back"):
    """Go back to the previous page."""


@dataclass(frozen=True)
class Press(Action, name="press"):
    """Press a key and hold it down (games), until `Release` releases it. key: its name in lower case."""

    key: str


@dataclass(frozen=True)
class Release(Action, name="release"):
    """Release a key that `Press` holds down."""

    key: str


@dataclass(frozen=True)
class LongPress(Action, name="long_press"):
    """Press the point for a while (phones)."""

    point: Point


@dataclass(frozen=True)
class OpenApp(Action, name="open_app"):
    """Open an application by its name (phones)."""

    app_name: str


@dataclass(frozen=True)
class PressHome(Action, name="press_home"):
    """Go to the phone's home screen."""


@dataclass(frozen=True)
class PressBack(Action, name="press_back"):
    """Press the phone's Back key."""


@dataclass(frozen=True)
class Terminal(Action, name="terminal"):
    """Run a command in the shell."""

    command: str


@dataclass(frozen=True)
class RunPython(Action, name="python"):
    """Run Python code, in an interpreter that keeps its variables from one call to the next."""

    code: str


@dataclass(frozen=True)
class ReadFile(Action, name="read_file"):
    """Read a file, and get its text."""

    path: str


@dataclass(frozen=True)
class WriteFile(Action, name="write_file"):
    """Write a file; one that exists is replaced. path: in the environment's files. content: the file's whole text."""

    path: str
    content: str


@dataclass(frozen=True)
class ListFiles(Action, name="list_files"):
    """List the files in the folder `path`."""

    path: str


@dataclass(frozen=True)
class ToolCall(Action, name="call_tool"):
    """Call a tool of an MCP server.

    arguments: text of a JSON object, at most 32 levels deep. It is stored in canonical form (keys sorted, no spaces, no
    lone surrogates), so that equal calls are equal values. Raises ValueError for another text; `ToolCall.of` takes a
    mapping.
    """

    tool: str
    arguments: str = "{}"

    def __post_init__(self) -> None:
        try:
            arguments = json.loads(self.arguments, parse_constant=refuse_constant)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(arguments, dict):
            raise ValueError("the arguments of a tool are a JSON object")
        if _deeper(arguments, MAX_JSON_DEPTH):
            raise ValueError("nested too deeply")
        object.__setattr__(self, "arguments", canonical_json(arguments))

    @classmethod
    def of(cls, tool: str, arguments: Mapping[str, Any]) -> ToolCall:
        """Make a call of the tool named `tool` from a mapping of its arguments.

        arguments: JSON values, at most 32 levels deep. Raises ValueError or TypeError for others.
        """
        try:
            return cls(tool, canonical_json(arguments))
        except RecursionError:
            raise ValueError("nested too deeply") from None


def canonical_json(value: Any) -> str:
    """Write `value` as JSON in canonical form: keys sorted, no spaces, no lone surrogates.

    Raises ValueError or TypeError for what JSON cannot hold (infinity, objects), RecursionError for very deep nesting.
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return replace_surrogates(text)


def replace_surrogates(text: str) -> str:
    """Replace the lone surrogates of `text`, which no file and no message can carry, by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _deeper(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        nested = [one for one in level if isinstance(one, dict | list)]
        level = [inner for one in nested for inner in (one.values() if isinstance(one, dict) else one)]
    return any(isinstance(one, dict | list) for one in level)


def split_action(action: Action) -> tuple[Action, ...]:
    """Split a `TypeAt` into a click, the keys that empty the field where asked for, and the typing, in this order.

    Any other action is returned alone.
    """
    if not isinstance(action, TypeAt):
        return (action,)
    clear = (Hotkey(("ctrl", "a")), Hotkey(("delete",))) if action.clear else ()
    return (Click(action.point), *clear, Type(action.content))


STANDALONE_ACTIONS = frozenset({"finished", "call_user"})  # a step with one of these holds no other action


@dataclass(frozen=True)
class ParseError:
    """Hold why a text holds no valid action; it is returned, never raised.

    reason: what is wrong. position: offset of the fault in the text, in characters.
    """

    reason: str
    position: int = 0


@dataclass(frozen=True)
class ParsedResponse:
    """Hold one parsed model output: its thought, "" where there is none, and its action or what is wrong with it."""

    thought: str
    action: Action | ParseError


def actions_to_json(actions: Sequence[Action]) -> str:
    """Write actions as JSON text, [[class name, {field: value}], ...] in their order; "[]" for none.

    `actions_from_json` reads it back.
    """
    return json.dumps([[type(action).__name__, dataclasses.asdict(action)] for action in actions])


def actions_from_json(text: str) -> list[Action]:
    """Read the actions that `actions_to_json` wrote.

    Raises ValueError, KeyError, TypeError, AttributeError or RecursionError for most other texts; the types of fields
    are not checked.
    """
    return [_action(name, fields) for name, fields in json.loads(text)]


def _action(name: str, fields: dict[str, Any]) -> Action:
    kind = {kind.__name__: kind for kind in ACTION_NAMES}.get(name)
    if kind is None:
        raise ValueError(f"{name} is no action")
    values = {key: Point(**value) if isinstance(value, dict) else value for key, value in fields.items()}
    if "keys" in values:
        values["keys"] = tuple(values["keys"])
    return kind(**values)
