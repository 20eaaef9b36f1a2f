"""What the words of other models mean: from a call as it was written, in any text form, to the grammar's own words.

One table of names and one of parameters for all forms (call, JSON, tags, commands). A parameter that is known and
changes nothing is let pass, one that changes the meaning is honoured or refused, one that is not known is refused.
The tables themselves are in `synonyms.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flywheel.agent.actions import Action
from flywheel.agent.coordinates import Space
from flywheel.agent.parse_failure import ParseFailure, ambiguous, no_such_action
from flywheel.agent.synonyms import (
    ABSENT,
    BACK_ON_PHONES,
    BUTTON_NAMES,
    CODE,
    DONE,
    FAILED,
    KEYS,
    LEFT,
    NAMES,
    PARAMETERS,
    RIGHT,
    TAKES,
    TOOLS,
)
from flywheel.agent.vocabulary import DIRECTIONS, Arguments, build, numbers_of, said, text_of

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NO_TEXT = "no input text"  # GUI-R1's word for none
_NO_POINT = [-100, -100]  # and its point


@dataclass(slots=True)
class Said:
    """A call as it was written. values: by the model's own names. inline: those without a name. at: where it begins.

    tool: the module or the tool whose function it is. places: where in the text the values stand. behind: further
    calls of the same list.
    """

    name: str
    values: Mapping[str, Any]
    at: int
    inline: tuple[Any, ...] = ()
    tool: str = ""
    places: Mapping[str, int] | None = None
    behind: tuple[Said, ...] = ()


@lru_cache(maxsize=1024)
def folded(word: str) -> str:
    """`doubleClick`, `Long Press`, `DOUBLE-CLICK` -> double_click, long_press, double_click."""
    if not word.isupper():
        word = _CAMEL.sub("_", word)
    return word.strip().lower().replace(" ", "_").replace("-", "_")


def is_known(name: str) -> bool:
    """Whether text that begins with this name and a bracket is a call of an action, here or elsewhere."""
    return folded(name) in _EVERY


def is_parameter(word: str) -> bool:
    return word in PARAMETERS or folded(word) in PARAMETERS


def action_of(call: Said, space: Space) -> Action:
    """Raises ParseFailure."""
    name, values, places = in_own_words(call)
    return build(Arguments(name, values, call.at, space, places))


def in_own_words(call: Said) -> tuple[str, dict[str, Any], Mapping[str, int]]:
    """The action's name, its arguments by the grammar's names, and where those stand."""
    name, places, written = folded(call.name), {}, call.places or {}
    known = NAMES.get(name)
    if known is None and name in ABSENT:
        raise no_such_action(name, call.at)
    if known is None and name not in _TURNS and name not in KEYS:
        raise ParseFailure(f"unknown action {call.name[:40]!r}", call.at)
    values: dict[str, Any] = _by_position(name, call) if call.inline else {}
    for word, value in call.values.items():
        known = PARAMETERS.get(word)
        if known is None:
            known = PARAMETERS.get(folded(word))
            if known is None:
                raise ParseFailure(f"unknown parameter {word[:40]!r}", written.get(word, call.at))
        if not known or value is None:
            continue
        if known in values and values[known] != value:
            raise ambiguous(f"{known} is given twice", written.get(word, call.at))
        values[known] = value
        if word in written:
            places[known] = written[word]
    if "content" in values and values["content"] == _NO_TEXT and "input_text" in call.values:
        del values["content"]
    if "point" in values and _says_nothing(values["point"], call):
        del values["point"]
    if "x" in values or "x1" in values or "x2" in values:
        _join_axes(values, call.at)
    turn = _TURNS.get(name)
    if turn is not None:
        name = turn(values, call)
    elif name in KEYS:
        name, values = "hotkey", {"key": KEYS[name]}
    known = NAMES[name]
    if name == "press" and call.tool != CODE and "key" in values and "key" not in call.values:
        raise ambiguous("press: held down, or pressed and let go? write press(key=...) or hotkey(key=...)", call.at)
    finish = _FINISH.get(known)
    if finish is not None:
        known = finish(known, values, call)
    takes = TAKES.get(known)
    if takes is not None and not takes.issuperset(values):
        _refuse_extra(known, values, takes, call.at)
    return known, values, places


def _says_nothing(point: Any, call: Said) -> bool:
    """GUI-R1's placeholder, or `element` where it names the thing in words (Holo) and is no point (AutoGLM)."""
    return point == _NO_POINT or ("element" in call.values and isinstance(point, str) and not numbers_of(point))


