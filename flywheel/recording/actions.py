"""Between an annotator's input events and the agent's actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point
from flywheel.errors import BadInput

# What the recorder writes as `kind`. `drop` ends a `drag`; `stop` is the annotator's end of the recording.
KINDS = (
    "click",
    "double",
    "right",
    "hover",
    "drag",
    "drop",
    "key",
    "down",
    "up",
    "type",
    "scroll",
    "navigate",
    "back",
    "stop",
)
_POINTED = {"click": act.Click, "double": act.LeftDouble, "right": act.RightSingle, "hover": act.Hover}
_DIRECTIONS = ("up", "down", "left", "right")


@dataclass(frozen=True)
class InputEvent:
    """One captured input event.

    time_s: on the screen's clock, from its start. x, y: fractions of the viewport. key: keys held together, separated
    by spaces. text: what was typed, the address, the direction of a scroll, or the label of the element under the
    pointer. screen: number of the screen shown just before, where an action begins.
    """

    time_s: float
    kind: str
    x: float | None = None
    y: float | None = None
    key: str = ""
    text: str = ""
    screen: int | None = None


@dataclass(frozen=True)
class Recorded:
    """An action made of one or two events. events: their indices."""

    action: Action
    events: tuple[int, ...]
    time_s: float
    screen: int | None


def to_actions(events: Sequence[InputEvent]) -> list[Recorded]:
    """The actions that the events amount to: a drag with its drop, typed text with the Enter that follows at once.

    Raises BadInput for an event that cannot be part of an action, by its index.
    """
    recorded: list[Recorded] = []
    for index, event in enumerate(events):
        previous = recorded[-1] if recorded else None
        if event.kind == "drop":
            if index == 0 or events[index - 1].kind != "drag":
                raise BadInput("a drop without a drag before it", where=f"event {index}")
            drag = act.Drag(previous.action.start_point, _point(event, index))
            recorded[-1] = Recorded(drag, (*previous.events, index), previous.time_s, previous.screen)
        elif _submits(event, previous):
            typed = act.Type(previous.action.content + "\n")
            recorded[-1] = Recorded(typed, (*previous.events, index), previous.time_s, previous.screen)
        else:
            if event.kind == "drag" and (index + 1 == len(events) or events[index + 1].kind != "drop"):
                raise BadInput("a drag without its drop", where=f"event {index}")
            recorded.append(Recorded(_action(event, index), (index,), event.time_s, event.screen))
    return recorded


def _submits(event: InputEvent, previous: Recorded | None) -> bool:
    """Enter right after typing, on the same screen: the recorder gives it no screen of its own."""
    typed = previous is not None and isinstance(previous.action, act.Type)
    return typed and event.kind == "key" and event.key.lower() == "enter" and event.screen is None


def _action(event: InputEvent, index: int) -> Action:
    match event.kind:
        case "click" | "double" | "right" | "hover":
            return _POINTED[event.kind](_point(event, index))
        case "drag":
            point = _point(event, index)
            return act.Drag(point, point)
        case "key":
            keys = tuple(event.key.lower().split())
            if not 1 <= len(keys) <= 3:
                raise BadInput(f"a key event has one to three keys, not {event.key!r}", where=f"event {index}")
            return act.Hotkey(keys)
        case "down" | "up":
            if not event.key:
                raise BadInput("a key event without a key", where=f"event {index}")
            return (act.Press if event.kind == "down" else act.Release)(event.key)
        case "type":
            return act.Type(event.text)
        case "scroll":
            if event.text not in _DIRECTIONS:
                raise BadInput(f"no scroll direction is called {event.text!r}", where=f"event {index}")
            return act.Scroll(_point(event, index), event.text)
        case "navigate":
            return act.Navigate(event.text)
        case "back":
            return act.NavigateBack()
        case "stop":
            return act.Finished(event.text)
    raise BadInput(f"no event is of kind {event.kind!r}", where=f"event {index}", fix=f"known are {', '.join(KINDS)}")


def _point(event: InputEvent, index: int) -> Point:
    if event.x is None or event.y is None or not (0 <= event.x < 1 and 0 <= event.y < 1):
        raise BadInput(
            f"the point ({event.x}, {event.y}) of a {event.kind} is not on the screen", where=f"event {index}"
        )
    return Point(event.x, event.y)


def to_events(action: Action, time_s: float, screen: int, label: str = "", *, seconds: float = 0.3) -> list[InputEvent]:
    """The events of an action that begins at `time_s`; of two events the second comes `seconds` later.

    label: of the element under the pointer. Raises BadInput for an action that no input of a person makes.
    """

    def first(kind: str, point: Point | None = None, **rest: str) -> InputEvent:
        x, y = (point.x, point.y) if point else (None, None)
        return InputEvent(round(time_s, 3), kind, x, y, screen=screen, **rest)

    later = round(time_s + seconds, 3)
    match action:
        case act.Click(point):
            return [first("click", point, text=label)]
        case act.LeftDouble(point):
            return [first("double", point, text=label)]
        case act.RightSingle(point):
            return [first("right", point, text=label)]
        case act.Hover(point):
            return [first("hover", point, text=label)]
        case act.Drag(start, end):
            return [first("drag", start, text=label), InputEvent(later, "drop", end.x, end.y)]
        case act.Hotkey(keys):
            return [first("key", key=" ".join(keys))]
        case act.Press(key):
            return [first("down", key=key)]
        case act.Release(key):
            return [first("up", key=key)]
        case act.Type(content) if content.endswith("\n"):
            return [first("type", text=content[:-1]), InputEvent(later, "key", key="Enter")]
        case act.Type(content):
            return [first("type", text=content)]
        case act.Scroll(point, direction):
            return [first("scroll", point, text=direction)]
        case act.Navigate(content):
            return [first("navigate", text=content)]
        case act.NavigateBack():
            return [first("back")]
        case act.Finished(content):
            return [first("stop", text=content)]
    raise BadInput(f"a person's input makes no {type(action).__name__}", where="to_events")
