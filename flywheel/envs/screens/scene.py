"""Define scenes, which are synthetic screens: their boxes, items, questions and texts, and the HTML that shows them."""

from __future__ import annotations

import html
import json
import random
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from flywheel.agent.actions import Point
from flywheel.envs.screens import vocabulary

# A scene: HTML for Chromium, and questions with exact answers.

SCENE_SIDE = 224  # of every scene, in pixels; our code chooses all geometry, so the answers are exact
SCENE_LEVELS = 4


@dataclass(frozen=True)
class SceneBox:
    """Hold a rectangle in pixels of the scene. x, y: its upper left corner. w, h: its sides."""

    x: float
    y: float
    w: float
    h: float

    @property
    def centre(self) -> Point:
        """Return the centre, as fractions of the scene."""
        return Point((self.x + self.w / 2) / SCENE_SIDE, (self.y + self.h / 2) / SCENE_SIDE)

    def inset(self, share: float) -> SceneBox:
        """Return the smaller box inside this one, whose edges lie `share` (0 to below 0.5) of the width further in."""
        edge = self.w * share
        return SceneBox(self.x + edge, self.y + edge, self.w - 2 * edge, self.h - 2 * edge)

    def holds(self, point: Point) -> bool:
        """Tell whether `point` (fractions of the scene) lies in the box or on its edge."""
        return self.x <= point.x * SCENE_SIDE <= self.x + self.w and self.y <= point.y * SCENE_SIDE <= self.y + self.h

    def overlaps(self, other: SceneBox) -> bool:
        """Tell whether the box `other` overlaps this one, or is nearer to it than 4 pixels in both directions."""
        across = self.x < other.x + other.w + 4 and other.x < self.x + self.w + 4
        return across and self.y < other.y + other.h + 4 and other.y < self.y + self.h + 4


@dataclass(frozen=True)
class SceneQuestion:
    """Hold a question about a scene (`instruction`), with its exact answer (`response`).

    skill: what it tests. boxes: of the things at the response's points, in order; a click, or the ends of a drag, must
    lie in them. seen: box of the thing from which a response without points is read. copied: the part of the
    instruction that the response repeats.
    """

    skill: str
    instruction: str
    response: str
    boxes: tuple[SceneBox, ...] = ()
    seen: SceneBox | None = None
    copied: str = ""


@dataclass(frozen=True)
class SceneText:
    """Hold a drawn text. characters: its letters and digits, in lower case. boxes: one for each character."""

    characters: str
    boxes: tuple[SceneBox, ...]

    @property
    def box(self) -> SceneBox:
        """Return the box of the whole text, in one line."""
        first, last = self.boxes[0], self.boxes[-1]
        return SceneBox(first.x, first.y, last.x + last.w - first.x, first.h)


@dataclass(frozen=True)
class Scene:
    """Hold a drawn screen with its questions.

    kind, level: as of `draw_scene`. shown: name and box of what can be seen. texts: all texts on it. count: number of
    things that can be clicked.
    """

    kind: str
    level: int
    html: str
    questions: tuple[SceneQuestion, ...]
    shown: tuple[tuple[str, SceneBox], ...]
    texts: tuple[SceneText, ...]
    count: int


@dataclass(frozen=True)
class SceneItem:
    """Hold a thing of a scene that can be clicked. name: its fullest name. others: further names."""

    name: str
    box: SceneBox
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class DrawnScene:
    """Hold what the function of a kind of scene draws. shown: what image tokens learn to name, if not the items."""

    html: str
    questions: list[SceneQuestion]
    items: list[SceneItem]
    shown: list[SceneItem] | None = None


# Pieces of HTML for scenes, and places for them.

FONT = 15  # size of a page's text, in pixels
EDGE = 4  # margin of a scene that `scatter_boxes` keeps free, in pixels


@cache
def load_icons() -> dict[str, str]:
    """Load the icons: name -> SVG path data, in a square of 24 units."""
    return json.loads(files("flywheel.envs.suites").joinpath("shared/look.json").read_text())["icons"]


def format_svg(name: str, box: SceneBox, fill: str, extra: str = "") -> str:
    """Return the SVG of the shape or icon `name` in a box. fill: CSS colour. extra: further attributes of the path."""
    place = f"left:{box.x:.1f}px;top:{box.y:.1f}px;width:{box.w:.1f}px;height:{box.h:.1f}px"
    path = vocabulary.SHAPE_PATHS.get(name) or load_icons()[name]
    return (
        f'<svg viewBox="0 0 24 24" style="{place}"><path d="{path}" fill="{fill}" fill-rule="evenodd" {extra}/></svg>'
    )


