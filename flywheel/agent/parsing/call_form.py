"""Parse and write actions as function calls, `click(point='<point>52 31</point>')`; parse commands, `TYPE [text]`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, NamedTuple

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point, replace_surrogates
from flywheel.agent.grammar import CoordinateSpace, Grammar
from flywheel.agent.parsing import lexing, normalise
from flywheel.agent.parsing.lexing import ParseFailure, RawCall, ambiguous_text, fold_name, unsupported_action
from flywheel.agent.parsing.normalise import MAX_KEYS

# Fast path for a call in exactly the form that this module writes, to which a trained model mostly keeps. It returns
# what the tolerant parser below returns, or None; a test compares the two.

_NUMBER = r"(\d{1,6}|0\.\d{1,4})"  # the second form only in a space of fractions
_SPOT = rf"'(?:<point>|<\|box_start\|>\(|\(){_NUMBER}[ ,]{_NUMBER}(?:</point>|\)<\|box_end\|>|\))'"
_TEXT = r"'([^'\\]*(?:\\.[^'\\]*)*)'"
# Patterns of the fields that are not written as a text under the field's own name.
_PLAIN_FIELDS = {
    "point": rf"(?:point|start_box)={_SPOT}",
    "start_point": rf"start_(?:point|box)={_SPOT}",
    "end_point": rf"end_(?:point|box)={_SPOT}",
    "direction": "direction='(up|down|left|right)'",
    "keys": r"key='([^'\\]+)'",
    "key": r"key='([^'\\]+)'",
}
_LONGEST_NAME = 16


def _plain_form(kind: type[Action]) -> tuple[re.Pattern[str], type[Action], tuple[str, ...]]:
    names = tuple(field.name for field in fields(kind))
    arguments = ", ".join(_PLAIN_FIELDS.get(name, f"{name}={_TEXT}") for name in names)
    return re.compile(rf"\({arguments}\)\s*\Z", re.DOTALL), kind, names


_PLAIN_FORMS = {
    name: _plain_form(kind)
    for kind, name in act.ACTION_NAMES.items()
    if kind not in (act.WriteFile, act.ToolCall, act.TypeAt)
}


def parse_plain_call(text: str, start: int, space: CoordinateSpace) -> Action | None:
    """Parse all of `text[start:]` as one call in exactly the form that `format_call` writes; None for anything else.

    space: what the numbers of points mean.
    """
    bracket = text.find("(", start, start + _LONGEST_NAME)
    form = _PLAIN_FORMS.get(text[start:bracket]) if bracket > 0 else None
    if form is None:
        return None
    pattern, kind, names = form
    found = pattern.match(text, bracket)
    if found is None:
        return kind() if kind is act.Finished and _BARE_END.match(text, bracket) else None
    values, written = [], iter(found.groups())
    for name in names:
        value = _plain_value(name, next(written), written, space)
        if value is None:
            return None
        values.append(value)
    return kind(*values)


_BARE_END = re.compile(r"\(\)\s*\Z")


def _plain_value(name: str, first: str, more: Iterator[str], space: CoordinateSpace) -> Any:
    """Return the value of a field from its groups, `first` and then `more`; None where it needs the tolerant parser."""
    match name:
        case "point" | "start_point" | "end_point":
            return _point(first, next(more), space)
        case "direction":
            return first
        case "keys" | "key":
            try:
                keys = tuple(lexing.split_keys(replace_surrogates(first)))
            except ParseFailure:
                return None
            if name == "key":
                return keys[0] if len(keys) == 1 else None
            return keys if 1 <= len(keys) <= MAX_KEYS else None
    return None if lexing.looks_like_path(first) else lexing.unescape_text(first)


def _point(x: str, y: str, space: CoordinateSpace) -> Point | None:
    if "." in x or "." in y:
        if space.kind != "norm1":
            return None
        column, row = float(x), float(y)
    else:
        column, row = int(x), int(y)
    if column > space.x.size or row > space.y.size:
        return None
    return Point(space.x.read(column), space.y.read(row))


# Tolerant reading of calls: `click(point='<point>52 31</point>')`, the older form with `start_box`, and code. It takes
# time linear in the text, and nothing is ever evaluated.

_MODULE = "|".join(sorted(normalise.CODE_LIBRARIES))
CALL_START = re.compile(rf"(?:({_MODULE})\.)?([A-Za-z_]\w{{0,40}})[ \t]*[(（]", re.IGNORECASE)
_MORE = re.compile(r"[)）\]}'\"\s]*\w")
_BETWEEN = re.compile(r"(?:[\s`;,*]|#[^\n]*)*(?:action[ \t*]*[:：])?(?:[\s`*;]|#[^\n]*)*", re.IGNORECASE)
_WORD = re.compile(r"[^\s(]{0,41}")
_END = re.compile(r"[\s,，]*[)）]")
_SEPARATOR = re.compile(r"[\s,，]*")
_PARAMETER = re.compile(r"([A-Za-z_]\w*)\s*[=＝]\s*(?!=)")
_CLOSED = r"<\|box_start\|>[^<]*<\|box_end\|>|<(\w{1,12})>[^<]*</\1>|[\[(（][^\])）]{0,200}[\])）]|\{[^{}]*\}"
_BARE = re.compile(_CLOSED + r"|[^\s,)）'\"]+")
_UNQUOTED_END = re.compile(rf"(?:{_CLOSED})")
# Allowed after a string: the closing bracket and an end, or a further parameter, or (no names) a further value.
_AFTER_CALL = (
    r"\s*(?:[)）]\s*(?:$|\n|[`;#]|<[|<]|</?[a-z]|[a-z_]+\(|(?:[Tt]hought|[Aa]ction)\s*[:：])"
    r"|[,，]\s*[A-Za-z_]+\s*[=＝]\s*(?:['\"‘’“”<\[(（{\d-]|[Tt]rue|[Ff]alse|None)"
)
_AFTER = re.compile(_AFTER_CALL + ")")
_AFTER_NAMELESS = re.compile(_AFTER_CALL + r"|[,，]\s*['\"\d.-])")
_IMPORT = re.compile(r"import pyautogui")
# Beginning of a value without a name: a word without quotes is a variable, which has no value here.
_VALUE = re.compile(r"[rRuUbB]{1,2}['\"]|['\"‘’“”＇＂<\[(（{\d.-]")
_PREFIX = re.compile(r"[rRuUbB]{1,2}(?=['\"])")
# Allowed after the last value of a call whose bracket is missing: the tags that wrapped the call, then the end.
_OPEN_END = re.compile(r"(?:\s|`|</[\w:]{1,20}>|<\|\w{1,20}\|>)*\Z")
_PLAIN_LIST = re.compile(r"[^='\"]{2,}")
# What looks like a further parameter within a text.
_SWALLOWED = re.compile(r"(?:(?<!\\)['\"]\s*,?|,)\s*\b([A-Za-z_]+)\s*(?:[=＝]\s*['\"]?|['\"])")
_WITHOUT_QUOTES = frozenset(
    {"point", "start_point", "end_point", "start_box", "end_box", "box", "bbox", "direction", "time"}
)
_SEVERAL = frozenset({"hotkey", "press", "typewrite", "key"})
_MOST_PARAMETERS = 8  # of a call; no action has more than three
_MOST_ACTIONS = 8  # actions that are read after the first
_MOST_GESTURES = 12  # calls within a call


class _Value(NamedTuple):
    said: Any
    position: int
    complete: bool = True  # False for a bare word or number at the end of the text, which may be cut


def begins_call(text: str, at: int) -> bool:
    """Tell whether a call of a known action begins at the offset `at` of `text`."""
    call = CALL_START.match(text, at)
    return call is not None and _known(call)


def _known(call: re.Match[str]) -> bool:
    return normalise.is_known_action(call[2]) or (call[1] is not None and call[1].lower() != "time")


def parse_call(text: str, start: int, grammar: Grammar) -> tuple[RawCall, int]:
    """Parse the call that begins at the offset `start`, tolerantly; return it and the offset of its end.

    Calls of code that sleep first are skipped; calls that together are one action are joined. Raises ParseFailure where
    it cannot be read.
    """
    call = CALL_START.match(text, start)
    if call is None or not _known(call):
        word = _WORD.match(text, start)[0][:40]
        raise ParseFailure(f"unknown action {word!r}" if word else "the action is empty", start)
    spent: set[str] = set()
    raw, end = _call(text, call, spent)
    for _ in range(_MOST_ACTIONS):  # code may sleep before it acts
        further = find_next_call(text, end) if raw.tool == "time" else -1
        if further < 0:
            break
        raw, end = _call(text, CALL_START.match(text, further), spent)
    if raw.tool == "time" and "pyautogui" in _IMPORT.sub("", text):
        raise ParseFailure("the code beside it is not read", start)
    return _join_calls(text, raw, end, spent)


def find_next_call(text: str, at: int) -> int:
    """Return the offset of the call that follows one that ended at the offset `at`; -1 where none follows."""
    at = _BETWEEN.match(text, at).end()
    return at if begins_call(text, at) else -1


def check_nothing_follows(text: str, at: int) -> None:
    """Check that only calls that wait follow a call that ended at the offset `at`; raise ParseFailure for others."""
    for _ in range(_MOST_ACTIONS):
        at = _BETWEEN.match(text, at).end()
        if not begins_call(text, at):
            break
        raw, at = _call(text, CALL_START.match(text, at), set())
        if not _waits(raw):
            raise unsupported_action("several actions in one step", raw.at)
    if not _OPEN_END.match(text, at):
        raise ParseFailure("more stands behind the action", at)


def _waits(call: RawCall) -> bool:
    return call.tool == "time" or normalise.ACTION_OF_SYNONYM.get(fold_name(call.name)) == "wait"


_JOINED = frozenset({"hover", "type", "press"})  # first calls of actions that code makes of several


def _join_calls(text: str, said: RawCall, end: int, spent: set[str]) -> tuple[RawCall, int]:
    """Join calls of code that are one action: the mouse is moved, then used there; a text is typed, then sent; keys are
    held while another is pressed. Raises ParseFailure where the calls after a move or a held key do not fit."""
    moves = fold_name(said.name) in ("move_to", "moveto")
    if not (moves or said.tool) or normalise.ACTION_OF_SYNONYM.get(fold_name(said.name)) not in _JOINED:
        return said, end
    first, values, _ = normalise.normalise_call(said)
    if first not in _JOINED:  # pyautogui's `press` lets the key go
        return said, end
    calls: list[tuple[RawCall, int]] = []  # each with the offset of its end
    at = end
    while len(calls) < (2 * MAX_KEYS if first == "press" else 1):
        at = _BETWEEN.match(text, at).end()
        call = CALL_START.match(text, at)
        if call is None or call[1] is None:
            break
        try:
            raw, at = _call(text, call, spent)
        except ParseFailure:
            if first == "type":
                return said, end
            raise
        if first == "press" or not _waits(raw):
            calls.append((raw, at))
    if first == "type":
        if not calls or not isinstance(values.get("content"), str) or not _is_enter(calls[0][0]):
            return said, end
        return RawCall("type", {"content": values["content"] + "\n"}, said.at), calls[0][1]
    if not calls:
        if moves and _MORE.match(text, at):  # what was to be done there cannot be read
            raise ParseFailure("a move of the mouse, and nothing readable behind it", at)
        return said, end
    return (
        _join_held_keys(said, calls)
        if first == "press"
        else (_join_move(values.get("point"), said, calls[0][0]), calls[0][1])
    )


def _is_enter(call: RawCall) -> bool:
    try:
        name, values, _ = normalise.normalise_call(call)
        return name == "hotkey" and lexing.split_keys(str(values["key"])) in (["enter"], ["return"])
    except ParseFailure:
        return False


def _join_move(point: Any, said: RawCall, then: RawCall) -> RawCall:
    """Join a move of the mouse to `point` (`said`) with the call that uses it there (`then`)."""
    name, values, _ = normalise.normalise_call(then)
    if name == "drag" and fold_name(then.name) in ("drag_to", "dragto"):
        target = values.pop("point", values.get("end_point"))
        return RawCall("drag", {"start_point": point, "end_point": target}, said.at)
    if name in ("click", "left_double", "left_triple", "right_single", "scroll") and "point" not in values:
        return RawCall(name, {**values, "point": point}, said.at)
    raise unsupported_action(f"a move of the mouse, then {fold_name(then.name)}", then.at)


def _join_held_keys(said: RawCall, calls: list[tuple[RawCall, int]]) -> tuple[RawCall, int]:
    """Join calls that hold keys, press at most one more and release them to a hotkey; return it and where it ends."""
    names, keys = [], []
    for call in (said, *(call for call, _ in calls)):
        name, values, _ = normalise.normalise_call(call)
        names.append(name)
        key = values.get("key")
        keys.append(key[0] if isinstance(key, list) and len(key) == 1 else key)
    held = next((place for place, name in enumerate(names) if name != "press"), len(names))
    pressed = held + (names[held : held + 1] == ["hotkey"])
    size = pressed + held
    if names[pressed:size] != ["release"] * held or sorted(map(str, keys[:held])) != sorted(
        map(str, keys[pressed:size])
    ):
        raise unsupported_action(f"a key held, then {fold_name(calls[0][0].name)}", calls[0][0].at)
    return RawCall("hotkey", {"key": keys[:pressed]}, said.at), calls[size - 2][1]


def _call(text: str, call: re.Match[str], spent: set[str], depth: int = 0) -> tuple[RawCall, int]:
    values, inline, places, end = _arguments(text, call.end(), fold_name(call[2]), spent, depth)
    raw = RawCall(call[2], values, call.start(), inline, (call[1] or "").lower(), places)
    name = fold_name(call[2])
    if name in normalise.COMPUTER_TOOLS and isinstance(values.get("action"), str):
        raw = RawCall(values.pop("action"), values, call.start(), inline, name, places)
    return raw, end


def _arguments(
    text: str, at: int, called: str, spent: set[str], depth: int
) -> tuple[dict[str, Any], tuple[Any, ...], dict[str, int], int]:
    """Return a call's named arguments, its positional ones, offsets of the named ones, and the offset of its end."""
    values: dict[str, Any] = {}
    places: dict[str, int] = {}
    inline: list[Any] = []
    value = None
    for _ in range(_MOST_PARAMETERS + 1):
        end = _END.match(text, at)
        if end:
            return values, tuple(inline), places, end.end()
        # A list of positional keys may have been cut.
        whole_so_far = value is not None and value.complete and not (inline and called in _SEVERAL)
        whole_so_far = whole_so_far and text[at : at + 1] not in (",", "，")
        if whole_so_far and _OPEN_END.match(text, at):
            return values, tuple(inline), places, len(text)
        start = _SEPARATOR.match(text, at).end()
        parameter = _PARAMETER.match(text, start)
        if parameter is not None:
            name = parameter[1]
            value, at = _value(text, parameter.end(), fold_name(name), spent, depth)
            if name in values and values[name] != value.said:
                raise ParseFailure(f"{name[:40]} is given twice", start)
            values[name], places[name] = value.said, value.position if normalise.is_known_parameter(name) else start
        elif values or called == "gesture" or not _VALUE.match(text, start):
            raise ParseFailure("a parameter or a closing bracket was expected", at)
        else:
            value, at = _value(text, start, "", spent, depth)
            inline.append(value.said)
    raise ParseFailure(f"more than {_MOST_PARAMETERS} parameters", at)


