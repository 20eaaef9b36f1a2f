"""Build a control page: its look, the items on it, and the question.

A page is data: `items` (what is where, and what a click on it does), `start` (the values that the goal is about, as
they are at first), `view` (what is open or shown), `goal` (the wanted values) and `end` (when the page is over). The
script draws and plays it, the expert (`expert.py`) reads it. A box is [x, y, width, height] in units of which a page
has 224 x 224.
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
    """Report that what was drawn does not fit; the caller draws another page."""


@dataclass(frozen=True)
class Kind:
    """Define a template. instruction: a format string over the params. steps: the step budget of each level."""

    name: str
    instruction: str
    steps: tuple[int, int, int]
    draw: Callable[[Sketch], dict[str, Any]]


@dataclass
class Sketch:
    """Collect the items and values of a page while it is drawn. level: 1 to 3. rng: of all that is drawn."""

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
        """Return the argument of this level."""
        return by_level[self.level - 1]

    def some(self, pool: Sequence[T], count: int) -> list[T]:
        return self.rng.sample(list(pool), count)

    def one(self, pool: Sequence[T]) -> T:
        return self.rng.choice(list(pool))

    def pairs(self, count: int, *, icons: bool = False) -> list[tuple[str, str]]:
        """Draw `count` different pairs (colour, shape or icon); at the last level pairs share colours and shapes."""
        nouns = (
            (FIRST_ICONS if self.level == 1 else icon_names()) if icons else self.of(FIRST_SHAPES, FIRST_SHAPES, SHAPES)
        )
        return draw_colour_noun_pairs(self.rng, count, self.level, nouns)

    def words(self, count: int) -> list[str]:
        return self.some(vocabulary.BUTTONS if self.level == 1 else (*vocabulary.BUTTONS, *vocabulary.THINGS), count)

    def spots(self, sizes: Sequence[tuple[float, float]]) -> list[list[float]]:
        """Place boxes of these (width, height), none over another. Raises Again where they do not fit."""
        found = scatter_boxes(self.rng, list(sizes))
        if len(found) < len(sizes):
            raise Again
        return [box(found[number]) for number in range(len(sizes))]

    def grid(self, count: int, columns: int, side: float, gap: float = 6) -> list[list[float]]:
        """Place `count` squares in rows, somewhere on the page."""
        rows = -(-count // columns)
        wide, high = columns * (side + gap) - gap, rows * (side + gap) - gap
        left, top = self.rng.uniform(4, SCENE_SIDE - 4 - wide), self.rng.uniform(4, SCENE_SIDE - 4 - high)
        cells = ((number % columns, number // columns) for number in range(count))
        return [place(left + col * (side + gap), top + row * (side + gap), side, side) for col, row in cells]

    def stack(self, count: int, *, low: float = 26, high: float = 40, room: float = 210) -> tuple[float, float]:
        """Draw the height of each of `count` rows, and the top of the first, so that they fit below one another."""
        height = self.rng.uniform(low, max(low, min(high, room / count)))
        return height, self.rng.uniform(6, SCENE_SIDE - 8 - count * height)

    def paint(self, name: str) -> str:
        """Vary the colour `name` a little; return it as hex."""
        return vary_colour(name, self.rng)

    # -- things -----------------------------------------------------------------------------------------------------
    def add(self, kind: str, at: Sequence[float], /, **fields: Any) -> Item:
        """Add an item on top of those that are there. at: its box."""
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
        """Add a text. labels: name of the item that it belongs to, on which a click on the text counts."""
        return self.add("text", at, words=label, **fields)

    def field(self, at: Sequence[float], key: str, label: str, value: str = "", /, **fields: Any) -> Item:
        self.start[key] = value
        return self.add("field", at, key=key, name=f"{label} field", say=f"the {label} field", **fields)

    # -- the whole --------------------------------------------------------------------------------------------------
    def pick(self, candidates: Sequence[Item], how: str = "click", target: Item | None = None, **said: Any) -> dict:
        """Return the params of a page that a click (or `how`) on any candidate ends; one of them is the target."""
        for item in candidates:
            item[how] = ["set", "picked", item["name"]]
        chosen = target or self.one(candidates)
        self.start["picked"] = ""
        return self.done({"picked": chosen["name"]}, "pick", **{"target": chosen["name"], **said})

    def done(self, goal: dict[str, Any], end: End = "goal", **said: Any) -> dict[str, Any]:
        """Return the page's params. said: more, for the instruction and the script. Raises Again if already done."""
        if all(self.start[key] == value for key, value in goal.items()):
            raise Again  # the goal holds already
        page = {"look": self.look, "items": self.items, "start": self.start, "view": self.view}
        return {**page, "goal": goal, "end": end, **said}


def place(x: float, y: float, w: float, h: float) -> list[float]:
    return [round(value, 1) for value in (x, y, w, h)]


def box(one: SceneBox) -> list[float]:
    return place(one.x, one.y, one.w, one.h)


def wide(label: str, slack: float = 22) -> float:
    """Return the width of a button with these words."""
    return 9.5 * len(label) + slack


def days(item: Item) -> list[Item]:
    """Return the cards of the days of a `month` item; the script lays them out in the same way."""
    x, y, cards = item["box"][0], item["box"][1], []
    for number in range(1, item["days"] + 1):
        cell, name = number + item["before"] - 1, f"{item['month']} {number}"
        at = place(x + cell % 7 * 28, y + cell // 7 * 25, 26, 23)
        about = {"when": item["when"], "click": ["set", "picked", name], "say": f"the {ordinal(number)}"}
        cards.append({"kind": "card", "box": at, "name": name, **about})
    return cards
