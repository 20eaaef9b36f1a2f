"""A drawn screen: HTML for Chromium, and what can be asked of it with its exact answer."""

from __future__ import annotations

from dataclasses import dataclass

from flywheel.agent.actions import Point

SIDE = 224  # of every scene, in pixels; all geometry is chosen by its maker, so the answers are exact
LEVELS = 4


@dataclass(frozen=True)
class Box:
    """In pixels of the scene."""

    x: float
    y: float
    w: float
    h: float

    @property
    def centre(self) -> Point:
        return Point((self.x + self.w / 2) / SIDE, (self.y + self.h / 2) / SIDE)

    def holds(self, point: Point) -> bool:
        return self.x <= point.x * SIDE <= self.x + self.w and self.y <= point.y * SIDE <= self.y + self.h

    def overlaps(self, other: Box, gap: float = 4) -> bool:
        return (
            self.x < other.x + other.w + gap
            and other.x < self.x + self.w + gap
            and self.y < other.y + other.h + gap
            and other.y < self.y + self.h + gap
        )


@dataclass(frozen=True)
class Question:
    """skill: what it tests.

    boxes: of the things that the response's points mean, in their order: a click, the ends of a drag must lie in them.
    seen: of the thing that a response without points is read from.
    copied: what the response repeats of the instruction.
    """

    skill: str
    instruction: str
    response: str
    boxes: tuple[Box, ...] = ()
    seen: Box | None = None
    copied: str = ""


@dataclass(frozen=True)
class Text:
    """A drawn text: its letters and digits, in lower case, and where each stands."""

    characters: str
    boxes: tuple[Box, ...]

    @property
    def box(self) -> Box:
        first, last = self.boxes[0], self.boxes[-1]
        return Box(first.x, first.y, last.x + last.w - first.x, first.h)


@dataclass(frozen=True)
class Scene:
    """shown: what can be seen, by name, and where. texts: all that is written. count: of what can be clicked."""

    kind: str
    level: int
    html: str
    questions: tuple[Question, ...]
    shown: tuple[tuple[str, Box], ...]
    texts: tuple[Text, ...]
    count: int


@dataclass(frozen=True)
class Item:
    """Something that can be clicked: what it may be called (the fullest name first), and where it is."""

    name: str
    box: Box
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawn:
    """What a kind's maker returns. shown: what the image tokens should name, where it is more than the items."""

    html: str
    questions: list[Question]
    items: list[Item]
    shown: list[Item] | None = None