def _value(text: str, at: int, name: str, spent: set[str], depth: int) -> tuple[_Value, int]:
    """Read a quoted string, a list, an object, or a bare point, number or word; return it and the offset of its end."""
    prefix = _PREFIX.match(text, at) if text[at : at + 1].isalpha() else None
    start = prefix.end() if prefix else at
    if start < len(text) and text[start] in lexing.QUOTES:
        return _string(text, start, name, spent, raw=bool(prefix and "r" in prefix[0].lower()))
    if text.startswith(("[", "{"), at):
        if name == "actions" and depth == 0:
            return _gestures(text, at + 1, spent)
        try:
            value, end = lexing.parse_json(text, at)
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
        end = lexing.find_next_quote(text, at)
        if end < 0:  # a point has an end mark of its own
            point = _UNQUOTED_END.match(text, at + 1)
            if point and _OPEN_END.match(text.replace(")", " "), point.end()):
                return _Value(point[0], at + 1), len(text)
            raise ParseFailure("the string is not closed", at)
        return _Value(_content(text[at + 1 : end], at + 1, raw), at + 1), end + 1
    end = lexing.find_closing_quote(text, at, _AFTER if name else _AFTER_NAMELESS, spent)
    if end < 0:
        raise ParseFailure("the string is not closed", at)
    if end == at + 1 and end + 1 == len(text):
        raise ParseFailure("the string may be cut", at)
    _check_text(text, at, end)
    return _Value(_content(text[at + 1 : end], at + 1, raw), at + 1), end + 1


