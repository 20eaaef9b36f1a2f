"""Parse and write actions as tool calls, in JSON or in XML tags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from flywheel.agent import actions as act
from flywheel.agent.actions import ACTION_NAMES, Action, Point, replace_surrogates
from flywheel.agent.grammar import Grammar
from flywheel.agent.parsing import lexing
from flywheel.agent.parsing.lexing import ParseFailure, RawCall, fold_name
from flywheel.agent.parsing.normalise import COMPUTER_TOOLS, KNOWN_ACTIONS

# XML tags: one for each parameter, with its text unescaped.
#
#     <function=type><parameter=content>C:\new</parameter></function>       Qwen3-Coder, Seed-OSS, UI-TARS 2
#     <invoke name="computer"><parameter name="action">wait</parameter>      Anthropic's models in text
#
# Both usually stand in a tag of their own (`<tool_call>`, `<seed:tool_call>`), which the caller has skipped.

TAGGED_CALL_START = re.compile(r"<(?:function\s*=|invoke\s+name\s*=)\s*[\"']?([\w.:-]{1,60})[\"']?\s*>", re.IGNORECASE)
_PARAMETER = re.compile(r"\s*<parameter(?:\s+name)?\s*=\s*[\"']?([\w.-]{1,60})[\"']?\s*>", re.IGNORECASE)
_CLOSE = re.compile(r"</parameter>(?=\s*(?:<parameter|</|\Z))", re.IGNORECASE)
_END = re.compile(r"\s*(?:</(?:function|invoke)>|</[\w:]*tool_call>|\Z)", re.IGNORECASE)
_NEXT_TAG = re.compile(r"(?:\s|</?[\w:]{1,30}>)*")
_MOST_PARAMETERS = 12


def parse_tagged_call(text: str, start: int) -> tuple[RawCall, int]:
    """Parse the call in XML tags that begins at the offset `start`; return it and the offset of its end.

    Raises ParseFailure where it cannot be read.
    """
    begin = TAGGED_CALL_START.match(text, start)
    values: dict[str, str] = {}
    places: dict[str, int] = {}
    at = begin.end()
    for _ in range(_MOST_PARAMETERS + 1):
        end = _END.match(text, at)
        if end:
            return _called(begin[1], values, places, start), end.end()
        parameter = _PARAMETER.match(text, at)
        if parameter is None:
            raise ParseFailure("a parameter or an end tag was expected", at)
        close = _CLOSE.search(text, parameter.end())
        if close is None:
            raise ParseFailure("the parameter is not closed", parameter.end())
        if parameter[1] in values:
            raise ParseFailure(f"{parameter[1][:40]} is given twice", parameter.start())
        values[parameter[1]] = _value(text[parameter.end() : close.start()])
        places[parameter[1]] = parameter.end()
        at = close.end()
    raise ParseFailure(f"more than {_MOST_PARAMETERS} parameters", at)


def find_next_tagged_call(text: str, at: int) -> int:
    """Return the offset of the tagged call that follows one that ended at the offset `at`; -1 where none follows."""
    at = _NEXT_TAG.match(text, at).end()
    return at if TAGGED_CALL_START.match(text, at) else -1


def _called(name: str, values: dict[str, str], places: dict[str, int], at: int) -> RawCall:
    tool = name.rpartition(".")[2]
    if fold_name(tool) in COMPUTER_TOOLS:
        action = values.pop("action", None)
        if action is None:
            raise ParseFailure("the tool call names no action", at)
        name = action.strip()
    else:
        tool, name = "", tool
    return RawCall(name, values, at, (), tool, places)


def _value(written: str) -> str:
    """Return the text between two tags, without the line ends that templates put next to the tags."""
    return replace_surrogates(written.removeprefix("\n").removesuffix("\n"))


# JSON: tool calls in the manner of Qwen2.5-VL and Qwen3-VL's `computer_use` and `mobile_use`.
#
#     <tool_call>
#     {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [52, 31]}}
#     </tool_call>
#
# Calls of the computer tools of OpenAI and Anthropic, and objects that hold an action and its arguments side by side,
# are read too. What Qwen's tools have no word for (addresses, keys held down, SDK functions) is written in their manner
# and explained in the prompt. Actions of theirs that the action set lacks (middle_click) are refused.

SCROLL_PIXELS = 500  # written with a scroll; the environment decides how far
WAIT_SECONDS = 1
_POINTED = {
    act.LeftDouble: "double_click",
    act.LeftTriple: "triple_click",
    act.RightSingle: "right_click",
    act.Hover: "mouse_move",
}
_FUNCTIONS = frozenset({"terminal", "python", "read_file", "write_file", "list_files", "call_tool"})
_NEXT = re.compile(r"(?:[\s`,;\]]|</?[\w:]{1,20}>)*(?=\{)")
# Names that no MCP tool may have: those of the actions.
_RESERVED = {*KNOWN_ACTIONS, *COMPUTER_TOOLS, *lexing.SYNONYMS["reserved"].split()}
# Kinds of an envelope (OpenAI, Anthropic), not of an action.
_ENVELOPES = frozenset({"function", "function_call", "computer_call", "tool_use", "tool_call", "computer"})
_GIVEN = ("arguments", "parameters", "input", "action_input", "args", "params")
_CALLS = ("tool_calls", "actions", "action_list")
_MOST_BEHIND = 9  # calls of a list that are read
_DEEPEST = 4  # envelopes within each other


def parse_tool_call(text: str, start: int, grammar: Grammar) -> tuple[RawCall, int]:
    """Parse the tool call whose JSON begins at the offset `start`; return it and the offset of its end.

    Raises ParseFailure where it cannot be read.
    """
    value, end = lexing.parse_json(text, start, paths=True)
    raw = _to_raw_call(value, start, grammar)
    if isinstance(value, list) and len(value) > 1:
        raw.behind = tuple(_to_raw_call(one, start, grammar) for one in value[1:_MOST_BEHIND])
    return raw, end


def parse_plain_tool_call(text: str, grammar: Grammar) -> tuple[RawCall, int] | None:
    """Parse the tool call that ends `text`, if it is the only one and written as `format_tool_call` writes it.

    Returns it and the offset of its tag; None for any other text.
    """
    at = text.find("<tool_call>\n{")
    if at < 0 or not text.endswith("}\n</tool_call>") or lexing.looks_like_path(text):
        return None
    try:
        value, end = lexing.STRICT_JSON.raw_decode(text, at + 12)
        return (_to_raw_call(value, at + 12, grammar), at) if end == len(text) - 13 else None
    except (ParseFailure, ValueError, RecursionError):
        return None


def find_next_tool_call(text: str, at: int) -> int:
    """Return the offset of the JSON that follows a call that ended at the offset `at`; -1 where none follows."""
    found = _NEXT.match(text, at)
    return found.end() if found else -1


def _to_raw_call(value: Any, at: int, grammar: Grammar) -> RawCall:
    if type(value) is dict and value.get("name") in COMPUTER_TOOLS and type(value.get("arguments")) is dict:
        name = value["arguments"].get("action")  # the usual form
        if type(name) is str and name:
            return RawCall(name, value["arguments"], at, (), value["name"])
    call = _open_envelopes(value, at)
    tool, given = call.get("name", ""), next((call[one] for one in _GIVEN if one in call), None)
    if given == "":
        given = {}
    if isinstance(given, str) and (given.lstrip()[:1] in "{\"'" or "name" in call):
        given = _unwrap_json_text(given, at)
    if given is None:
        given = call
    if not isinstance(given, dict) or not isinstance(tool, str):
        raise ParseFailure("the tool call has no arguments", at)
    if tool in _FUNCTIONS:
        return RawCall(tool, {"tool" if key == "name" else key: one for key, one in given.items()}, at)
    if given is call:
        given = {key: one for key, one in call.items() if key != "name"}
    if tool and tool not in COMPUTER_TOOLS:
        if grammar.functions and tool not in _RESERVED:
            return RawCall("call_tool", {"tool": tool, "arguments": given}, at)
        return RawCall(tool, given, at)
    name = given.get("action", given.get("action_type", call.get("action", given.get("type", ""))))
    if not isinstance(name, str) or not name or name in _ENVELOPES:
        raise ParseFailure("the tool call names no action", at)
    return RawCall(name, {key: one for key, one in given.items() if key not in _NAMED}, at, (), tool)


_NAMED = frozenset({"action", "action_type", "type"})


def _open_envelopes(value: Any, at: int) -> Mapping[str, Any]:
    """Return the call inside the envelopes that servers and harnesses put around it. Raises ParseFailure."""
    for _ in range(_DEEPEST):
        if isinstance(value, list):
            value = value[0] if value else None
        if isinstance(value, str) and value.lstrip().startswith("{"):
            value = _unwrap_json_text(value, at)
        if not isinstance(value, dict):
            raise ParseFailure("the tool call is not a JSON object", at)
        inner = next((value[one] for one in ("function", *_CALLS) if isinstance(value.get(one), dict | list)), None)
        if inner is None and isinstance(value.get("action"), dict | list):
            inner = value["action"]
        if inner is None:
            return value
        value = inner
    raise ParseFailure("nested too deeply", at)


def _unwrap_json_text(text: str, at: int) -> Any:
    """Parse arguments that were written as JSON text, encoded once or twice. Raises ParseFailure."""
    value: Any = text
    for _ in range(2):
        if not isinstance(value, str):
            break
        try:
            value = lexing.parse_json(value, 0)[0]
        except ParseFailure as fault:
            raise ParseFailure(f"the arguments are not JSON: {fault.error.reason}", at) from None
    return value


def format_tool_call(action: Action, grammar: Grammar) -> str:
    """Write `action` as a tool call in JSON, tags included. Raises TypeError for what is no action.

    Where the grammar has functions, an MCP tool is called by its own name, unless an action has that name.
    """
    tool = ACTION_NAMES.get(type(action))
    if isinstance(action, act.ToolCall):
        arguments = json.loads(action.arguments)
        if grammar.functions and action.tool and action.tool not in _RESERVED:
            tool = action.tool
        else:
            arguments = {"name": action.tool, "arguments": arguments}
    elif tool in _FUNCTIONS:
        arguments = dict(vars(action))
    else:
        tool = "mobile_use" if grammar.actions == "mobile" else "computer_use"
        arguments = _arguments(action, grammar)
    text = lexing.escape_path_lookalikes(json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False))
    return f"<tool_call>\n{text}\n</tool_call>"


def _arguments(action: Action, grammar: Grammar) -> dict[str, Any]:
    mobile = grammar.actions == "mobile"

    def at(point: Point) -> list[float]:
        return [grammar.space.x.write(point.x), grammar.space.y.write(point.y)]

    match action:
        case act.Click(point):
            return {"action": "click" if mobile else "left_click", "coordinate": at(point)}
        case act.LeftDouble(point) | act.LeftTriple(point) | act.RightSingle(point) | act.Hover(point):
            return {"action": _POINTED[type(action)], "coordinate": at(point)}
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
            return {"action": "key", "keys": lexing.spell_keys(keys)}
        case act.Press(key) | act.Release(key):
            name = "key_down" if isinstance(action, act.Press) else "key_up"
            return {"action": name, "keys": lexing.spell_keys((key,))}
        case act.Type(content):
            return {"action": "type", "text": content}
        case act.TypeAt(point, content, clear):
            given = {"action": "type", "coordinate": at(point), "text": content}
            return given | ({"delete_existing_text": True} if clear else {})
        case act.OpenApp(app):
            return {"action": "open", "text": app}
        case act.Navigate(content):
            return {"action": "navigate", "text": content}
        case act.NavigateBack():
            return {"action": "navigate_back"}
        case act.PressHome() | act.PressBack():
            return {"action": "system_button", "button": "Home" if isinstance(action, act.PressHome) else "Back"}
        case act.Wait():
            return {"action": "wait", "time": WAIT_SECONDS}
        case act.Finished(""):
            return {"action": "terminate", "status": "success"}
        case act.Finished(content):
            return {"action": "answer", "text": content}
        case act.CallUser():
            return {"action": "terminate", "status": "failure"}
    raise TypeError(f"not an action: {action!r}")
