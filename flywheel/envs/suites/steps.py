"""Find places on the screen, act there and phrase thoughts: helpers that the experts of all games share."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action, Click, Drag, Hotkey, Point
from flywheel.utils.errors import DataError


def where(state: Mapping[str, Any], name: str) -> Point:
    """Return the centre of the element `name`, as fractions of the viewport. Raises DataError where `state` does not
    show it."""
    for element in state["elements"]:
        if element["name"] == name:
            x, y = element["x"] + element["w"] / 2, element["y"] + element["h"] / 2
            return _inside(x, y)
    names = ", ".join(element["name"] for element in state["elements"])
    raise DataError(f"no element {name!r} on the screen; there are: {names}")


def shown(state: Mapping[str, Any], name: str) -> bool:
    """Tell whether the screen that `state` describes shows the element `name`."""
    return any(element["name"] == name for element in state["elements"])


def click(state: Mapping[str, Any], name: str) -> Action:
    """Click the element `name`. Raises DataError where `state` does not show it."""
    return Click(where(state, name))


def spot(state: Mapping[str, Any], x: float, y: float) -> Point:
    """Return the point (x, y) of a game's board, in its units, as fractions of the viewport. state: with the board's
    frame."""
    frame = state["frame"]
    return _inside(frame["x"] + x / frame["cols"] * frame["w"], frame["y"] + y / frame["rows"] * frame["h"])


def click_at(state: Mapping[str, Any], x: float, y: float) -> Action:
    """Click the point (x, y) of a game's board, in its units. state: with the board's frame."""
    return Click(spot(state, x, y))


def click_cell(state: Mapping[str, Any], col: int, row: int) -> Action:
    """Click the middle of the cell (col, row) of a game's board. state: with the board's frame."""
    return click_at(state, col + 0.5, row + 0.5)


def drag(state: Mapping[str, Any], start: tuple[float, float], end: tuple[float, float]) -> Action:
    """Drag from `start` to `end` on a game's board, (x, y) in its units each. state: with the board's frame."""
    return Drag(spot(state, *start), spot(state, *end))


def press(key: str) -> Action:
    """Press one key, such as left, up, space, a."""
    return Hotkey((key,))


def say(rng: random.Random, *variants: str) -> str:
    """Choose one of several `variants` of a thought by `rng`."""
    return rng.choice(variants)


def _inside(x: float, y: float) -> Point:
    return Point(min(max(x, 0.0), 0.999), min(max(y, 0.0), 0.999))