def _check_text(text: str, at: int, end: int) -> None:
    """Raise ParseFailure where quotes within a text show that it may end elsewhere."""
    inner, quote = text[at + 1 : end], text[at]
    if quote not in inner and "," not in inner:
        return
    if lexing.has_doubled_quote(text, at, end):
        raise ambiguous_text("two quotes where one ends a text", at)
    if any(quote in found[0] and normalise.is_known_parameter(found[1]) for found in _SWALLOWED.finditer(inner)):
        raise ambiguous_text("a text, or one that ends before a further parameter?", at)


def _content(written: str, at: int, raw: bool) -> str:
    return replace_surrogates(written) if raw else lexing.read_string_content(written, at)


def _gestures(text: str, at: int, spent: set[str]) -> tuple[_Value, int]:
    """Read a list of calls."""
    calls, begin = [], at
    for _ in range(_MOST_GESTURES):
        at = _SEPARATOR.match(text, at).end()
        if text.startswith("]", at):
            return _Value(calls, begin), at + 1
        call = CALL_START.match(text, at)
        if call is None:
            break
        raw, at = _call(text, call, spent, 1)
        calls.append(raw)
    raise ParseFailure("a call or a closing bracket was expected", at)


_BOX_NAMES = {"point": "start_box", "start_point": "start_box", "end_point": "end_box"}


