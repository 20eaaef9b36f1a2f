"""The action space as types (section 2.1; the grammar is UI-TARS 1.5's). Parsing stands in `parser.py`.

Points are fractions of the screen's width and height, 0 <= x < 1: the coordinate space of a model (0..99, 0..999,
pixels) is a setting of the parser and the serialiser, so nothing behind them depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Point:
    x: float
    y: float


@dataclass(frozen=True)
class Click:
    point: Point


@dataclass(frozen=True)
class LeftDouble:
    point: Point


@dataclass(frozen=True)
class RightSingle:
    point: Point


@dataclass(frozen=True)
class Drag:
    start_point: Point
    end_point: Point


@dataclass(frozen=True)
class Hotkey:
    """keys: lower case, three at most, pressed together."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class Type:
    """content: a trailing newline submits."""

    content: str


@dataclass(frozen=True)
class Scroll:
    point: Point
    direction: Literal["up", "down", "left", "right"]


@dataclass(frozen=True)
class Wait:
    pass


@dataclass(frozen=True)
class Finished:
    content: str = ""


@dataclass(frozen=True)
class CallUser:
    pass


@dataclass(frozen=True)
class Navigate:
    """content: the address."""

    content: str


@dataclass(frozen=True)
class NavigateBack:
    pass


@dataclass(frozen=True)
class Press:
    """Hold a key down (games): `Release` lets it go."""

    key: str


@dataclass(frozen=True)
class Release:
    key: str


Action = (
    Click | LeftDouble | RightSingle | Drag | Hotkey | Type | Scroll | Wait | Finished | CallUser
    | Navigate | NavigateBack | Press | Release
)  # fmt: skip


@dataclass(frozen=True)
class ParseError:
    """Text that holds no valid action: a value, never an exception.

    reason: what was wrong. position: the character of the text where.
    """

    reason: str
    position: int = 0


@dataclass(frozen=True)
class Parsed:
    """One model output: its thought, and the action or what was wrong with it."""

    thought: str
    action: Action | ParseError