def _refuse_extra(name: str, values: Mapping[str, Any], takes: frozenset[str], at: int) -> None:
    for extra, value in values.items():
        if extra in takes or value in ([], "", False, "False", "false"):
            continue
        if name == "type" and extra == "point":
            raise no_such_action("to click and type in one action", at)
        raise no_such_action(f"{name} with {extra} {said(value)[:20]}", at)


def _join_axes(values: dict[str, Any], at: int) -> None:
    """`x=`, `y=` and their kin to points."""
    pairs = (
        ("x", "y", "end_point" if "x2" not in values and "end_point" in values else "point"),
        ("x1", "y1", "start_point"),
        ("x2", "y2", "end_point"),
    )
    for across, down, name in pairs:
        if across in values or down in values:
            place = [values.pop(across, None), values.pop(down, None)]
            if None in place or name in values:
                raise ParseFailure(f"not a point: {said(place)[:40]!r}", at)
            values["point" if name == "end_point" and across == "x" else name] = place


def _by_position(name: str, call: Said) -> dict[str, Any]:
    """The arguments that have no names, by the order that the form has for them."""
    given, known = call.inline, NAMES.get(name, name)
    if known == "hotkey" or (known in ("press", "release")):
        if known == "press" and call.tool == CODE and len(given) == 2 and _is_number(given[1]):
            return {"key": given[0], "clicks": given[1]}
        keys = [key for one in given for key in (one if isinstance(one, list) else [one])]
        return {"key": keys if len(keys) > 1 else keys[0]}
    if known == "scroll" or name == "hscroll":
        return _scrolled(given, call)
    if known in TAKES and known != "type":
        return _placed(known, name, given, call)
    names = {
        "open_app": ("app_name",),
        "terminal": ("command",),
        "read_file": ("path",),
        "list_files": ("path",),
        "write_file": ("path", "content"),
        "call_tool": ("tool", "arguments"),
        "wait": (),
        "call_user": (),
        "system_button": ("button",),
        "terminate": ("status",),
    }.get(known, ("content",))
    if known == "type" and call.tool == CODE and len(given) == 2 and _is_number(given[1]):
        given = given[:1]  # pyautogui's interval
    if len(given) > len(names) and names:
        raise ParseFailure(f"{call.name[:40]} takes {len(names)} values without a name, and has {len(given)}", call.at)
    return dict(zip(names, given, strict=False))


def _placed(known: str, name: str, given: tuple[Any, ...], call: Said) -> dict[str, Any]:
    if len(given) >= 2 and all(map(_is_number, given[:2])):
        point, rest = list(given[:2]), given[2:]
    else:
        point, rest = given[0], given[1:]
    if known == "drag" and name not in ("drag_to", "dragto"):
        if len(rest) == 2 and all(map(_is_number, rest)):
            rest = (list(rest),)
        if len(rest) != 1:
            raise ParseFailure("a drag takes two points", call.at)
        return {"start_point": point, "end_point": rest[0]}
    if known == "drag":
        return {"end_point": point}  # then the time that it takes
    if known == "click" and call.tool == CODE and len(rest) in (1, 2) and _is_number(rest[0]):
        return {"point": point, "clicks": rest[0]}  # then pyautogui's interval
    if rest:
        raise ParseFailure(f"{call.name[:40]} takes a point, and more is given", call.at)
    return {"point": point}


def _scrolled(given: tuple[Any, ...], call: Said) -> dict[str, Any]:
    values: dict[str, Any] = {}
    code = call.tool == CODE
    numbers = [one for one in given if _is_number(one)]
    words = [one for one in given if isinstance(one, str) and one.strip().lower() in DIRECTIONS]
    points = [one for one in given if one not in numbers and one not in words]
    if len(numbers) in (2, 3) and not points and (code or words):
        # pyautogui: the amount, then where; elsewhere the place stands first.
        at = numbers[1:] if code and len(numbers) == 3 else numbers[:2]
        if code and len(numbers) == 2:
            raise ParseFailure("half of a point is missing", call.at)
        points, numbers = [at], [numbers[0]] if code else numbers[2:]
    if len(words) > 1 or len(points) > 1 or len(numbers) > 1 or not (words or numbers):
        raise ParseFailure("not a scroll: an amount or a direction is expected, and a point", call.at)
    values |= {"direction": words[0]} if words else {}
    values |= {"amount": numbers[0]} if numbers else {}
    return values | ({"point": points[0]} if points else {})


def _is_number(value: Any) -> bool:
    return _number(value) is not None


def _number(value: Any) -> float | None:
    if isinstance(value, str) and len(value) < 20:
        try:
            value = float(value)
        except ValueError:
            return None
    return value if type(value) in (int, float) and abs(value) < 1e15 else None


def _flag(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.strip().lower() in ("true", "1", "yes"))


