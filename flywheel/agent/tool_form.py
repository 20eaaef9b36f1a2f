"""Actions written as tool calls, in the manner of Qwen2.5-VL and Qwen3-VL's `computer_use` and `mobile_use`.

    <tool_call>
    {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [52, 31]}}
    </tool_call>

What those tools have no word for (addresses, keys held down, SDK functions) is written in their manner and told in
the prompt. Actions of theirs that the action set lacks (middle_click, triple_click, mouse_move) are faults.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from flywheel.agent import actions as act
from flywheel.agent import loose_json
from flywheel.agent.actions import ALONE, NAMES, Action, Point, canonical
from flywheel.agent.faults import Fault
from flywheel.agent.grammar import Grammar
from flywheel.agent.strings import numbers_in
from flywheel.agent.vocabulary import KNOWN, Arguments, build, spell_keys

SCROLL_PIXELS = 500  # written with a scroll, whose amount the environment sets
WAIT_SECONDS = 1
_TOOLS = frozenset({"computer_use", "mobile_use", "browser_use", "computer"})
_FUNCTIONS = frozenset({"terminal", "read_file", "write_file", "list_files", "call_tool"})

_TAGGED = re.compile(r"<tool_call>\s*(?=[{\[])")
_BARE = re.compile(
    r"^[ \t]*(?:action[ \t*]*[:：][ \t]*)?(?:```(?:json)?\s*)?(?=\{|\[\s*\{)", re.IGNORECASE | re.MULTILINE
)
_NEXT = re.compile(r"(?:[\s`,;\]]|</?tool_call>)*(?=\{)")
_MOST_ACTIONS = 8  # that are looked at behind the first

_ACTIONS = {
    "left_click": "click", "tap": "click", "double_click": "left_double", "double_tap": "left_double",
    "right_click": "right_single", "left_click_drag": "drag", "key": "hotkey", "key_down": "press",
    "key_up": "release", "open": "open_app", "goto": "navigate", "back": "navigate_back", "answer": "finished",
    "interact": "call_user", "ask_user": "call_user",
}  # fmt: skip
_PARAMETERS = {
    "coordinate": "point", "coordinates": "point", "start_coordinate": "start_point", "coordinate2": "end_point",
    "end_coordinate": "end_point", "text": "content", "url": "content", "keys": "key", "scroll_direction": "direction",
    "app": "app_name",
}  # fmt: skip


_RESERVED = {*KNOWN, *_ACTIONS, *_TOOLS, "hscroll", "swipe", "system_button", "terminate"}


class _ToolArguments(Arguments):
    def point_of(self, value: Any) -> Point:
        if isinstance(value, str):
            numbers = numbers_in(value)
        elif isinstance(value, Mapping):
            numbers = [value.get("x"), value.get("y")]
        else:
            numbers = value[0] if isinstance(value, list) and len(value) == 1 else value
        if not isinstance(numbers, list) or not all(type(number) in (int, float) for number in numbers):
            numbers = []
        return self.point_at(numbers, value)

    def said(self, value: Any) -> str:
        return said(value)

    def text_of(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        if type(value) in (int, float):
            return said(value)
        if isinstance(value, dict):  # the arguments of a tool
            try:
                return canonical(value)
            except (ValueError, RecursionError):
                pass
        raise Fault(f"not a text: {said(value)[:40]}", self.at)


def said(value: Any) -> str:
    """A value as an error or a text names it: never raises."""
    try:
        return value if isinstance(value, str) else json.dumps(value)[:200]
    except (ValueError, RecursionError):  # an integer of thousands of digits; a deep nest
        return type(value).__name__


def find(text: str) -> tuple[int, int] | None:
    """Where the first tool call's mark begins, and where its JSON does; None where there is none."""
    found = _TAGGED.search(text) or _BARE.search(text)
    return found.span() if found else None


def read(text: str, start: int, grammar: Grammar) -> Action:
    """The action of the tool call whose JSON begins at `start`. Raises Fault."""
    value, end = loose_json.read(text, start)
    if isinstance(value, list):
        value = value[0] if value else None
    name, values = _call(value, start, grammar)
    action = build(_ToolArguments(name, values, start, grammar.space))
    if "{" in text[end:]:
        _check_alone(text, end, name, grammar)
    return action


def _check_alone(text: str, at: int, first: str, grammar: Grammar) -> None:
    for _ in range(_MOST_ACTIONS):
        begins = _NEXT.match(text, at)
        if begins is None:
            return
        try:
            value, at = loose_json.read(text, begins.end())
            name, _ = _call(value, begins.end(), grammar)
        except Fault:
            return
        if name != first and not ALONE.isdisjoint((name, first)):
            raise Fault(f"{name if name in ALONE else first} stands alone in a step", begins.end())


def _call(value: Any, at: int, grammar: Grammar) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of a call, in the grammar's words."""
    if not isinstance(value, dict):
        raise Fault("the tool call is not a JSON object", at)
    if isinstance(value.get("function"), dict):  # as OpenAI's servers send it
        value = value["function"]
    tool = value.get("name", "")
    given = value.get("arguments", value.get("parameters"))
    if isinstance(given, str):
        given = _inner(given, at)
    if given is None:
        given = {key: one for key, one in value.items() if key != "name"}
    if not isinstance(given, dict) or not isinstance(tool, str):
        raise Fault("the tool call has no arguments", at)
    if tool in _FUNCTIONS:
        return tool, _named(given, {"name": "tool"})
    name = tool
    if tool in _TOOLS or not tool:
        name = given.get("action", value.get("action"))
        if not isinstance(name, str) or not name:
            raise Fault("the tool call names no action", at)
    elif grammar.functions and tool not in _RESERVED:
        return "call_tool", {"tool": tool, "arguments": given}
    return _translate(name.strip().lower(), given, at)


