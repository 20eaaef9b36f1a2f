"""Define the actions of an agent as types (section 2.1), one set for all environments.

Which of them a prompt offers is a setting; which of them an environment can carry out, it says itself. Points are
fractions of the screen's width and height, 0 <= x < 1: the coordinate space of a model (`coordinates.py`) belongs to
the parser and the serialiser, so nothing behind them depends on it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flywheel.utils.json_text import refuse_constant

MAX_JSON_DEPTH = 32  # of JSON in a tool's arguments
# Each action's name in the grammar: what the column `action_type` holds, whichever form the text has.
ACTION_NAMES: dict[type[Action], str] = {}


class Action:
    """What an agent does in one step. Fields named point are places on the screen; keys are named in lower case."""

    def __init_subclass__(cls, name: str) -> None:
        ACTION_NAMES[cls] = name


@dataclass(frozen=True)
class Point:
    """A place on the screen. x, y: fractions of its width and height, 0 <= x < 1."""

    x: float
    y: float


@dataclass(frozen=True)
class Click(Action, name="click"):
    point: Point


@dataclass(frozen=True)
class LeftDouble(Action, name="left_double"):
    point: Point


@dataclass(frozen=True)
class RightSingle(Action, name="right_single"):
    point: Point


@dataclass(frozen=True)
class Hover(Action, name="hover"):
    """The pointer goes there and stays; nothing is pressed."""

    point: Point


@dataclass(frozen=True)
class Drag(Action, name="drag"):
    start_point: Point
    end_point: Point


@dataclass(frozen=True)
class Hotkey(Action, name="hotkey"):
    """Press keys together. keys: lower case, three at most, pressed together."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class Type(Action, name="type"):
    """Type a text. content: a trailing newline submits."""

    content: str


@dataclass(frozen=True)
class Scroll(Action, name="scroll"):
    point: Point
    direction: Literal["up", "down", "left", "right"]


@dataclass(frozen=True)
class Wait(Action, name="wait"):
    """Do nothing for a moment."""


@dataclass(frozen=True)
class Finished(Action, name="finished"):
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
    """Go to the page before."""


@dataclass(frozen=True)
class Press(Action, name="press"):
    """Hold a key down (games): `Release` lets it go."""

    key: str


@dataclass(frozen=True)
class Release(Action, name="release"):
    key: str


@dataclass(frozen=True)
class LongPress(Action, name="long_press"):
    point: Point


@dataclass(frozen=True)
class OpenApp(Action, name="open_app"):
    app_name: str


@dataclass(frozen=True)
class PressHome(Action, name="press_home"):
    """Go to the phone's home screen."""


@dataclass(frozen=True)
class PressBack(Action, name="press_back"):
    """Press the phone's key Back."""


@dataclass(frozen=True)
class Terminal(Action, name="terminal"):
    """Run a command in the shell. command: one for a shell."""

    command: str


@dataclass(frozen=True)
class RunPython(Action, name="python"):
    """Run Python code. code: for an interpreter that keeps what it computes from one call to the next."""

    code: str


@dataclass(frozen=True)
class ReadFile(Action, name="read_file"):
    path: str


@dataclass(frozen=True)
class WriteFile(Action, name="write_file"):
    """Replaces the file."""

    path: str
    content: str


@dataclass(frozen=True)
class ListFiles(Action, name="list_files"):
    """List a folder. path: a folder."""

    path: str


@dataclass(frozen=True)
class ToolCall(Action, name="call_tool"):
    """A call of a tool of an MCP server.

    arguments: the text of a JSON object, nested 32 deep at most. It is kept in one form (keys sorted, no spaces, no
    lone surrogates), so that equal calls are equal values. Raises ValueError for anything else; `ToolCall.of` takes a
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

        arguments: JSON values, nested 32 deep at most. Raises ValueError or TypeError for others.
        """
        return cls(tool, canonical_json(arguments))


def canonical_json(value: Any) -> str:
    """Write `value` as JSON in one form: keys sorted, no spaces, no lone surrogates.

    Raises ValueError or TypeError for what JSON cannot hold (infinity, objects).
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


STANDALONE_ACTIONS = frozenset({"finished", "call_user"})  # these stand alone in a step


@dataclass(frozen=True)
class ParseError:
    """Text that holds no valid action: a value, never an exception.

    reason: what was wrong. position: the character of the text where.
    """

    reason: str
    position: int = 0


@dataclass(frozen=True)
class ParsedResponse:
    """One model output: its thought, and the action or what was wrong with it."""

    thought: str
    action: Action | ParseError


def actions_to_json(actions: Sequence[Action]) -> str:
    """Write actions as JSON text, [[class name, {field: value}], ...] in their order; "[]" for none.

    `actions_from_json` reads it back.
    """
    return json.dumps([[type(action).__name__, dataclasses.asdict(action)] for action in actions])


def actions_from_json(text: str) -> list[Action]:
    """Read what `actions_to_json` wrote. Raises ValueError, KeyError, TypeError or AttributeError for other text."""
    return [_action(name, fields) for name, fields in json.loads(text)]


def _action(name: str, fields: dict[str, Any]) -> Action:
    kind = {kind.__name__: kind for kind in ACTION_NAMES}.get(name)
    if kind is None:
        raise ValueError(f"{name} is no action")
    values = {key: Point(**value) if isinstance(value, dict) else value for key, value in fields.items()}
    if "keys" in values:
        values["keys"] = tuple(values["keys"])
    return kind(**values)