# What names mean that depend on their arguments: each changes the values and gives the name to go on with.


def _swipe(values: dict[str, Any], call: Said) -> str:
    """Two points make a drag; a direction is the finger's, which scrolls the other way."""
    direction = values.get("direction")
    if isinstance(direction, str) and "end_point" not in values:
        opposite = {"up": "down", "down": "up", "left": "right", "right": "left"}
        values["direction"] = opposite.get(direction.strip().lower(), direction)
        values.pop("amount", None)
        return "scroll"
    return "drag"


def _hscroll(values: dict[str, Any], call: Said) -> str:
    """Positive is right (Qwen, pyautogui)."""
    if "direction" not in values:
        values.setdefault("amount", values.pop("clicks", None))
        values["direction"] = _by_sign(values, "left right", call.at)
    return "scroll"


def _by_sign(values: dict[str, Any], directions: str, at: int) -> str:
    amount = _number(values.pop("amount", None))
    if not amount:
        raise ParseFailure(f"not an amount of scrolling: {said(amount)[:20]}", at)
    return directions.split()[amount > 0]


def _system_button(values: dict[str, Any], call: Said) -> str:
    button = said(values.pop("button", values.pop("content", values.pop("key", ""))))[:20].strip().lower()
    values.clear()
    if button not in BUTTON_NAMES:
        known = button in ("menu", "recent", "recents", "app_switch", "power", "volume_up", "volume_down")
        raise (
            no_such_action(f"the button {button}", call.at)
            if known
            else ParseFailure(f"unknown button {button!r}", call.at)
        )
    if button == "enter":
        values["key"] = "enter"
    return BUTTON_NAMES[button]


def _terminate(values: dict[str, Any], call: Said) -> str:
    status = said(values.get("status", "")).strip().lower()
    if status not in DONE and status not in FAILED:
        raise ParseFailure(f"unknown status {status[:20]!r}", call.at)
    return "call_user" if status in FAILED else "finished"


def _launch(values: dict[str, Any], call: Said) -> str:
    """CogAgent: of an application and an address, the address counts."""
    address = values.pop("content", "None") if "url" in call.values else "None"
    if address != "None":
        values.pop("app_name", None)
        values["content"] = address
        return "navigate"
    return "open_app"


def _gesture(values: dict[str, Any], call: Said) -> str:
    """CogAgent's keys together: they go down, one is pressed, they go up."""
    names, keys = [], []
    for one in values.pop("actions", ()):
        name, given, _ = in_own_words(one) if isinstance(one, Said) else ("", {}, {})
        names.append(name)
        keys.append(given.get("key"))
    held = names.count("press")
    if names != ["press"] * held + ["hotkey"] + ["release"] * held or set(keys[:held]) != set(keys[held + 1 :]):
        raise no_such_action("a gesture of other keys than one with others held", call.at)
    values["key"] = keys[: held + 1]
    return "hotkey"


def _back(values: dict[str, Any], call: Said) -> str:
    return "press_back" if folded(call.tool) in BACK_ON_PHONES else "navigate_back"


def _scroll_to_side(values: dict[str, Any], call: Said) -> str:
    values["direction"] = folded(call.name).removeprefix("scroll_")
    values.pop("amount", None)
    return "scroll"


_TURNS: dict[str, Callable[[dict[str, Any], Said], str]] = {
    "swipe": _swipe,
    "hscroll": _hscroll,
    "system_button": _system_button,
    "terminate": _terminate,
    "launch": _launch,
    "gesture": _gesture,
    "back": _back,
    **{f"scroll_{direction}": _scroll_to_side for direction in DIRECTIONS},
}

_EVERY = frozenset({*NAMES, *KEYS, *_TURNS, *ABSENT, *TOOLS})


# What remains to be done for an action, once its name is the grammar's.


def _finish_click(name: str, values: dict[str, Any], call: Said) -> str:
    """Buttons and numbers of clicks make other actions of a click."""
    if "button" not in values and "clicks" not in values:
        return name
    button = said(values.pop("button", "left")).strip().lower()
    clicks = _number(values.pop("clicks", 1))
    if button in LEFT and clicks == 1:
        return name
    if name == "click" and button in LEFT and clicks == 2:
        return "left_double"
    if name in ("click", "right_single") and button in RIGHT and clicks == 1:
        return "right_single"
    raise no_such_action(f"{name} with button {button[:20]}, {said(clicks)} times", call.at)