def _inner(text: str, at: int) -> Any:
    try:
        return loose_json.read(text, 0)[0]
    except Fault as fault:
        raise Fault(f"the arguments are not JSON: {fault.error.reason}", at) from None


def _named(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): one for key, one in given.items()}


def _translate(name: str, given: Mapping[str, Any], at: int) -> tuple[str, dict[str, Any]]:
    values = _named(given, _PARAMETERS)
    match name:
        case "scroll" | "hscroll":
            return "scroll", _with_direction(values, "left right" if name == "hscroll" else "down up", at)
        case "swipe":
            return _swipe(values)
        case "system_button":
            return _button(values, at)
        case "terminate":
            failed = values.get("status") in ("failure", "fail", "failed", "infeasible")
            return ("call_user" if failed else "finished"), values
        case "left_click_drag" | "drag":
            if "start_point" in values and "end_point" not in values and "point" in values:
                values["end_point"] = values.pop("point")
        case "open" | "open_app":
            values.setdefault("app_name", values.get("content", ""))
        case "key" | "hotkey" | "key_down" | "key_up":
            values.setdefault("key", values.get("content", ""))
    return _ACTIONS.get(name, name), values


def _with_direction(values: dict[str, Any], directions: str, at: int) -> dict[str, Any]:
    """Qwen's scrolls say an amount whose sign is the direction: up and right are positive."""
    if "direction" not in values and "pixels" in values:
        amount = values["pixels"]
        if type(amount) not in (int, float) or amount == 0:
            raise Fault(f"not an amount of scrolling: {said(amount)[:20]}", at)
        values["direction"] = directions.split()[amount > 0]
    return values


def _swipe(values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Two points make a drag; a direction is the finger's, which scrolls the other way."""
    direction = values.get("direction")
    if isinstance(direction, str) and "end_point" not in values:
        opposite = {"up": "down", "down": "up", "left": "right", "right": "left"}
        return "scroll", {**values, "direction": opposite.get(direction.strip().lower(), direction)}
    return "drag", values


def _button(values: dict[str, Any], at: int) -> tuple[str, dict[str, Any]]:
    button = str(values.get("button", ""))[:20].strip().lower()
    match button:
        case "home":
            return "press_home", {}
        case "back":
            return "press_back", {}
        case "enter":
            return "hotkey", {"key": "enter"}
    raise Fault(f"unknown button {button!r}", at)


def write(action: Action, grammar: Grammar) -> str:
    """The action as a tool call, tags included. A tool of an MCP server is called by its own name where it can be."""
    if isinstance(action, act.ToolCall) and grammar.functions and action.tool and action.tool not in _RESERVED:
        tool, arguments = action.tool, json.loads(action.arguments)
    elif NAMES.get(type(action)) in _FUNCTIONS:
        tool, arguments = NAMES[type(action)], _function_arguments(action)
    else:
        tool, arguments = _tool_of(grammar), _arguments(action, grammar)
    text = json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>"


def _tool_of(grammar: Grammar) -> str:
    return "mobile_use" if grammar.actions == "mobile" else "computer_use"


def _function_arguments(action: Action) -> dict[str, Any]:
    if isinstance(action, act.ToolCall):
        return {"name": action.tool, "arguments": json.loads(action.arguments)}
    return dict(vars(action))


def _arguments(action: Action, grammar: Grammar) -> dict[str, Any]:
    mobile = grammar.actions == "mobile"

    def at(point: Point) -> list[int]:
        return [grammar.space.x.write(point.x), grammar.space.y.write(point.y)]

    match action:
        case act.Click(point):
            return {"action": "click" if mobile else "left_click", "coordinate": at(point)}
        case act.LeftDouble(point):
            return {"action": "double_click", "coordinate": at(point)}
        case act.RightSingle(point):
            return {"action": "right_click", "coordinate": at(point)}
        case act.LongPress(point):
            return {"action": "long_press", "coordinate": at(point), "time": WAIT_SECONDS}
        case act.Drag(start, end) if mobile:
            return {"action": "swipe", "coordinate": at(start), "coordinate2": at(end)}
        case act.Drag(start, end):
            return {"action": "left_click_drag", "start_coordinate": at(start), "coordinate": at(end)}
        case act.Scroll(point, direction) if mobile:
            return {"action": "scroll", "coordinate": at(point), "direction": direction}
        case act.Scroll(point, direction):
            name = "hscroll" if direction in ("left", "right") else "scroll"
            amount = SCROLL_PIXELS if direction in ("up", "right") else -SCROLL_PIXELS
            return {"action": name, "coordinate": at(point), "pixels": amount}
        case act.Hotkey(keys):
            return {"action": "key", "keys": spell_keys(keys)}
        case act.Press(key):
            return {"action": "key_down", "keys": spell_keys((key,))}
        case act.Release(key):
            return {"action": "key_up", "keys": spell_keys((key,))}
        case act.Type(content):
            return {"action": "type", "text": content}
        case act.OpenApp(app):
            return {"action": "open", "text": app}
        case act.Navigate(content):
            return {"action": "navigate", "text": content}
        case act.NavigateBack():
            return {"action": "navigate_back"}
        case act.PressHome():
            return {"action": "system_button", "button": "Home"}
        case act.PressBack():
            return {"action": "system_button", "button": "Back"}
        case act.Wait():
            return {"action": "wait", "time": WAIT_SECONDS}
        case act.Finished(""):
            return {"action": "terminate", "status": "success"}
        case act.Finished(content):
            return {"action": "answer", "text": content}
        case act.CallUser():
            return {"action": "terminate", "status": "failure"}
    raise TypeError(f"not an action: {action!r}")
