"""General screens as drawn scenes: the data of pretraining, and of the general part of the CT and SFT mixes.

The layouts are generic (shapes, blocks with icons, buttons, rows of settings, forms, outlines, words and numbers);
the worlds' tasks and pages are not used.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from flywheel.scenes.controls import buttons, form, mixed, rows
from flywheel.scenes.markup import written
from flywheel.scenes.scene import LEVELS, SIDE, Box, Drawn, Question, Scene, Text
from flywheel.scenes.shapes import blocks, outlines, shapes
from flywheel.scenes.sheets import sheet
from flywheel.scenes.texts import numbers, texts

__all__ = ["COUNTS", "KINDS", "LEVELS", "SIDE", "Box", "Question", "Scene", "Text", "draw"]

COUNTS = ((1, 2), (2, 4), (4, 6), (6, 10))  # things on a screen of each level

# (level, count, rng, coordinates) -> what is drawn
KINDS: dict[str, Callable[[int, int, random.Random, int], Drawn]] = {
    "shapes": shapes,
    "blocks": blocks,
    "buttons": buttons,
    "rows": rows,
    "form": form,
    "outlines": outlines,
    "numbers": numbers,
    "texts": texts,
    "mixed": mixed,
    "sheet": sheet,
}


def draw(kind: str, level: int, rng: random.Random, coordinates: int, count: int | None = None) -> Scene:
    """A scene of `kind` (a key of KINDS); levels 1 to LEVELS hold more, and more alike, elements.

    count: of the elements, at most, in place of the level's own; some kinds hold fewer, or a number of their own.
    """
    drawn = KINDS[kind](level, count or rng.randint(*COUNTS[level - 1]), rng, coordinates)
    shown = tuple((item.name, item.box) for item in drawn.shown or drawn.items)
    return Scene(kind, level, drawn.html, tuple(drawn.questions), shown, tuple(written(drawn.html)), len(drawn.items))
