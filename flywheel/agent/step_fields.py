"""What an action is in a step: the fields of a `Step` that say what was done."""

from __future__ import annotations

from typing import Any

from flywheel.agent.actions import NAMES, Action, Drag
from flywheel.agent.grammar import Grammar
from flywheel.agent.parser import serialise


def of_action(action: Action, grammar: Grammar) -> dict[str, Any]:
    """The fields of a `Step` that say what was done."""
    fields: dict[str, Any] = {"action": serialise(action, grammar), "action_type": NAMES[type(action)]}
    if isinstance(action, Drag):
        start, end = action.start_point, action.end_point
        return fields | {"x": start.x, "y": start.y, "x2": end.x, "y2": end.y}
    point = getattr(action, "point", None)
    return fields | ({"x": point.x, "y": point.y} if point else {})
