"""From the name of an action and its arguments to the action: what all text forms share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from flywheel.agent import actions as act
from flywheel.agent import loose_json
from flywheel.agent.actions import Action, Point, ToolCall, canonical, whole
from flywheel.agent.coordinates import Space
from flywheel.agent.faults import Fault

MAX_KEYS = 3
DIRECTIONS = ("up", "down", "left", "right")


class Arguments(ABC):
    """The arguments of one call, by the grammar's parameter names.

    at: where the call begins. Each text form says how its values are read: `point_of`, `text_of`, `said`, `place`.
    """

    def __init__(self, name: str, values: dict[str, Any], at: int, space: Space) -> None:
        self.name, self.values, self.at, self.space = name, values, at, space

    @abstractmethod
    def point_of(self, value: Any) -> Point: ...

    @abstractmethod
    def text_of(self, value: Any) -> str: ...

    @abstractmethod
    def said(self, value: Any) -> str:
        """A value as an error names it."""

    def place(self, value: Any) -> int:
        """Where a value stands in the text."""
        return self.at

    def need(self, *names: str) -> Any:
        for name in names:
            if name in self.values:
                return self.values[name]
        raise Fault(f"{self.name} needs {names[0]}", self.at)

    def point(self, *names: str) -> Point:
        return self.point_of(self.need(*names))

    def text(self, *names: str) -> str:
        return whole(self.text_of(self.need(*names)))

    def keys(self) -> tuple[str, ...]:
        value = self.need("key")
        words = value if isinstance(value, list) else [value]
        keys = tuple(key for word in words for key in split_keys(whole(self.text_of(word))))
        if not keys:
            raise Fault("no key is named", self.place(value))
        if len(keys) > MAX_KEYS:
            raise Fault(f"{len(keys)} keys; {MAX_KEYS} at most", self.place(value))
        return keys

    def point_at(self, numbers: list[float], value: Any) -> Point:
        """The point that two numbers name, or the middle of the box that four do. value: where they come from."""
        if len(numbers) not in (2, 4):
            raise Fault(f"not a point: {self.said(value)[:40]!r}", self.place(value))
        axes = (self.space.x, self.space.y)
        for index, number in enumerate(numbers):
            # An integer of a thousand digits is no float, so it is compared before anything is computed.
            if not 0 <= number <= axes[index % 2].size:
                written = f"{number:g}" if isinstance(number, float) or abs(number) < 1e15 else "a huge number"
                raise Fault(f"{written} lies outside 0..{axes[index % 2].last}", self.place(value))
        if len(numbers) == 4:
            numbers = [(numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2]
        return Point(axes[0].read(numbers[0]), axes[1].read(numbers[1]))


def split_keys(text: str) -> list[str]:
    """`Ctrl+Shift t` -> ctrl, shift, t. A plus that separates nothing is the key itself."""
    words, keys = text.lower().split(), []
    for index, word in enumerate(words):
        if word == "+":
            keys += ["+"] if index in (0, len(words) - 1) else []
            continue
        keys += ["+" if part == "plus" else part for part in word.split("+") if part]
        keys += ["+"] if word.endswith("++") else []
    return keys if words or not text else ["space"]


def spell_keys(keys: tuple[str, ...]) -> list[str]:
    """Each key as one word: the sign that separates keys has a name."""
    return ["plus" if key == "+" else key for key in keys]


def build(arguments: Arguments) -> Action:
    """The action. Raises Fault for a missing or bad argument, and for a name that there is not."""
    builder = _BUILDERS.get(arguments.name)
    if builder is None:
        raise Fault(f"unknown action {arguments.name[:40]!r}", arguments.at)
    return builder(arguments)


def _scroll(arguments: Arguments) -> Action:
    # Mobile models write a swipe as a scroll with two points.
    if "end_point" in arguments.values and "direction" not in arguments.values:
        return _drag(arguments)
    value = arguments.need("direction")
    direction = arguments.text_of(value).strip().lower()
    if direction not in DIRECTIONS:
        raise Fault(f"unknown direction {arguments.text_of(value)[:20]!r}", arguments.place(value))
    given = {"point", "start_point"} & set(arguments.values)
    where = arguments.point("point", "start_point") if given else Point(0.5, 0.5)
    return act.Scroll(where, direction)  # type: ignore[arg-type]


def _drag(arguments: Arguments) -> Action:
    return act.Drag(arguments.point("start_point", "point"), arguments.point("end_point"))


def _one_key(kind: Callable[[str], Action]) -> Callable[[Arguments], Action]:
    def make(arguments: Arguments) -> Action:
        keys = arguments.keys()
        if len(keys) != 1:
            raise Fault(f"{arguments.name} takes one key", arguments.place(arguments.values["key"]))
        return kind(keys[0])

    return make


def _tool(arguments: Arguments) -> Action:
    name = arguments.text("tool", "content")
    given = arguments.text("arguments").strip() if "arguments" in arguments.values else ""
    try:
        value, end = loose_json.read(given or "{}", 0)
        if given[end:].strip() and given:
            raise ValueError("more stands behind it")
        return ToolCall(name, canonical(value))
    except Fault as fault:
        reason = fault.error.reason
    except (ValueError, RecursionError) as error:
        reason = str(error)[:80]
    place = arguments.place(arguments.values["arguments"])
    raise Fault(f"the arguments of a tool are not a JSON object: {reason}", place)


def _pointed(kind: Callable[[Point], Action]) -> Callable[[Arguments], Action]:
    return lambda arguments: kind(arguments.point("point", "start_point"))


_BUILDERS: dict[str, Callable[[Arguments], Action]] = {
    "click": _pointed(act.Click),
    "left_single": _pointed(act.Click),
    "left_double": _pointed(act.LeftDouble),
    "right_single": _pointed(act.RightSingle),
    "long_press": _pointed(act.LongPress),
    "drag": _drag,
    "select": _drag,
    "scroll": _scroll,
    "hotkey": lambda arguments: act.Hotkey(arguments.keys()),
    "press": _one_key(act.Press),
    "release": _one_key(act.Release),
    "type": lambda arguments: act.Type(arguments.text("content")),
    "finished": lambda arguments: act.Finished(arguments.text("content") if "content" in arguments.values else ""),
    "navigate": lambda arguments: act.Navigate(arguments.text("content")),
    "open_app": lambda arguments: act.OpenApp(arguments.text("app_name", "content")),
    "terminal": lambda arguments: act.Terminal(arguments.text("command", "content")),
    "read_file": lambda arguments: act.ReadFile(arguments.text("path")),
    "list_files": lambda arguments: act.ListFiles(arguments.text("path")),
    "write_file": lambda arguments: act.WriteFile(arguments.text("path"), arguments.text("content")),
    "call_tool": _tool,
    "wait": lambda arguments: act.Wait(),
    "call_user": lambda arguments: act.CallUser(),
    "navigate_back": lambda arguments: act.NavigateBack(),
    "press_home": lambda arguments: act.PressHome(),
    "press_back": lambda arguments: act.PressBack(),
}
KNOWN = tuple(_BUILDERS)
