"""Where the arguments say which action is meant: of names that stand for several, and of actions with more to them.

`RENAMED` comes first, by the name as it was written; `FINISHED` last, by the grammar's own. Both change the values and
give the name to go on with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flywheel.agent.parse_failure import ParseFailure, ambiguous, no_such_action
from flywheel.agent.synonyms import BACK_ON_PHONES, BUTTON_NAMES, CODE, DONE, FAILED, LEFT, RIGHT
from flywheel.agent.vocabulary import DIRECTIONS, numbers_of, said, text_of
from flywheel.agent.written_call import Said, flag, folded, number


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
    amount = number(values.pop("amount", None))
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


def _back(values: dict[str, Any], call: Said) -> str:
    return "press_back" if folded(call.tool) in BACK_ON_PHONES else "navigate_back"


def _scroll_to_side(values: dict[str, Any], call: Said) -> str:
    values["direction"] = folded(call.name).removeprefix("scroll_")
    values.pop("amount", None)
    return "scroll"


RENAMED: dict[str, Callable[[dict[str, Any], Said], str]] = {
    "swipe": _swipe,
    "hscroll": _hscroll,
    "system_button": _system_button,
    "terminate": _terminate,
    "launch": _launch,
    "back": _back,
    **{f"scroll_{direction}": _scroll_to_side for direction in DIRECTIONS},
}

# What remains to be done for an action, once its name is the grammar's.


def _finish_click(name: str, values: dict[str, Any], call: Said) -> str:
    """Buttons and numbers of clicks make other actions of a click."""
    if "button" not in values and "clicks" not in values:
        return name
    button = said(values.pop("button", "left")).strip().lower()
    clicks = number(values.pop("clicks", 1))
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
        down, right = number(values.pop("scroll_y", 0)), number(values.pop("scroll_x", 0))
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
        amount, direction = number(values.pop("amount")), said(values["direction"]).strip().lower()
        if amount is not None and amount < 0 and direction not in ("down", "left"):
            raise ambiguous(f"a scroll {direction[:20]} by {amount:g}", call.at)
    return name


def _finish_key(name: str, values: dict[str, Any], call: Said) -> str:
    """Keys may be called text. pyautogui's `press` lets go again."""
    if "key" not in values and "content" in values:
        values["key"] = values.pop("content")
    if name == "press" and call.tool == CODE and folded(call.name) == "press":
        name = "hotkey"
    if "clicks" in values and number(values.pop("clicks")) != 1:
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
    if flag(values.pop("clear", False)):
        raise no_such_action("to clear a field and type in one action", call.at)
    if flag(values.pop("submit", False)) and "content" in values:
        values["content"] = text_of(values["content"], call.at).rstrip("\n") + "\n"
    return name


def _finish_end(name: str, values: dict[str, Any], call: Said) -> str:
    return "call_user" if said(values.get("status", "")).strip().lower() in FAILED else name


def _finish_open(name: str, values: dict[str, Any], call: Said) -> str:
    if "content" in values:
        values.setdefault("app_name", values.pop("content"))
    return name


FINISHED: dict[str, Callable[[str, dict[str, Any], Said], str]] = {
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