def format_call(action: Action, grammar: Grammar) -> str:
    """Write `action` as a call, in the form of `grammar`. Raises TypeError for what is no action."""
    if type(action) not in act.ACTION_NAMES:
        raise TypeError(f"not an action: {action!r}")
    names = {"keys": "key"} | (_BOX_NAMES if grammar.form in ("ui_tars_1_5", "ui_tars_1_0") else {})
    given = {} if action == act.Finished("") else {k: value for k, value in vars(action).items() if value is not False}
    arguments = [f"{names.get(name, name)}='{_argument(name, value, grammar)}'" for name, value in given.items()]
    return f"{act.ACTION_NAMES[type(action)]}({', '.join(arguments)})"


def _argument(name: str, value: Any, grammar: Grammar) -> str:
    if isinstance(value, Point):
        return _spot(value, grammar)
    if value is True:
        return "true"
    if name in ("key", "keys"):
        value = " ".join(lexing.spell_keys((value,) if name == "key" else value))
    return lexing.escape_text(value)


def _spot(point: Point, grammar: Grammar) -> str:
    x, y = grammar.space.x.write(point.x), grammar.space.y.write(point.y)
    match grammar.form:
        case "ui_tars_1_0":
            return f"<|box_start|>({x},{y})<|box_end|>"
        case "ui_tars_1_5":
            return f"({x},{y})"
    if grammar.space.kind == "norm1":
        return f"<point>{x:.4f} {y:.4f}</point>"
    # In a grid of at most 100 cells numbers have two digits, so that each point takes the same number of tokens.
    width = 2 if grammar.space.kind == "grid" and grammar.space.x.size <= 100 else 1
    return f"<point>{x:0{width}d} {y:0{width}d}</point>"