def _finish_drag(name: str, values: dict[str, Any], call: Said) -> str:
    button = said(values.pop("button", "left")).strip().lower()
    if button not in LEFT:
        raise no_such_action(f"a drag with button {button[:20]}", call.at)
    path = values.pop("path", None)
    if isinstance(path, list):
        values["start_point"], values["end_point"] = _ends(path, call.at)
    if "point" in values:
        point = values["point"]
        if "start_point" in values and "end_point" not in values:  # Qwen and Anthropic: `coordinate` is the end
            values["end_point"] = values.pop("point")
        elif "end_point" not in values and isinstance(point, list) and len(point) == 2 and isinstance(point[0], list):
            values["start_point"], values["end_point"] = values.pop("point")
    return name


def _ends(path: list[Any], at: int) -> list[Any]:
    """A path's two ends, where it is straight: a drag has no other."""
    points = [numbers_of(one) for one in path[:200]]
    if len(path) > 200 or len(path) < 2 or any(len(point) != 2 for point in points):
        raise ParseFailure(f"not a path: {said(path)[:40]}", at)
    (x, y), (to_x, to_y) = points[0], points[-1]
    length = max(abs(to_x - x), abs(to_y - y), 1)
    if length > 1e9 or any(
        abs((to_x - x) * (b - y) - (to_y - y) * (a - x)) > 0.05 * length * length for a, b in points
    ):
        raise no_such_action("a drag along a path that is not straight", at)
    return [points[0], points[-1]]


def _finish_scroll(name: str, values: dict[str, Any], call: Said) -> str:
    """How far is the environment's; the sign of an amount says where to, if nothing else does.

    Qwen, Fara and pyautogui: positive is up. OpenAI's scroll_y and scroll_x: positive is down and right.
    """
    if "scroll_y" in values or "scroll_x" in values:
        down, right = _number(values.pop("scroll_y", 0)), _number(values.pop("scroll_x", 0))
        if down is None or right is None or (not down and not right):
            raise ParseFailure("not an amount of scrolling", call.at)
        if down and right:
            raise no_such_action("a scroll in two directions at once", call.at)
        values["direction"] = ("down" if down > 0 else "up") if down else ("right" if right > 0 else "left")
    if "content" in values and "direction" not in values and str(values["content"]).strip().lower() in DIRECTIONS:
        values["direction"] = values.pop("content")
    if "clicks" in values:
        values.setdefault("amount", values.pop("clicks"))
    if "end_point" in values and "direction" not in values:
        return "drag"
    if "direction" not in values:
        if "amount" in values:
            values["direction"] = _by_sign(values, "down up", call.at)
    elif "amount" in values:
        amount, direction = _number(values.pop("amount")), said(values["direction"]).strip().lower()
        if amount is not None and amount < 0 and direction not in ("down", "left"):
            raise ambiguous(f"a scroll {direction[:20]} by {amount:g}", call.at)
    return name


def _finish_key(name: str, values: dict[str, Any], call: Said) -> str:
    """Keys may be called text. pyautogui's `press` lets go again."""
    if "key" not in values and "content" in values:
        values["key"] = values.pop("content")
    if name == "press" and call.tool == CODE and folded(call.name) == "press":
        name = "hotkey"
    if "clicks" in values and _number(values.pop("clicks")) != 1:
        raise no_such_action(f"{name} more than once", call.at)
    several = isinstance(values.get("key"), list) and len(values["key"]) > 1
    if name == "hotkey" and folded(call.name) == "press" and several:
        raise no_such_action("to press keys one after the other", call.at)
    return name


def _finish_type(name: str, values: dict[str, Any], call: Said) -> str:
    content = values.get("content")
    if isinstance(content, list) and all(isinstance(one, str) for one in content):
        if any(len(one) != 1 for one in content):
            raise no_such_action("to press keys one after the other", call.at)
        values["content"] = "".join(content)
    if _flag(values.pop("clear", False)):
        raise no_such_action("to clear a field and type in one action", call.at)
    if _flag(values.pop("submit", False)) and "content" in values:
        values["content"] = text_of(values["content"], call.at).rstrip("\n") + "\n"
    return name


def _finish_end(name: str, values: dict[str, Any], call: Said) -> str:
    return "call_user" if said(values.get("status", "")).strip().lower() in FAILED else name


def _finish_open(name: str, values: dict[str, Any], call: Said) -> str:
    if "content" in values:
        values.setdefault("app_name", values.pop("content"))
    return name


_FINISH: dict[str, Callable[[str, dict[str, Any], Said], str]] = {
    "click": _finish_click,
    "left_double": _finish_click,
    "right_single": _finish_click,
    "long_press": _finish_click,
    "drag": _finish_drag,
    "scroll": _finish_scroll,
    "hotkey": _finish_key,
    "press": _finish_key,
    "release": _finish_key,
    "type": _finish_type,
    "open_app": _finish_open,
    "finished": _finish_end,
}
