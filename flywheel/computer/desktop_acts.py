"""What a hand does for each action: the guest's acts, in pixels, or why there are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flywheel.agent.actions import (
    NAMES,
    Action,
    CallUser,
    Click,
    Drag,
    Finished,
    Hotkey,
    Hover,
    LeftDouble,
    Point,
    Press,
    Release,
    RightSingle,
    Scroll,
    Type,
    Wait,
)
from flywheel.sandbox import keyboard

Act = dict[str, Any]
MAX_TEXT = 10_000  # characters that the guest types at once
_NOTCHES = 3  # of a wheel, for one `scroll`
_DRAG_MOVES = 8  # in between: a program begins to drag when the pointer has moved a little


class Cannot(Exception):
    """Why an action does nothing here; the text is the step's note."""


def acts(action: Action, width: int, height: int) -> list[Act]:
    """The acts of one action, in order. Raises Cannot for one that does not exist on a desktop, or lies outside."""
    if type(action) not in _HANDS:
        raise Cannot(f"a desktop has no {NAMES[type(action)]}")
    return _HANDS[type(action)](action, lambda point: _move(point, width, height))


def _move(point: Point, width: int, height: int) -> Act:
    if not (0 <= point.x < 1 and 0 <= point.y < 1):
        raise Cannot("the point is outside the screen")
    return {"type": "move", "x": int(point.x * width), "y": int(point.y * height)}


def _presses(times: int, button: str = "left") -> list[Act]:
    return [{"type": kind, "button": button} for _ in range(times) for kind in ("down", "up")]


def _drag(action: Drag, move: Callable[[Point], Act]) -> list[Act]:
    start, end = action.start_point, action.end_point
    from_, to = move(start), move(end)
    between = [
        {"type": "move", **{axis: from_[axis] + (to[axis] - from_[axis]) * n // _DRAG_MOVES for axis in ("x", "y")}}
        for n in range(1, _DRAG_MOVES)
    ]
    return [from_, {"type": "down"}, *between, to, {"type": "up"}]


def _hotkey(keys: Sequence[str]) -> list[Act]:
    if not keys:
        raise Cannot("no key is named")
    named = [_key(key) for key in keys]
    return [
        *({"type": "key_down", "key": name} for name in named),
        *({"type": "key_up", "key": name} for name in reversed(named)),
    ]


def _key(name: str) -> str:
    """As KeyboardEvent.key names it."""
    found = keyboard.find(name)
    if found is None:
        raise Cannot(f"no key is called {name[:20]!r}")
    return found.key


def _text(content: str) -> list[Act]:
    if len(content) > MAX_TEXT:
        raise Cannot(f"a text has {MAX_TEXT} characters at most: type it in parts")
    return [{"type": "text", "text": content}]


_HANDS: dict[type, Callable[[Any, Callable[[Point], Act]], list[Act]]] = {
    Click: lambda action, move: [move(action.point), *_presses(1)],
    LeftDouble: lambda action, move: [move(action.point), *_presses(2)],
    RightSingle: lambda action, move: [move(action.point), *_presses(1, "right")],
    Hover: lambda action, move: [move(action.point)],
    Drag: _drag,
    Scroll: lambda action, move: [
        move(action.point),
        {"type": "scroll", "direction": action.direction, "notches": _NOTCHES},
    ],
    Hotkey: lambda action, _: _hotkey(action.keys),
    Press: lambda action, _: [{"type": "key_down", "key": _key(action.key)}],
    Release: lambda action, _: [{"type": "key_up", "key": _key(action.key)}],
    Type: lambda action, _: _text(action.content),
    Wait: lambda *_: [],
    Finished: lambda *_: [],
    CallUser: lambda *_: [],
}