# Commands in capitals.
#
#     CLICK <point>[[301, 774]]</point>     TYPE [text]     SCROLL [UP]     PRESS_BACK       OS-Atlas
#     explain:...<tab>action:CLICK<tab>point:512,108<tab>summary:...                         Step-GUI (GELab-Zero)
#     ```DONE```     ```WAIT```     ```FAIL```                                               OSWorld's prompts

_POINTED = re.compile(
    r"((?:DOUBLE_|TRIPLE_|RIGHT_)?CLICK|LONG_PRESS|TAP)[ \t]*:?[ \t]*((?:<point>)?[\[(][^\n<]{1,100}[\])](?:</point>)?)"
)
_TYPED = re.compile(r"(TYPE|SCROLL|OPEN_APP|OPEN|ANSWER|NAVIGATE)[ \t]*:?[ \t]*\[")
_ALONE = re.compile(
    r"(PRESS_BACK|PRESS_HOME|NAVIGATE_BACK|NAVIGATE_HOME|PRESS_RECENT|PRESS_ENTER|ENTER|WAIT|COMPLETE|DONE|FAIL"
    r"|IMPOSSIBLE)[ \t]*(?:\[\])?(?=(?:\s|`|</?[\w:]{1,20}>|<\|\w{1,20}\|>)*\Z)"
)
_FIELDS = re.compile(r"(?:explain[ ]?:[^\t\n]*\t\s*)?action[ ]?:[ ]*([A-Z_]{2,30})[ ]*(?=\t|\s*\Z)")
_CLOSE = re.compile(r"\][ \t]*(?=\n|\Z|<|`)")
_MOST_FIELDS = 12


