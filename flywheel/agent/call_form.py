"""Actions written as calls: `click(point='<point>52 31</point>')`, its older kin with `start_box`, and code.

Reading is tolerant, and takes time linear in the text. Nothing of it is ever evaluated.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from flywheel.agent import actions as act
from flywheel.agent import loose_json
from flywheel.agent.actions import Action, Point, whole
from flywheel.agent.grammar import Grammar
from flywheel.agent.keys import spell_keys
from flywheel.agent.meaning import in_own_words, is_known, is_parameter
from flywheel.agent.parse_failure import ParseFailure, ambiguous
from flywheel.agent.strings import QUOTES, closing, content_of, double_quoted, escape, next_quote
from flywheel.agent.synonyms import LIBRARIES, TOOLS
from flywheel.agent.written_call import Said, folded

_MODULE = "|".join(sorted(LIBRARIES))
CALL = re.compile(rf"(?:({_MODULE})\.)?([A-Za-z_]\w{{0,40}})[ \t]*[(（]", re.IGNORECASE)
_MORE = re.compile(r"\w")
_BETWEEN = re.compile(r"(?:[\s`;,*]|#[^\n]*)*(?:action[ \t*]*[:：])?(?:[\s`*;]|#[^\n]*)*", re.IGNORECASE)
_WORD = re.compile(r"[^\s(]{0,41}")
_END = re.compile(r"[\s,，]*[)）]")
_SEPARATOR = re.compile(r"[\s,，]*")
_PARAMETER = re.compile(r"([A-Za-z_]\w*)\s*[=＝]\s*(?!=)")
_CLOSED = r"<\|box_start\|>[^<]*<\|box_end\|>|<(\w{1,12})>[^<]*</\1>|[\[(（][^\])）]{0,200}[\])）]|\{[^{}]*\}"
_BARE = re.compile(_CLOSED + r"|[^\s,)）'\"]+")
_UNQUOTED_END = re.compile(rf"(?:{_CLOSED})")
# What may follow a string: the closing bracket and an end, or a further parameter, or (no names) a further value.
_AFTER_CALL = (
    r"\s*(?:[)）]\s*(?:$|\n|[`;#]|<[|<]|</?[a-z]|[a-z_]+\(|(?:[Tt]hought|[Aa]ction)\s*[:：])"
    r"|[,，]\s*[A-Za-z_]+\s*[=＝]\s*(?:['\"‘’“”<\[(（{\d-]|[Tt]rue|[Ff]alse|None)"
)
_AFTER = re.compile(_AFTER_CALL + ")")
_AFTER_NAMELESS = re.compile(_AFTER_CALL + r"|[,，]\s*['\"\d.-])")
_IMPORT = re.compile(r"import pyautogui")
# How a value without a name begins: a word without quotes is a variable, and means nothing here.
_VALUE = re.compile(r"[rRuUbB]{1,2}['\"]|['\"‘’“”＇＂<\[(（{\d.-]")
_PREFIX = re.compile(r"[rRuUbB]{1,2}(?=['\"])")
# Behind the last value of a call whose bracket is missing: the end, and the tags that wrapped the call.
_OPEN_END = re.compile(r"(?:\s|`|</[\w:]{1,20}>|<\|\w{1,20}\|>)*\Z")
_PLAIN_LIST = re.compile(r"[^='\"]{2,}")
# Within a text: what looks like a further parameter.
_SWALLOWED = re.compile(r"(?:(?<!\\)['\"]\s*,?|,)\s*\b([A-Za-z_]+)\s*(?:[=＝]\s*['\"]?|['\"])")
_WITHOUT_QUOTES = frozenset(
    {"point", "start_point", "end_point", "start_box", "end_box", "box", "bbox", "direction", "time"}
)
_SEVERAL = frozenset({"hotkey", "press", "typewrite", "key"})
_MOST_PARAMETERS = 8  # of a call; no action has more than three
_MOST_ACTIONS = 8  # that are looked at behind the first
_MOST_GESTURES = 12  # calls within a call


class _Value(NamedTuple):
    said: Any
    position: int
    complete: bool = True  # False for a word or number, which may be half of one where the text ends


def begins(text: str, at: int) -> bool:
    """Whether a call of an action that is known, here or elsewhere, begins at `at`."""
    call = CALL.match(text, at)
    return call is not None and _known(call)


def _known(call: re.Match[str]) -> bool:
    return is_known(call[2]) or (call[1] is not None and call[1].lower() != "time")


def read(text: str, start: int, grammar: Grammar) -> tuple[Said, int]:
    """The call that begins at `start`, and where it ends. Raises ParseFailure."""
    call = CALL.match(text, start)
    if call is None or not _known(call):
        word = _WORD.match(text, start)[0][:40]
        raise ParseFailure(f"unknown action {word!r}" if word else "the action is empty", start)
    spent: set[str] = set()
    said, end = _call(text, call, spent)
    for _ in range(_MOST_ACTIONS):  # code sleeps before and between
        further = following(text, end) if said.tool == "time" else -1
        if further < 0:
            break
        said, end = _call(text, CALL.match(text, further), spent)
    if said.tool == "time" and "pyautogui" in _IMPORT.sub("", text):
        raise ParseFailure("the code beside it is not read", start)
    if folded(said.name) in ("move_to", "moveto"):
        said, end = _moved(text, said, end, spent)
    return said, end


def following(text: str, at: int) -> int:
    """Where a further call begins behind one that ended at `at`; -1 where there is none."""
    at = _BETWEEN.match(text, at).end()
    return at if begins(text, at) else -1


def _moved(text: str, said: Said, end: int, spent: set[str]) -> tuple[Said, int]:
    """In code the mouse is moved, then dragged or clicked where it is: one action, whose first half this is."""
    at = _BETWEEN.match(text, end).end()
    call = CALL.match(text, at)
    if call is None or call[1] is None:
        if _MORE.match(text, at):  # what was to be done there cannot be read
            raise ParseFailure("a move of the mouse, and nothing readable behind it", at)
        return said, end
    then, then_end = _call(text, call, spent)
    moved = in_own_words(Said("click", said.values, said.at, said.inline, said.tool, said.places))[1].get("point")
    name = folded(then.name)
    if name in ("drag_to", "dragto"):
        values = in_own_words(Said("drag_to", then.values, then.at, then.inline, then.tool, then.places))[1]
        target = values.pop("point", values.get("end_point"))
        return Said("drag", {"start_point": moved, "end_point": target}, said.at), then_end
    if name in ("click", "double_click", "right_click") and not then.inline and not {"x", "y"} & set(then.values):
        return Said(then.name, {**then.values, "point": moved}, said.at), then_end
    return said, end


def _call(text: str, call: re.Match[str], spent: set[str], depth: int = 0) -> tuple[Said, int]:
    values, inline, places, end = _arguments(text, call.end(), folded(call[2]), spent, depth)
    said = Said(call[2], values, call.start(), inline, (call[1] or "").lower(), places)
    name = folded(call[2])
    if name in TOOLS and isinstance(values.get("action"), str):
        said = Said(values.pop("action"), values, call.start(), inline, name, places)
    return said, end


def _arguments(
    text: str, at: int, called: str, spent: set[str], depth: int
) -> tuple[dict[str, Any], tuple[Any, ...], dict[str, int], int]:
    """The arguments by name, those without one, where they stand, and where the call ends."""
    values: dict[str, Any] = {}
    places: dict[str, int] = {}
    inline: list[Any] = []
    value = None
    for _ in range(_MOST_PARAMETERS + 1):
        end = _END.match(text, at)
        if end:
            return values, tuple(inline), places, end.end()
        # Of keys without names there may have been more.
        whole_so_far = value is not None and value.complete and not (inline and called in _SEVERAL)
        whole_so_far = whole_so_far and text[at : at + 1] not in (",", "，")
        if whole_so_far and _OPEN_END.match(text, at):
            return values, tuple(inline), places, len(text)
        start = _SEPARATOR.match(text, at).end()
        parameter = _PARAMETER.match(text, start)
        if parameter is not None:
            name = parameter[1]
            value, at = _value(text, parameter.end(), folded(name), spent, depth)
            if name in values and values[name] != value.said:
                raise ParseFailure(f"{name[:40]} is given twice", start)
            values[name], places[name] = value.said, value.position if is_parameter(name) else start
        elif values or called == "gesture" or not _VALUE.match(text, start):
            raise ParseFailure("a parameter or a closing bracket was expected", at)
        else:
            value, at = _value(text, start, "", spent, depth)
            inline.append(value.said)
    raise ParseFailure(f"more than {_MOST_PARAMETERS} parameters", at)


def _value(text: str, at: int, name: str, spent: set[str], depth: int) -> tuple[_Value, int]:
    """A quoted string, a list or an object, or an unquoted point, number or word."""
    prefix = _PREFIX.match(text, at) if text[at : at + 1].isalpha() else None
    start = prefix.end() if prefix else at
    if start < len(text) and text[start] in QUOTES:
        return _string(text, start, name, spent, raw=bool(prefix and "r" in prefix[0].lower()))
    if text.startswith(("[", "{"), at):
        if name == "actions" and depth == 0:
            return _gestures(text, at + 1, spent)
        try:
            value, end = loose_json.read(text, at)
            return _Value(value, at), end
        except ParseFailure:
            pass
    bare = _BARE.match(text, at)
    if bare is None or (bare[0][0] in "([{" and not _PLAIN_LIST.fullmatch(bare[0])):
        raise ParseFailure("a value was expected", at)
    closed = _UNQUOTED_END.fullmatch(bare[0]) is not None
    ended = bare.end() < len(text)
    return _Value(None if bare[0] == "None" else bare[0], at, closed or ended), bare.end()


def _string(text: str, at: int, name: str, spent: set[str], *, raw: bool) -> tuple[_Value, int]:
    if text.startswith(text[at] * 3, at) and (end := text.find(text[at] * 3, at + 3)) >= 0:
        return _Value(_content(text[at + 3 : end], at + 3, raw), at + 3), end + 3
    if name in _WITHOUT_QUOTES:
        end = next_quote(text, at)
        if end < 0:  # a point says itself where it ends
            point = _UNQUOTED_END.match(text, at + 1)
            if point and _OPEN_END.match(text.replace(")", " "), point.end()):
                return _Value(point[0], at + 1), len(text)
            raise ParseFailure("the string is not closed", at)
        return _Value(_content(text[at + 1 : end], at + 1, raw), at + 1), end + 1
    end = closing(text, at, _AFTER if name else _AFTER_NAMELESS, spent)
    if end < 0:
        raise ParseFailure("the string is not closed", at)
    if end == at + 1 and end + 1 == len(text):
        raise ParseFailure("the string may be cut", at)
    _check_text(text, at, end)
    return _Value(_content(text[at + 1 : end], at + 1, raw), at + 1), end + 1


def _check_text(text: str, at: int, end: int) -> None:
    """Raises ParseFailure where quotes within a text say that it may end elsewhere."""
    inner, quote = text[at + 1 : end], text[at]
    if quote not in inner and "," not in inner:
        return
    if double_quoted(text, at, end):
        raise ambiguous("two quotes where one ends a text", at)
    if any(quote in found[0] and is_parameter(found[1]) for found in _SWALLOWED.finditer(inner)):
        raise ambiguous("a text, or one that ends before a further parameter?", at)


def _content(written: str, at: int, raw: bool) -> str:
    return whole(written) if raw else content_of(written, at)


def _gestures(text: str, at: int, spent: set[str]) -> tuple[_Value, int]:
    """A list of calls."""
    calls, begin = [], at
    for _ in range(_MOST_GESTURES):
        at = _SEPARATOR.match(text, at).end()
        if text.startswith("]", at):
            return _Value(calls, begin), at + 1
        call = CALL.match(text, at)
        if call is None:
            break
        said, at = _call(text, call, spent, 1)
        calls.append(said)
    raise ParseFailure("a call or a closing bracket was expected", at)


def write(action: Action, grammar: Grammar) -> str:
    """The action in the one form that `grammar` has for it."""
    box = "box" if grammar.form in ("ui_tars_1_5", "ui_tars_1_0") else "point"
    only = "start_box" if box == "box" else "point"

    def spot(point: Point) -> str:
        return f"'{_spot(point, grammar)}'"

    name = act.NAMES.get(type(action), "")
    match action:
        case (
            act.Click(point) | act.LeftDouble(point) | act.RightSingle(point) | act.Hover(point) | act.LongPress(point)
        ):
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
        case act.RunPython(code):
            return f"python(code='{escape(code)}')"
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
    if grammar.space.kind == "fractions":
        return f"<point>{x:.4f} {y:.4f}</point>"
    # In a space of two digits numbers are written with both, so that each point takes the same number of tokens.
    width = 2 if grammar.space.kind == "points" and grammar.space.x.size <= 100 else 1
    return f"<point>{x:0{width}d} {y:0{width}d}</point>"
