"""Shape fit: how pieces and outlines are laid out, and how they are dragged together."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from flywheel.agent.actions import Action, Drag
from flywheel.sandbox.env import Task
from flywheel.worlds.steps import say, where

SHAPES = ("circle", "square", "triangle", "star", "heart", "diamond", "cross", "moon")
COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "pink")
TOLERANCE = 1.7  # rem between the centres of piece and outline, at a drop that counts
_SLOTS = (2.3, 7.0, 11.7)  # columns, in rem


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """Level n has n pieces and n outlines, in different orders."""
    shapes, colours = rng.sample(SHAPES, level), rng.sample(COLOURS, level)
    above, below = rng.sample(_SLOTS, level), rng.sample(_SLOTS, level)

    def near(slot: float, low: float, high: float) -> dict[str, float]:
        return {"x": round(slot + rng.uniform(-0.3, 0.3), 2), "y": round(rng.uniform(low, high), 2)}

    return {
        "pieces": [
            {"shape": shape, "colour": colour, **near(slot, 11.4, 11.9)}
            for shape, colour, slot in zip(shapes, colours, below, strict=True)
        ],
        "outlines": [{"shape": shape, **near(slot, 2.3, 6.9)} for shape, slot in zip(shapes, above, strict=True)],
        "tolerance": TOLERANCE,
    }


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    """Drag a piece that is not placed yet to its outline."""
    for piece in state["pieces"]:
        if not piece["placed"]:
            shape, colour = piece["shape"], piece["colour"]
            action = Drag(where(state, f"piece {shape}"), where(state, f"outline {shape}"))
            return say(
                rng, f"I drag the {colour} {shape}.", f"Move the {colour} {shape} up.", f"I move the {shape}."
            ), action
    return None
