"""What tests of pretraining share: screens that nobody drew, and what a run has told."""

from __future__ import annotations

import json
import random

import numpy as np

from flywheel import scenes
from flywheel.training.pretrain.mixture import plan


def undrawn(name, first, coordinates, size):
    """Chunks whose screens are noise: no second process, no browser."""
    for number in range(first, 100):
        rng = random.Random(f"{name}/{number}")
        drawn = [scenes.draw(kind, level, rng, coordinates) for kind, level in plan(size, rng)]
        pixels = np.random.default_rng(number).integers(0, 255, (len(drawn), 224, 224, 3), dtype=np.uint8)
        yield number, pixels, drawn


def lines(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
