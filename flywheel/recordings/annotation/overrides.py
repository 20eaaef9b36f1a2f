"""Turn what a person does on the screen into one action of the agent, and word a thought for it by rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point
from flywheel.envs.base import Gesture
from flywheel.utils.errors import BadInput

_CLICKS = {1: act.Click, 2: act.LeftDouble, 3: act.LeftTriple}
_KEY_NAMES = {
    "control": "ctrl",
    "meta": "win",
    " ": "space",
    "escape": "esc",
    "arrowup": "up",
    "arrowdown": "down",
    "arrowleft": "left",
    "arrowright": "right",
}  # of KeyboardEvent.key in lower case -> as the model's own steps write it
_MAX_KEYS = 3


def action_of_gestures(gestures: Sequence[Gesture], touch: bool) -> Action:
    """Turn a person's gestures into the one action of the agent that does the same, such as a click, a drag or a text.

    gestures: of that action, in order; a drag is `grab`, `move`s and `drop`, keys held together are a `press` each.
    touch: whether it is a touch screen. Raises BadInput for gestures that are no action.
    """
    first, last = (gestures[0], gestures[-1]) if gestures else (Gesture(""), Gesture(""))
    match first.kind, len(gestures):
        case "click", 1 if first.button == "right":
            return act.LongPress(first.at) if touch else act.RightSingle(first.at)
        case "click", 1 if touch or first.count in _CLICKS:
            return (act.Click if touch else _CLICKS[first.count])(first.at)
        case "long", 1:
            return (act.LongPress if touch else act.RightSingle)(first.at)
        case "grab", _ if last.kind == "drop":
            return act.Drag(first.at, last.at)
        case "wheel", 1:
            return act.Scroll(first.at, first.direction)
        case "text", 1 if first.text:
            return act.Type(first.text)
        case "press", count if count <= _MAX_KEYS and all(one.kind == "press" and one.key for one in gestures):
            return act.Hotkey(tuple(_KEY_NAMES.get(one.key.lower(), one.key.lower()) for one in gestures))
        case "back", 1:
            return act.PressBack() if touch else act.NavigateBack()
        case "home", 1:
            return act.PressHome()
    raise BadInput("these gestures are no action of the agent", where="override", fix="do one thing at a time")


def smallest_element(point: Point, elements: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the smallest named element under a point; None where there is none.

    elements: each with name, x, y, w and h, as fractions of the screen.
    """
    under = [
        one
        for one in elements
        if 0 <= point.x - one["x"] <= one["w"] and 0 <= point.y - one["y"] <= one["h"] and one.get("name")
    ]
    return min(under, key=lambda one: one["w"] * one["h"], default=None)


def word_thought(action: Action, elements: Iterable[Mapping[str, Any]] = ()) -> str:
    """Word a thought for an action by rules, such as "Click Save."; "" for an action without a rule.

    elements: of the screen, as for `smallest_element`; a point on none is "here".
    """
    elements = list(elements)

    def at(point: Point) -> str:
        found = smallest_element(point, elements)
        return str(found["name"]) if found else "here"

    match action:
        case act.Click(point):
            return f"Click {at(point)}."
        case act.LeftDouble(point):
            return f"Double-click {at(point)}."
        case act.LeftTriple(point):
            return f"Select {at(point)} by three clicks."
        case act.RightSingle(point):
            return f"Right-click {at(point)}."
        case act.LongPress(point):
            return f"Press {at(point)} for a while."
        case act.Drag(start, end):
            return f"Drag from {at(start)} to {at(end)}."
        case act.Scroll(_, direction):
            return f"Scroll {direction}."
        case act.Type(content):
            return f"Type {content.strip()}." if content.strip() else "Submit it."
        case act.Hotkey(keys):
            return f"Press {' and '.join(keys)}."
        case act.Finished(content):
            return f"The answer is {content}." if content else "The task is done."
        case act.Wait():
            return "Wait a moment."
        case act.NavigateBack() | act.PressBack():
            return "Go back."
        case act.PressHome():
            return "Go to the home screen."
    return ""
