"""What tests of pretraining share: screens that nobody drew, and what a run has told."""

from __future__ import annotations

import json
import random

import numpy as np

from flywheel.envs.screens import layouts
from flywheel.training.pretrain.pretrainer import draw_scene_kinds


def undrawn(name, first, coordinates, size):
    """Chunks whose screens are noise: no second process, no browser."""
    for number in range(first, 100):
        rng = random.Random(f"{name}/{number}")
        drawn = [layouts.draw_scene(kind, level, rng, coordinates) for kind, level in draw_scene_kinds(size, rng)]
        pixels = np.random.default_rng(number).integers(0, 255, (len(drawn), 224, 224, 3), dtype=np.uint8)
        yield number, pixels, drawn


def lines(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
