"""Convert actions to JSON and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point


def actions_to_json(actions: Sequence[Action]) -> str:
    """A JSON text."""
    return json.dumps([[type(action).__name__, dataclasses.asdict(action)] for action in actions])


def actions_from_json(text: str) -> list[Action]:
    """Raises ValueError, KeyError, TypeError or AttributeError for what `pack` did not make."""
    return [_action(name, fields) for name, fields in json.loads(text)]


def _action(name: str, fields: dict[str, Any]) -> Action:
    kind = getattr(act, name)
    if kind not in act.ACTION_NAMES:
        raise ValueError(f"{name} is no action")
    values = {key: Point(**value) if isinstance(value, dict) else value for key, value in fields.items()}
    if "keys" in values:
        values["keys"] = tuple(values["keys"])
    return kind(**values)
