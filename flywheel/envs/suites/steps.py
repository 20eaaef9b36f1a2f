"""What oracles share: finding places on the screen, acting there, and speaking of it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action, Click, Drag, Hotkey, Point
from flywheel.utils.errors import DataError


def where(state: Mapping[str, Any], name: str) -> Point:
    """Centre of a named element, as fractions of the viewport. Raises DataError where it is not on the screen."""
    for element in state["elements"]:
        if element["name"] == name:
            x, y = element["x"] + element["w"] / 2, element["y"] + element["h"] / 2
            return _inside(x, y)
    names = ", ".join(element["name"] for element in state["elements"])
    raise DataError(f"no element {name!r} on the screen; there are: {names}")


def shown(state: Mapping[str, Any], name: str) -> bool:
    return any(element["name"] == name for element in state["elements"])


def click(state: Mapping[str, Any], name: str) -> Action:
    return Click(where(state, name))


def spot(state: Mapping[str, Any], x: float, y: float) -> Point:
    """The point (x, y) of a game's board, in its units, as fractions of the viewport."""
    frame = state["frame"]
    return _inside(frame["x"] + x / frame["cols"] * frame["w"], frame["y"] + y / frame["rows"] * frame["h"])


def click_at(state: Mapping[str, Any], x: float, y: float) -> Action:
    return Click(spot(state, x, y))


def click_cell(state: Mapping[str, Any], col: int, row: int) -> Action:
    """A click in the middle of a cell of a game's board."""
    return click_at(state, col + 0.5, row + 0.5)


def drag(state: Mapping[str, Any], start: tuple[float, float], end: tuple[float, float]) -> Action:
    """A drag between two places of a game's board, in its units."""
    return Drag(spot(state, *start), spot(state, *end))


def press(key: str) -> Action:
    """One key, such as left, up, space, a."""
    return Hotkey((key,))


def say(rng: random.Random, *variants: str) -> str:
    """One of several ways to say the same."""
    return rng.choice(variants)


def _inside(x: float, y: float) -> Point:
    return Point(min(max(x, 0.0), 0.999), min(max(y, 0.0), 0.999))