def begins_command(text: str, at: int) -> bool:
    """Tell whether a command in capitals (`TYPE [text]`) begins at the offset `at` of `text`."""
    if not (text[at : at + 1].isupper() or text.startswith(("action", "explain"), at)):
        return False
    return any(form.match(text, at) for form in (_POINTED, _TYPED, _ALONE, _FIELDS))


def parse_command(text: str, start: int) -> tuple[RawCall, int]:
    """Parse the command in capitals that begins at the offset `start`; return it and the offset of its end.

    Raises ParseFailure where it cannot be read.
    """
    fields = _FIELDS.match(text, start)
    if fields:
        return _fields(text, fields), len(text)
    pointed = _POINTED.match(text, start)
    if pointed:
        return RawCall(pointed[1], {"point": pointed[2]}, start), pointed.end()
    typed = _TYPED.match(text, start)
    if typed:
        close = _CLOSE.search(text, typed.end())
        if close is None:
            raise ParseFailure("the closing bracket is missing", typed.end())
        if text.count("[", typed.end(), close.start()) != text.count("]", typed.end(), close.start()):
            raise ParseFailure("a bracket is not closed", typed.end())
        name = "direction" if typed[1] == "SCROLL" else "content"
        return RawCall(typed[1], {name: replace_surrogates(text[typed.end() : close.start()])}, start), close.end()
    alone = _ALONE.match(text, start)
    if alone is None:
        raise ParseFailure("unknown command", start)
    return RawCall(alone[1], {}, start), alone.end()


def _fields(text: str, fields: re.Match[str]) -> RawCall:
    """Parse fields `key:value` between tabs; a point stays a text."""
    values: dict[str, str] = {}
    written = text[fields.end() :].split("\t")
    if len(written) > _MOST_FIELDS:
        raise ParseFailure(f"more than {_MOST_FIELDS} fields", fields.end())
    for one in written:
        key, colon, value = one.strip().partition(":")
        if not colon and key:
            raise ParseFailure("a field has no name", fields.end())
        if not key:
            continue
        values[key.strip()] = replace_surrogates(value.strip())
    if values and key.strip() != "summary" and not written[-1].endswith("\n"):
        raise ParseFailure("the last field may be cut", len(text))
    return RawCall(fields[1], values, fields.start())