def format_div(box: SceneBox, style: str, text: str = "") -> str:
    """Return the HTML of a box with a text. style: CSS declarations."""
    return (
        f'<div style="left:{box.x:.1f}px;top:{box.y:.1f}px;width:{box.w:.1f}px;height:{box.h:.1f}px;{style}">'
        f"{html.escape(text)}</div>"
    )


_TEXT = re.compile(
    r'<div style="left:(-?[\d.]+)px;top:(-?[\d.]+)px;width:([\d.]+)px;height:([\d.]+)px;([^"]*)">([^<]+)</div>'
)
_SIZE = re.compile(r"font-size:([\d.]+)px")
_BORDER = re.compile(r"border:([\d.]+)px")
_FONT = re.compile(r"font:(\w+) \d+px '([\w ]+)'")


@cache
def _advances() -> dict[str, dict[str, int]]:
    """Load font/weight -> width of each letter, digit and the space, in thousandths of the font's size."""
    return json.loads(files(__package__).joinpath("advances.json").read_text())


def extract_texts(drawn: str) -> list[SceneText]:
    """Find the texts, and the box of each letter, in the HTML `drawn`, which `format_section` returned.

    Boxes are right to a tenth of a pixel on average (kerning is left out).
    """
    weight, family = _FONT.search(drawn).groups()
    advances = _advances()[f"{family}/{weight}"]
    found = []
    for left, top, width, height, style, text in _TEXT.findall(drawn):
        set_size = _SIZE.search(style)
        size = float(set_size[1]) if set_size else FONT
        widths = [advances[letter] * size / 1000 for letter in text]
        edge = _BORDER.search(style)
        indent = 5.0 * ("padding-left" in style) + (float(edge[1]) if edge else 0.0)
        x = float(left) + (indent if "flex-start" in style else (float(width) - sum(widths)) / 2)
        line = SceneBox(0, float(top) + float(height) / 2 - 0.6 * size, 0, 1.2 * size)
        boxes = []
        for wide in widths:
            boxes.append(SceneBox(x, line.y, wide, line.h))
            x += wide
        marks = [(letter, box) for letter, box in zip(text.lower(), boxes, strict=True) if letter.isalnum()]
        if marks:
            found.append(SceneText("".join(letter for letter, _ in marks), tuple(box for _, box in marks)))
    return found


def format_section(rng: random.Random, body: str) -> str:
    """Return the HTML of a scene around the HTML `body`, with a background and font drawn by `rng`."""
    background = rng.choice(("#eef1f6", "#dfe6f2", "#ffffff", "#f3efe6", "#cfd6e0", "#e4eee4"))
    weight = rng.choice(("bold", "bold", "normal"))
    family = rng.choice(("Liberation Sans", "Liberation Sans", "DejaVu Sans"))
    return f"<section style=\"background:{background};font:{weight} {FONT}px '{family}'\">{body}</section>"


def vary_colour(name: str, rng: random.Random) -> str:
    """Return the colour called `name`, as #rrggbb, varied a little by `rng`, so that no exact value is learnt."""
    value = vocabulary.COLOURS[name]
    channels = (int(value[i : i + 2], 16) + rng.randint(-12, 12) for i in (1, 3, 5))
    return "#" + "".join(f"{min(255, max(0, channel)):02x}" for channel in channels)


def text_colour(on: str) -> str:
    """Return the colour of text and icons, as #rrggbb, on a ground of the colour called `on`."""
    return "#222222" if on in ("yellow", "white", "pink") else "#ffffff"


def scatter_boxes(rng: random.Random, sizes: list[tuple[float, float]]) -> dict[int, SceneBox]:
    """Place rectangles at random so that they do not overlap; returns boxes by the index of their size.

    sizes: (width, height) in pixels. One for which no place is found in 60 tries is left out.
    """
    placed: dict[int, SceneBox] = {}
    for number, (w, h) in enumerate(sizes):
        for _ in range(60):
            x, y = (EDGE + rng.random() * (SCENE_SIDE - 2 * EDGE - side) for side in (w, h))
            box = SceneBox(x, y, w, h)
            if not any(box.overlaps(other) for other in placed.values()):
                placed[number] = box
                break
    return placed
