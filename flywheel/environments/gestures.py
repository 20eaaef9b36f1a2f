"""What a person's mouse, fingers and keys do to an environment that is taken over, as the watch page tells of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flywheel.agent.actions import Point

_LEAST = 1 - 1e-6  # a share of the screen is below 1
_MOST_TURN, _MOST_TEXT, _MOST_KEY = 10_000.0, 2000, 40
_PLACED = ("click", "long", "grab", "move", "drop", "wheel")


@dataclass(frozen=True)
class Gesture:
    """does: click, long (a long press), grab, move and drop (a button or a finger held down), wheel, press and release
    (a key), text, back, home.

    at: of the screen, where it has a place. right, down: pixels that the wheel turns.
    """

    does: str
    at: Point = Point(0.0, 0.0)  # noqa: RUF009 (it is frozen)
    button: str = "left"
    count: int = 1
    right: float = 0.0
    down: float = 0.0
    key: str = ""
    text: str = ""

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Gesture:
        """Of a JSON object, its field `do` and those above. Raises ValueError for what is no gesture."""
        does = said.get("do")
        if does in _PLACED:
            return cls(
                does,
                Point(*(max(0.0, min(_LEAST, _number(said, name))) for name in ("x", "y"))),
                "right" if said.get("button") == "right" else "left",
                int(max(1, min(3, _number(said, "count", 1)))),
                *(max(-_MOST_TURN, min(_MOST_TURN, _number(said, name, 0))) for name in ("right", "down")),
            )
        if does in ("press", "release"):
            return cls(does, key=str(said.get("key", ""))[:_MOST_KEY])
        if does == "text":
            return cls(does, text=str(said.get("text", ""))[:_MOST_TEXT])
        if does in ("back", "home"):
            return cls(does)
        raise ValueError(f"no gesture is called {str(does)[:40]!r}")


def _number(said: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = said.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} of a gesture is no number")
    return float(value)
