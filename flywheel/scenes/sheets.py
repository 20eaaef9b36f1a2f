"""Sheets crowded with small things in rows: icons, shapes, words and numbers. Most of what there is to see, quickly."""

from __future__ import annotations

import random

from flywheel import words
from flywheel.scenes.markup import colour, div, ink, page, svg
from flywheel.scenes.questions import about, read_at
from flywheel.scenes.scene import SIDE, Box, Drawn, Item
from flywheel.scenes.shapes import OUTLINE, things
from flywheel.scenes.texts import some_text

GAP = 4


def sheet(level: int, count: int, rng: random.Random, coordinates: int) -> Drawn:
    """Rows from edge to edge, whatever the level and the count."""
    body, items, texts = "", [], []
    y = rng.uniform(2, 16)
    while True:
        height = rng.uniform(28, 56)
        if y + height > SIDE - 2:
            break
        make = _words if rng.random() < 0.5 else _pictures
        drawn, found = make(y, height, rng)
        texts += found if make is _words else []
        body, items, y = body + drawn, items + found, y + height + GAP
    questions = about(rng, "sheet", items, coordinates, clicks=4)
    return Drawn(page(rng, body), [*questions, *read_at(rng, texts, coordinates, limit=4)], items)


def _pictures(y: float, height: float, rng: random.Random) -> tuple[str, list[Item]]:
    body, items = "", []
    x = rng.uniform(2, 14)
    while x + height < SIDE - 2:
        box = Box(x, y, height, height)
        name, noun = rng.choice(list(words.COLOURS)), rng.choice((*words.SHAPES, *words.SYMBOLS, *things()))
        if rng.random() < 0.5:
            body += svg(noun, box, colour(name, rng), OUTLINE)
        else:
            body += div(box, f"background:{colour(name, rng)};border-radius:{rng.choice((0, 6))}px;")
            inset = height * 0.12
            body += svg(noun, Box(x + inset, y + inset, height - 2 * inset, height - 2 * inset), ink(name))
        items.append(Item(f"{name} {noun}", box))
        x += height + GAP + rng.uniform(0, 12)
    return body, items


def _words(y: float, height: float, rng: random.Random) -> tuple[str, list[Item]]:
    body, items = "", []
    x, size = rng.uniform(2, 14), rng.uniform(14, min(24, height * 0.7))
    plain = rng.random() < 0.4
    while True:
        text = some_text(rng)
        width = 0.64 * size * len(text) + rng.uniform(8, 18)
        if x + width > SIDE - 2:
            return body, items
        box, name = Box(x, y, width, height), rng.choice(list(words.COLOURS))
        look = "color:#1b1f27" if plain else f"background:{colour(name, rng)};color:{ink(name)};border-radius:4px"
        shown = text.capitalize() if rng.random() < 0.5 else text
        body += div(box, f"{look};font-size:{size:.1f}px;overflow:hidden", shown)
        items.append(Item(text, box))
        x += width + GAP
