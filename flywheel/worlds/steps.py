"""What oracles share: finding an element of the screen and speaking of it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action, Click, Point
from flywheel.errors import DataError


def where(state: Mapping[str, Any], name: str) -> Point:
    """Centre of a named element, as fractions of the viewport. Raises DataError where it is not on the screen."""
    for element in state["elements"]:
        if element["name"] == name:
            x, y = element["x"] + element["w"] / 2, element["y"] + element["h"] / 2
            return Point(min(max(x, 0.0), 0.999), min(max(y, 0.0), 0.999))
    names = ", ".join(element["name"] for element in state["elements"])
    raise DataError(f"no element {name!r} on the screen; there are: {names}")


def shown(state: Mapping[str, Any], name: str) -> bool:
    return any(element["name"] == name for element in state["elements"])


def click(state: Mapping[str, Any], name: str) -> Action:
    return Click(where(state, name))


def say(rng: random.Random, *variants: str) -> str:
    """One of several ways to say the same."""
    return rng.choice(variants)
