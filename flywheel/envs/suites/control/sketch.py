"""A control page under construction: its look, the things on it, and the question.

A page is data: `items` (what stands where, and what a click on it does), `start` (the values that are asked for, as
they are at first), `view` (what is open or shown), `goal` (the values that are wanted) and `end` (when it is over).
The script draws and plays it, the expert (`expert.py`) reads it. Boxes are in units of a page of 224 x 224.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from flywheel.envs.screens import vocabulary
from flywheel.envs.screens.layouts import FIRST_ICONS, FIRST_SHAPES, draw_colour_noun_pairs, icon_names
from flywheel.envs.screens.scene import SCENE_SIDE, SceneBox, scatter_boxes, text_colour, vary_colour
from flywheel.envs.suites.number_words import ordinal

T = TypeVar("T")
Item = dict[str, Any]
End = Literal["goal", "submit", "pick", "list"]

LEVELS = (1, 2, 3)
SHAPES = (*FIRST_SHAPES, "diamond", "moon", "drop", "hexagon", "ring", "arrow")
GROUNDS = ("#eef1f6", "#dfe6f2", "#ffffff", "#f3efe6", "#cfd6e0", "#e4eee4", "#efe7f3", "#e3f0f2")
ACCENTS = ("green", "blue", "purple", "orange")


class Again(Exception):
    """What was drawn does not fit the page: draw another."""


@dataclass(frozen=True)
class Kind:
    """A template. instruction: a format string over the params; steps: the budget of each level."""

    name: str
    instruction: str
    steps: tuple[int, int, int]
    draw: Callable[[Sketch], dict[str, Any]]


@dataclass
class Sketch:
    level: int
    rng: random.Random
    items: list[Item] = field(default_factory=list)
    start: dict[str, Any] = field(default_factory=dict)
    view: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = self.rng
        self.accent = rng.choice(ACCENTS)
        classes = [name for name in (rng.choice(("", "", "plain")), rng.choice(("", "", "wide"))) if name]
        self.look = {
            "ground": rng.choice(GROUNDS),
            "accent": vocabulary.COLOURS[self.accent],
            "round": rng.choice((0, 4, 6, 9)),
            "classes": classes,
        }

    # -- chance -----------------------------------------------------------------------------------------------------
    def of(self, *by_level: T) -> T:
        """What belongs to this level."""
        return by_level[self.level - 1]

    def some(self, pool: Sequence[T], count: int) -> list[T]:
        return self.rng.sample(list(pool), count)

    def one(self, pool: Sequence[T]) -> T:
        return self.rng.choice(list(pool))

    def pairs(self, count: int, *, icons: bool = False) -> list[tuple[str, str]]:
        """Different (colour, shape or thing); in the last level they share both."""
        nouns = (
            (FIRST_ICONS if self.level == 1 else icon_names()) if icons else self.of(FIRST_SHAPES, FIRST_SHAPES, SHAPES)
        )
        return draw_colour_noun_pairs(self.rng, count, self.level, nouns)

    def words(self, count: int) -> list[str]:
        return self.some(vocabulary.BUTTONS if self.level == 1 else (*vocabulary.BUTTONS, *vocabulary.THINGS), count)

    def spots(self, sizes: Sequence[tuple[float, float]]) -> list[list[float]]:
        """Places for all of these sizes, none over another. Raises Again where they do not fit."""
        found = scatter_boxes(self.rng, list(sizes))
        if len(found) < len(sizes):
            raise Again
        return [box(found[number]) for number in range(len(sizes))]

    def grid(self, count: int, columns: int, side: float, gap: float = 6) -> list[list[float]]:
        """Squares in rows, somewhere on the page."""
        rows = -(-count // columns)
        wide, high = columns * (side + gap) - gap, rows * (side + gap) - gap
        left, top = self.rng.uniform(4, SCENE_SIDE - 4 - wide), self.rng.uniform(4, SCENE_SIDE - 4 - high)
        cells = ((number % columns, number // columns) for number in range(count))
        return [place(left + col * (side + gap), top + row * (side + gap), side, side) for col, row in cells]

    def stack(self, count: int, *, low: float = 26, high: float = 40, room: float = 210) -> tuple[float, float]:
        """Height and top of `count` rows that stand one over another."""
        height = self.rng.uniform(low, max(low, min(high, room / count)))
        return height, self.rng.uniform(6, SCENE_SIDE - 8 - count * height)

    def paint(self, name: str) -> str:
        """The colour, a little off."""
        return vary_colour(name, self.rng)

    # -- things -----------------------------------------------------------------------------------------------------
    def add(self, kind: str, at: Sequence[float], /, **fields: Any) -> Item:
        """A thing on top of those that are there."""
        self.items.append({"kind": kind, "box": [round(value, 1) for value in at], **fields})
        return self.items[-1]

    def shape(self, at: Sequence[float], name: str, noun: str, /, **fields: Any) -> Item:
        return self.add("shape", at, **{"icon": noun, "fill": self.paint(name), "name": f"{name} {noun}", **fields})

    def block(self, at: Sequence[float], name: str, noun: str, /, **fields: Any) -> Item:
        look = "framed" if name in ("white", "gray") else ""
        about = {
            "icon": noun,
            "fill": self.paint(name),
            "ink": text_colour(name),
            "name": f"{name} {noun}",
            "look": look,
        }
        return self.add("block", at, **{**about, **fields})

    def button(self, at: Sequence[float], label: str, fill: str = "white", /, **fields: Any) -> Item:
        paint = {"fill": self.paint(fill), "ink": text_colour(fill), "look": "framed" if fill == "white" else ""}
        about = {"words": label.capitalize(), "name": f"{label} button", "say": f"the {label} button"}
        return self.add("button", at, **{**paint, **about, **fields})

    def text(self, at: Sequence[float], label: str, /, **fields: Any) -> Item:
        """labels: the name of the thing that it is a part of: a click on it is a click on that."""
        return self.add("text", at, words=label, **fields)

    def field(self, at: Sequence[float], key: str, label: str, value: str = "", /, **fields: Any) -> Item:
        self.start[key] = value
        return self.add("field", at, key=key, name=f"{label} field", say=f"the {label} field", **fields)

    # -- the whole --------------------------------------------------------------------------------------------------
    def pick(self, candidates: Sequence[Item], how: str = "click", target: Item | None = None, **said: Any) -> dict:
        """A click (double, right) on any of them ends the page; on one of them, as asked."""
        for item in candidates:
            item[how] = ["set", "picked", item["name"]]
        chosen = target or self.one(candidates)
        self.start["picked"] = ""
        return self.done({"picked": chosen["name"]}, "pick", **{"target": chosen["name"], **said})

    def done(self, goal: dict[str, Any], end: End = "goal", **said: Any) -> dict[str, Any]:
        """The params. said: what the instruction and the script want beside."""
        if all(self.start[key] == value for key, value in goal.items()):
            raise Again  # it is so already
        page = {"look": self.look, "items": self.items, "start": self.start, "view": self.view}
        return {**page, "goal": goal, "end": end, **said}


def place(x: float, y: float, w: float, h: float) -> list[float]:
    return [round(value, 1) for value in (x, y, w, h)]


def box(one: SceneBox) -> list[float]:
    return place(one.x, one.y, one.w, one.h)


def wide(label: str, slack: float = 22) -> float:
    """Width of a button with these words."""
    return 9.5 * len(label) + slack


def days(item: Item) -> list[Item]:
    """The cards of a `month`, one a day, which the script lays out in the same way."""
    x, y, cards = item["box"][0], item["box"][1], []
    for number in range(1, item["days"] + 1):
        cell, name = number + item["before"] - 1, f"{item['month']} {number}"
        at = place(x + cell % 7 * 28, y + cell // 7 * 25, 26, 23)
        about = {"when": item["when"], "click": ["set", "picked", name], "say": f"the {ordinal(number)}"}
        cards.append({"kind": "card", "box": at, "name": name, **about})
    return cards
