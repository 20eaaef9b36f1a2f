"""Pieces of HTML for scenes, and places for them."""

from __future__ import annotations

import html
import json
import random
import re
from functools import cache
from importlib.resources import files

from flywheel.synthesis import words
from flywheel.synthesis.scenes.scene import SIDE, Box

FONT = 15  # size of a page's text, in pixels
EDGE = 4  # of a scene, where nothing is scattered
PATHS = {
    "square": "M2 2h20v20H2z", "circle": "M12 2a10 10 0 1 0 .01 0z", "triangle": "M12 2l11 20H1z",
    "diamond": "M12 1l10 11-10 11L2 12z", "cross": "M9 2h6v7h7v6h-7v7H9v-7H2V9h7z",
    "ring": "M12 2a10 10 0 1 0 .01 0zM12 7a5 5 0 1 1-.01 0z", "hexagon": "M7 3h10l5 9-5 9H7l-5-9z",
    "bar": "M1 8h22v8H1z", "arrow": "M2 9h10V3l10 9-10 9v-6H2z",
}  # fmt: skip


@cache
def icons() -> dict[str, str]:
    """Name -> SVG path, in a square of 24 units."""
    return json.loads(files("flywheel.worlds").joinpath("shared/look.json").read_text())["icons"]


def svg(name: str, box: Box, fill: str, extra: str = "") -> str:
    place = f"left:{box.x:.1f}px;top:{box.y:.1f}px;width:{box.w:.1f}px;height:{box.h:.1f}px"
    path = PATHS.get(name) or icons()[name]
    return (
        f'<svg viewBox="0 0 24 24" style="{place}"><path d="{path}" fill="{fill}" fill-rule="evenodd" {extra}/></svg>'
    )


def div(box: Box, style: str, text: str = "") -> str:
    return (
        f'<div style="left:{box.x:.1f}px;top:{box.y:.1f}px;width:{box.w:.1f}px;height:{box.h:.1f}px;{style}">'
        f"{html.escape(text)}</div>"
    )


# Widths of letters as shares of the font's size, of Helvetica and those made after it.
_NARROW, _WIDE = dict.fromkeys("ijl", 0.22) | dict.fromkeys("ft", 0.28) | {"r": 0.33}, {"m": 0.83, "w": 0.72}
_WIDTHS = dict.fromkeys("ckszvxy", 0.5) | _NARROW | _WIDE
_USUAL = 0.556
_TEXT = re.compile(
    r'<div style="left:(-?[\d.]+)px;top:(-?[\d.]+)px;width:([\d.]+)px;height:([\d.]+)px;([^"]*)">([^<]+)</div>'
)
_SIZE = re.compile(r"font-size:([\d.]+)px")


def letters(drawn: str) -> list[tuple[str, Box]]:
    """The letters and digits of all texts on a page made here, in lower case, and about where each stands."""
    stretch = (1.12 if "DejaVu" in drawn else 1.0) * (1.06 if "font:bold" in drawn else 1.0)
    found = []
    for left, top, width, height, style, text in _TEXT.findall(drawn):
        set_size = _SIZE.search(style)
        size = float(set_size[1]) if set_size else FONT
        widths = [_WIDTHS.get(letter.lower(), _USUAL) * size * stretch for letter in text]
        indent = 5.0 if "padding-left" in style else 0.0
        x = float(left) + (indent if "flex-start" in style else (float(width) - sum(widths)) / 2)
        line = Box(0, float(top) + float(height) / 2 - 0.6 * size, 0, 1.2 * size)
        for letter, wide in zip(text.lower(), widths, strict=True):
            if letter.isalnum():
                found.append((letter, Box(x, line.y, wide, line.h)))
            x += wide
    return found


def page(rng: random.Random, body: str) -> str:
    background = rng.choice(("#eef1f6", "#dfe6f2", "#ffffff", "#f3efe6", "#cfd6e0", "#e4eee4"))
    weight = rng.choice(("bold", "bold", "normal"))
    family = rng.choice(("Liberation Sans", "Liberation Sans", "DejaVu Sans"))
    return f"<section style=\"background:{background};font:{weight} {FONT}px '{family}'\">{body}</section>"


def colour(name: str, rng: random.Random) -> str:
    """The named colour, a little off, so that no exact value is learnt."""
    value = words.COLOURS[name]
    channels = (int(value[i : i + 2], 16) + rng.randint(-12, 12) for i in (1, 3, 5))
    return "#" + "".join(f"{min(255, max(0, channel)):02x}" for channel in channels)


def ink(on: str) -> str:
    """The colour of text and icons on a ground of the colour `on`."""
    return "#222222" if on in ("yellow", "white", "pink") else "#ffffff"


def scatter(rng: random.Random, sizes: list[tuple[float, float]]) -> dict[int, Box]:
    """Places that do not overlap, by the number of the size; what finds none is left out."""
    placed: dict[int, Box] = {}
    for number, (w, h) in enumerate(sizes):
        for _ in range(60):
            box = Box(EDGE + rng.random() * (SIDE - 2 * EDGE - w), EDGE + rng.random() * (SIDE - 2 * EDGE - h), w, h)
            if not any(box.overlaps(other) for other in placed.values()):
                placed[number] = box
                break
    return placed
