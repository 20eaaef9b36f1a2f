"""Actions written as calls: `click(point='<point>52 31</point>')` and its older kin with `start_box`.

Reading is tolerant, and takes time linear in the text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from flywheel.agent import actions as act
from flywheel.agent.actions import ALONE, Action, Point
from flywheel.agent.faults import Fault
from flywheel.agent.grammar import Grammar
from flywheel.agent.strings import QUOTES, closing, escape, next_quote, numbers_in, unescape
from flywheel.agent.vocabulary import KNOWN, Arguments, build, spell_keys

# Parameter names, with those of older models. What is given and not needed (`time`) is let pass.
_ALIASES = {
    "start_box": "point", "box": "point", "bbox": "point", "point": "point", "start_point": "start_point",
    "end_box": "end_point", "end_point": "end_point", "key": "key", "keys": "key", "content": "content",
    "text": "content", "url": "content", "direction": "direction", "app_name": "app_name", "command": "command",
    "path": "path", "tool": "tool", "arguments": "arguments", "time": "time",
}  # fmt: skip

_NAMES = "|".join(sorted(KNOWN, key=len, reverse=True))
CALL = re.compile(rf"({_NAMES})[ \t]*[(（]", re.IGNORECASE)
_LEAD = re.compile(r"[\s*]*(?:```[ \t]*\w*[ \t]*\n)?[\s`*]*")
_BETWEEN = re.compile(r"[\s`;,*]*(?:action[ \t*]*[:：])?[\s`*]*", re.IGNORECASE)
_WORD = re.compile(r"[^\s(]{0,41}")
_END = re.compile(r"[\s,，]*[)）]")
_PARAMETER = re.compile(r"[\s,，]*([A-Za-z_]+)\s*[=＝]\s*")
_BARE = re.compile(
    r"<\|box_start\|>[^<]*<\|box_end\|>|<(\w{1,12})>[^<]*</\1>|[\[(（][^\])）]{0,200}[\])）]|\{[^{}]*\}|[^\s,)）'\"]+"
)
# What may follow a string: the closing bracket and an end, or a further parameter.
_AFTER = re.compile(
    r"\s*(?:[)）]\s*(?:$|\n|[`;]|<\||</tool_call|[a-z_]+\(|(?:[Tt]hought|[Aa]ction)\s*[:：])"
    r"|[,，]\s*[A-Za-z_]+\s*[=＝]\s*['\"‘’“”<\[(（{\d])"
)
_WITHOUT_QUOTES = frozenset({"point", "start_point", "end_point", "direction", "time"})
_MOST_PARAMETERS = 8  # of a call; no action has more than three
_MOST_ACTIONS = 8  # that are looked at behind the first


class _Value(NamedTuple):
    text: str
    position: int


class _CallArguments(Arguments):
    def point_of(self, value: _Value) -> Point:
        return self.point_at(numbers_in(value.text), value)

    def text_of(self, value: _Value) -> str:
        return value.text

    def said(self, value: _Value) -> str:
        return value.text

    def place(self, value: _Value) -> int:
        return value.position


def read(text: str, start: int, grammar: Grammar) -> Action:
    """The action that begins at `start`. Raises Fault; a further action in the text is not carried out."""
    start = _LEAD.match(text, start).end()
    call = CALL.match(text, start)
    if call is None:
        word = _WORD.match(text, start)[0][:40]
        raise Fault(f"unknown action {word!r}" if word else "the action is empty", start)
    name = call[1].lower()
    spent: set[str] = set()
    values, end = _parameters(text, call.end(), spent)
    action = build(_CallArguments(name, values, start, grammar.space))
    if end < len(text):
        _check_alone(text, end, name, spent)
    return action


def _check_alone(text: str, at: int, first: str, spent: set[str]) -> None:
    """Raises Fault where one of the actions from `at` on, or the first, must stand alone and does not."""
    for _ in range(_MOST_ACTIONS):
        call = CALL.match(text, _BETWEEN.match(text, at).end())
        if call is None:
            return
        name = call[1].lower()
        if name != first and not ALONE.isdisjoint((name, first)):
            raise Fault(f"{name if name in ALONE else first} stands alone in a step", call.start())
        try:
            _, at = _parameters(text, call.end(), spent)
        except Fault:
            return


def _parameters(text: str, at: int, spent: set[str]) -> tuple[dict[str, _Value], int]:
    """The arguments by name, and where the call ends."""
    values: dict[str, _Value] = {}
    for _ in range(_MOST_PARAMETERS + 1):
        end = _END.match(text, at)
        if end:
            return values, end.end()
        parameter = _PARAMETER.match(text, at)
        if parameter is None:
            raise Fault("a parameter or a closing bracket was expected", at)
        name = _ALIASES.get(parameter[1].lower())
        if name is None:
            raise Fault(f"unknown parameter {parameter[1][:40]!r}", parameter.start(1))
        value, at = _value(text, parameter.end(), name, spent)
        values.setdefault(name, value)
    raise Fault(f"more than {_MOST_PARAMETERS} parameters", at)


def _value(text: str, at: int, name: str, spent: set[str]) -> tuple[_Value, int]:
    """A quoted string, or an unquoted point or word."""
    if at < len(text) and text[at] in QUOTES:
        end = next_quote(text, at) if name in _WITHOUT_QUOTES else closing(text, at, _AFTER, spent)
        if end < 0:
            raise Fault("the string is not closed", at)
        return _Value(unescape(text[at + 1 : end]), at + 1), end + 1
    bare = _BARE.match(text, at)
    if bare is None:
        raise Fault("a value was expected", at)
    return _Value(bare[0], at), bare.end()


def write(action: Action, grammar: Grammar) -> str:
    """The action in the one form that `grammar` has for it."""
    box = "box" if grammar.form in ("ui_tars_1_5", "ui_tars_1_0") else "point"
    only = "start_box" if box == "box" else "point"

    def spot(point: Point) -> str:
        return f"'{_spot(point, grammar)}'"

    name = act.NAMES.get(type(action), "")
    match action:
        case act.Click(point) | act.LeftDouble(point) | act.RightSingle(point) | act.LongPress(point):
            return f"{name}({only}={spot(point)})"
        case act.Drag(start, end):
            return f"drag(start_{box}={spot(start)}, end_{box}={spot(end)})"
        case act.Scroll(point, direction):
            return f"scroll({only}={spot(point)}, direction='{direction}')"
        case act.Hotkey(keys):
            return f"hotkey(key='{escape(' '.join(spell_keys(keys)))}')"
        case act.Press(key) | act.Release(key):
            return f"{name}(key='{escape(spell_keys((key,))[0])}')"
        case act.Finished(""):
            return "finished()"
        case act.Type(content) | act.Navigate(content) | act.Finished(content):
            return f"{name}(content='{escape(content)}')"
        case act.OpenApp(app):
            return f"open_app(app_name='{escape(app)}')"
        case act.Terminal(command):
            return f"terminal(command='{escape(command)}')"
        case act.ReadFile(path) | act.ListFiles(path):
            return f"{name}(path='{escape(path)}')"
        case act.WriteFile(path, content):
            return f"write_file(path='{escape(path)}', content='{escape(content)}')"
        case act.ToolCall(tool, arguments):
            return f"call_tool(tool='{escape(tool)}', arguments='{escape(arguments)}')"
        case act.Wait() | act.CallUser() | act.NavigateBack() | act.PressHome() | act.PressBack():
            return f"{name}()"
    raise TypeError(f"not an action: {action!r}")


def _spot(point: Point, grammar: Grammar) -> str:
    x, y = grammar.space.x.write(point.x), grammar.space.y.write(point.y)
    match grammar.form:
        case "ui_tars_1_0":
            return f"<|box_start|>({x},{y})<|box_end|>"
        case "ui_tars_1_5":
            return f"({x},{y})"
    # In a space of two digits numbers are written with both, so that each point takes the same number of tokens.
    width = 2 if grammar.space.kind == "points" and grammar.space.x.size <= 100 else 1
    return f"<point>{x:0{width}d} {y:0{width}d}</point>"
