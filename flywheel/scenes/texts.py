"""Words and numbers to read: on cards, and on boards of number tiles."""

from __future__ import annotations

import random

from flywheel import words
from flywheel.agent.actions import Hotkey
from flywheel.scenes.answers import act, spot
from flywheel.scenes.markup import colour, div, ink, page, scatter
from flywheel.scenes.questions import about, ask_at, click, unique
from flywheel.scenes.scene import SIDE, Box, Drawn, Item, Question

NUMBERS_SHARE = 0.4  # of the texts


def texts(level: int, count: int, rng: random.Random, coordinates: int) -> Drawn:
    """Words and numbers of up to three digits, each on a card of its own colour or on the plain page."""
    count = min(count, 8)
    colours = rng.sample(list(words.COLOURS), count)
    shown = _different(count, rng)
    size = rng.uniform(14, 24 if count <= 4 else 18)
    plain = rng.random() < 0.25
    sizes = [(0.68 * size * len(text) + rng.uniform(12, 26), size * rng.uniform(1.4, 2.0)) for text in shown]
    body, items = "", []
    for number, box in scatter(rng, sizes).items():
        text, name = shown[number], colours[number]
        box = Box(box.x, box.y, min(0.68 * size * len(text) + 12, box.w), box.h) if plain else box
        look = "color:#1b1f27" if plain else f"background:{colour(name, rng)};color:{ink(name)};border-radius:4px"
        if name == "white" and not plain:
            look += ";border:2px solid #8a8f98"
        body += div(box, f"{look};font-size:{size:.1f}px", text.capitalize() if rng.random() < 0.5 else text)
        items.append(Item(text, box, () if plain else (f"{name} card",)))
    questions = about(rng, "text", items, coordinates, clicks=2)
    return Drawn(page(rng, body), [*questions, *_reading(rng, items, coordinates)], items)


def some_text(rng: random.Random) -> str:
    """A word, or a number of up to three digits."""
    number = str(rng.randrange(10 ** rng.randint(1, 3)))
    return number if rng.random() < NUMBERS_SHARE else rng.choice(words.READING)


def _different(count: int, rng: random.Random) -> list[str]:
    """Texts, the longest first: they are the hardest to place."""
    found: set[str] = set()
    while len(found) < count:
        found.add(some_text(rng))
    return sorted(found, key=lambda text: (-len(text), text))


def _reading(rng: random.Random, items: list[Item], coordinates: int) -> list[Question]:
    asked = [(f"What does it say at {spot(item.box.centre, coordinates)}?", item) for item in items]
    asked += [(f"What does the {card} say?", item) for item in items for card in item.others]
    if len(items) == 1:
        asked.append(("Read the number." if items[0].name.isdigit() else "Read the word.", items[0]))
    chosen = rng.sample(asked, min(6, len(asked)))
    return [Question("read", said, item.name, seen=item.box) for said, item in chosen]


def numbers(level: int, count: int, rng: random.Random, coordinates: int) -> Drawn:
    """Number tiles in a grid; keys are pressed as named."""
    side = {1: 2, 2: 3}.get(level, 4)
    cell = rng.uniform(34, 200 / side)
    left, top = rng.uniform(4, SIDE - 4 - side * cell), rng.uniform(4, SIDE - 4 - side * cell)
    values = (2, 4, 8, 16, 32, 64, 128)[: 3 + level]
    body, items, table = "", [], []
    for row in range(side):
        for column in range(side):
            box = Box(left + column * cell, top + row * cell, cell - 4, cell - 4)
            value = rng.choice(values) if rng.random() < 0.5 else 0
            tone = 48 - 4 * values.index(value) if value else 0
            look = f"background:hsl({tone} 80% 62%)" if value else "background:#c8cdd6"
            body += div(box, f"{look};border-radius:5px", str(value) if value else "")
            table.append(value)
            if value:
                items.append(Item(str(value), box))
    lines = [" ".join(str(v) for v in table[i * side : (i + 1) * side]) for i in range(side)]
    questions = [Question("board", "Read the board.", "; ".join(lines))]
    for name, item in unique(items)[:2]:
        questions.append(click(rng, "number", name, item.box, coordinates))
    if items:
        questions.append(ask_at(rng.choice(items), coordinates))
    for key in rng.sample(words.KEYS, 2):
        said = rng.choice((f"Press the {key} arrow key.", f"Press {key}.", f"Move {key}."))
        questions.append(Question("key", said, act(f"I press {key}.", Hotkey((key,)), coordinates)))
    return Drawn(page(rng, body), questions, items)
