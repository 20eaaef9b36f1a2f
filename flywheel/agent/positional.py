"""Arguments without names, by the order that the form has for them."""

from __future__ import annotations

from typing import Any

from flywheel.agent.parse_failure import ParseFailure
from flywheel.agent.synonyms import CODE, NAMES, TAKES
from flywheel.agent.vocabulary import DIRECTIONS
from flywheel.agent.written_call import Said, is_number


def by_position(name: str, call: Said) -> dict[str, Any]:
    """The arguments that have no names, by the order that the form has for them."""
    given, known = call.inline, NAMES.get(name, name)
    if known == "hotkey" or (known in ("press", "release")):
        if known == "press" and call.tool == CODE and len(given) == 2 and is_number(given[1]):
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
        "python": ("code",),
        "read_file": ("path",),
        "list_files": ("path",),
        "write_file": ("path", "content"),
        "call_tool": ("tool", "arguments"),
        "wait": (),
        "call_user": (),
        "system_button": ("button",),
        "terminate": ("status",),
    }.get(known, ("content",))
    if known == "type" and call.tool == CODE and len(given) == 2 and is_number(given[1]):
        given = given[:1]  # pyautogui's interval
    if len(given) > len(names) and names:
        raise ParseFailure(f"{call.name[:40]} takes {len(names)} values without a name, and has {len(given)}", call.at)
    return dict(zip(names, given, strict=False))


def _placed(known: str, name: str, given: tuple[Any, ...], call: Said) -> dict[str, Any]:
    if len(given) >= 2 and all(map(is_number, given[:2])):
        point, rest = list(given[:2]), given[2:]
    else:
        point, rest = given[0], given[1:]
    if known == "drag" and name not in ("drag_to", "dragto"):
        if len(rest) == 2 and all(map(is_number, rest)):
            rest = (list(rest),)
        if len(rest) != 1:
            raise ParseFailure("a drag takes two points", call.at)
        return {"start_point": point, "end_point": rest[0]}
    if known == "drag":
        return {"end_point": point}  # then the time that it takes
    if known == "click" and call.tool == CODE and len(rest) in (1, 2) and is_number(rest[0]):
        return {"point": point, "clicks": rest[0]}  # then pyautogui's interval
    if rest:
        raise ParseFailure(f"{call.name[:40]} takes a point, and more is given", call.at)
    return {"point": point}


def _scrolled(given: tuple[Any, ...], call: Said) -> dict[str, Any]:
    values: dict[str, Any] = {}
    code = call.tool == CODE
    numbers = [one for one in given if is_number(one)]
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
