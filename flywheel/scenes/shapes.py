"""Plain shapes, blocks with icons, pieces with their outlines."""

from __future__ import annotations

import random
from functools import cache

from flywheel import words
from flywheel.agent.actions import Drag
from flywheel.scenes.answers import act
from flywheel.scenes.markup import PATHS, colour, div, icons, ink, page, scatter, svg
from flywheel.scenes.questions import about
from flywheel.scenes.scene import SIDE, Box, Drawn, Item, Question

# The nouns of levels 1 and 2.
FIRST_SHAPES = ("square", "circle", "triangle", "cross", "star", "heart")
FIRST_ICONS = ("star", "heart", "moon", "leaf", "mug", "hat", "shirt", "book")
OUTLINE = 'stroke="#1b1f27" stroke-width="1"'


@cache
def things() -> tuple[str, ...]:
    return tuple(name for name in icons() if name not in words.SYMBOLS)


def pairs(rng: random.Random, count: int, level: int, nouns: tuple[str, ...]) -> list[tuple[str, str]]:
    """`count` different (colour, noun) pairs; from level 3 on they share colours and nouns."""
    colours, pool = list(words.COLOURS), list(nouns)
    if level >= 3 and rng.random() < 0.5:
        colours = rng.sample(colours, max(2, count // 2))
        pool = rng.sample(pool, min(len(pool), max(3, count // 2)))
    every = [(name, noun) for name in colours for noun in pool]
    return rng.sample(every, min(count, len(every)))


def shapes(level: int, count: int, rng: random.Random, coordinates: int) -> Drawn:
    smallest, largest = (44, 76) if level == 1 else (34, 60) if count <= 4 else (24, 40)
    boxes = list(scatter(rng, [(side := rng.uniform(smallest, largest), side) for _ in range(count)]).values())
    nouns = FIRST_SHAPES if level <= 2 else words.SHAPES + words.SYMBOLS
    body, items = "", []
    for (name, shape), box in zip(pairs(rng, len(boxes), level, nouns), boxes, strict=False):
        body += svg(shape, box, colour(name, rng), OUTLINE)
        items.append(Item(f"{name} {shape}", box, (shape,)))
    return Drawn(page(rng, body), about(rng, "shape", items, coordinates), items)


def blocks(level: int, count: int, rng: random.Random, coordinates: int) -> Drawn:
    """Coloured blocks with an icon: in a grid or scattered, with or without a label below."""
    nouns = rng.choice((words.SYMBOLS, things()))
    labelled = nouns is not words.SYMBOLS and rng.random() < 0.7
    if level <= 2:
        nouns = tuple(noun for noun in nouns if noun in FIRST_ICONS)
    side = rng.uniform(40, 64) if count <= 4 else rng.uniform(36, 56 if count <= 9 else 46)
    boxes = _places(count, side, 18 if labelled else 0, rng)
    corner, edge = rng.choice((0, 6, 8)), rng.choice((0, 1.5, 2))
    called = rng.choice(("tile", "card", "block"))
    body, items = "", []
    for (name, noun), box in zip(pairs(rng, len(boxes), level, nouns), boxes, strict=False):
        body += div(box, f"background:{colour(name, rng)};border:{edge}px solid #1b1f27;border-radius:{corner}px")
        inset = box.w * rng.choice((0.15, 0.2))
        body += svg(noun, Box(box.x + inset, box.y + inset, box.w - 2 * inset, box.h - 2 * inset), ink(name))
        if labelled:
            body += div(Box(box.x - 12, box.y + box.h + 1, box.w + 24, 17), "", noun)
        items.append(Item(f"{name} {noun}", box, (noun, f"{name} {called}")))
    return Drawn(page(rng, body), about(rng, "block", items, coordinates), items)


def _places(count: int, side: float, below: float, rng: random.Random) -> list[Box]:
    """Squares of about `side`, with room `below` each: in a grid, or scattered."""
    if rng.random() < 0.6:
        columns = min(count, rng.choice((2, 3, 3, 4)))
        rows = -(-count // columns)
        side = min(side, (SIDE - 12) / columns - 5, (SIDE - 12) / rows - 5 - below)
        left, top = (rng.random() * (SIDE - 8 - n * (side + g)) for n, g in ((columns, 5), (rows, 5 + below)))
        cells = [(column, row) for row in range(rows) for column in range(columns)]
        if rng.random() < 0.4:
            rng.shuffle(cells)
        return [
            Box(4 + left + column * (side + 5), 4 + top + row * (side + 5 + below), side, side)
            for column, row in cells[:count]
        ]
    return [Box(box.x, box.y, side, side) for box in scatter(rng, [(side, side + below)] * count).values()]


def outlines(level: int, count: int, rng: random.Random, coordinates: int) -> Drawn:
    """Coloured pieces, and a dashed outline of each one's shape elsewhere."""
    count = min(count, level, 3)
    side = rng.uniform(36, 56)
    boxes = list(scatter(rng, [(side, side)] * (2 * count)).values())
    count = len(boxes) // 2
    forms = rng.sample([*PATHS, "star", "heart", "moon", "drop"], count)
    colours = rng.sample(list(words.COLOURS), count)
    body, pieces, questions = "", [], []
    dashed = 'stroke="#444c5c" stroke-width="1.6" stroke-dasharray="2.5 1.5"'
    for shape, name, start, end in zip(forms, colours, boxes[:count], boxes[count:], strict=False):
        body += svg(shape, end, "none" if rng.random() < 0.7 else "#ffffff88", dashed)
        body += svg(shape, start, colour(name, rng), OUTLINE)
        piece, outline = Item(f"{name} {shape}", start), Item(f"{shape} outline", end)
        pieces += [piece, outline]
        where = rng.choice(("its outline", "the outline", f"the {shape} outline"))
        response = act(f"I drag the {piece.name} to its outline.", Drag(start.centre, end.centre), coordinates)
        verb = rng.choice(("Drag", "Move", "Put"))
        questions.append(Question("drag", f"{verb} the {piece.name} into {where}.", response, (start, end)))
    return Drawn(page(rng, body), [*questions, *about(rng, "shape", pieces, coordinates, clicks=2)], pieces)
