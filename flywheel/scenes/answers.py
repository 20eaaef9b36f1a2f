"""How points and actions are written in answers: as the policy writes them."""

from __future__ import annotations

from flywheel.agent.actions import Action, Click, Point
from flywheel.agent.parser import serialise
from flywheel.agent.prompt import response_text


def spot(point: Point, coordinates: int) -> str:
    return serialise(Click(point), coordinates).split("<point>")[1].split("<")[0]


def act(thought: str, action: Action, coordinates: int) -> str:
    return response_text(thought, serialise(action, coordinates))
