"""Small pages for grounding and control alone: one thing to do on each, by screen actions. The first steps of a policy.

The templates stand in families: `pointing`, `choosing`, `typing`, `moving`, `finding`. A page is data that `sketch`
makes, `page.js` plays, and `expert` reads.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from flywheel.agent.actions import Action
from flywheel.envs.base import Task
from flywheel.envs.suites import levels
from flywheel.envs.suites.control import choosing, expert, finding, moving, pointing, typing
from flywheel.envs.suites.control.sketch import LEVELS, Again, Kind, Sketch

FAMILIES = (pointing, choosing, typing, moving, finding)
# The families in turn, so that any few templates that follow one another are of several.
KINDS: dict[str, Kind] = {
    kind.name: kind for turn in zip_longest(*(family.KINDS for family in FAMILIES)) for kind in turn if kind
}
TEMPLATES: dict[str, dict[str, Any]] = {
    name: {
        "instruction": kind.instruction,
        "verifier": "world:reached",
        "max_steps": dict(zip(LEVELS, kind.steps, strict=True)),
    }
    for name, kind in KINDS.items()
}


def draw(template: str, level: int, rng: random.Random) -> dict[str, Any]:
    """A page of the template. Level 1 has few things, large and plain; the last one many, small and alike."""

    def attempt() -> dict[str, Any] | None:
        try:
            return KINDS[template].draw(Sketch(level, rng))
        except Again:
            return None

    return levels.first_winnable(attempt, f"control, {template}, level {level}")


def reached(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """1 where the page's values are those asked for, and sent where they have to be; before, the share of changes asked
    for and made, over all asked for or made, 0.9 at most."""
    start, now = params["start"], state["values"]
    goal = {**start, **params["goal"]}
    if all(_same(now.get(key), value) for key, value in goal.items()):
        return 1.0 if params["end"] != "submit" or state["submitted"] else 0.9
    asked = {key for key, value in goal.items() if not _same(value, start[key])}
    made = {key for key in goal if not _same(now.get(key), start[key])}
    right = {key for key in asked if _same(now.get(key), goal[key])}
    return min(0.9, len(right) / len(asked | made))


def _same(one: Any, other: Any) -> bool:
    """Equal; a box that is ticked is not the number 1."""
    return type(one) is type(other) and (one.strip() == other.strip() if isinstance(one, str) else one == other)


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    return expert.step(task.params, state, rng)
