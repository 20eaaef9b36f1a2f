"""Define the suite `control`: small pages with one thing to do by screen actions, the first steps of a policy.

The modules `pointing`, `choosing`, `typing`, `moving` and `finding` each hold a family of templates. A page is data:
`sketch` makes it, `page.js` plays it, and `expert` reads it.
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
# One template of each family in turn, so that a few neighbouring templates are of several families.
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
    """Draw a page of the template. Level 1 has few, large and plain things, level 3 many, small and similar ones."""

    def attempt() -> dict[str, Any] | None:
        try:
            return KINDS[template].draw(Sketch(level, rng))
        except Again:
            return None

    return levels.first_winnable(attempt, f"control, {template}, level {level}")


def reached(params: Mapping[str, Any], state: Mapping[str, Any]) -> float:
    """Verify a page: 1.0 where its values are those asked for, and are submitted where they have to be.

    Before, the score is the share of changes that were asked for and made, among all asked for or made, 0.9 at most.
    """
    start, now = params["start"], state["values"]
    goal = {**start, **params["goal"]}
    if all(_same(now.get(key), value) for key, value in goal.items()):
        return 1.0 if params["end"] != "submit" or state["submitted"] else 0.9
    asked = {key for key, value in goal.items() if not _same(value, start[key])}
    made = {key for key in goal if not _same(now.get(key), start[key])}
    right = {key for key in asked if _same(now.get(key), goal[key])}
    return min(0.9, len(right) / len(asked | made))


def _same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal in type too: a ticked box (True) is not the number 1."""
    return type(one) is type(other) and (one.strip() == other.strip() if isinstance(one, str) else one == other)


def next_step(task: Task, state: Mapping[str, Any], rng: random.Random) -> tuple[str, Action] | None:
    return expert.step(task.params, state, rng)
