"""Tell which of the model's answers to one screen have the same effect, so that annotators see one candidate for them.

Unlike for `does_the_same`, which compares with an expert's point, neither of two answers is known to be right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flywheel.agent.actions import Action, Point
from flywheel.recordings.annotation.overrides import smallest_element
from flywheel.rollout.solvers import NEAR

_MISS = 0.025  # of the screen, both ways together: a point that misses an element by so little is taken as meant for it

Elements = Sequence[Mapping[str, Any]]


def have_the_same_effect(one: Action, other: Action, elements: Elements) -> bool:
    """Tell whether two actions have the same effect on the screen: the same verb and words, at the same places.

    elements: named, of the screen, each with name, x, y, w and h, in fractions of it. Two points are the same place
    where the smallest element under both is the same; where none is under either, if they are near; where one hits an
    element and the other none, if the other misses it by less than 0.025.
    """
    if type(one) is not type(other):
        return False
    pairs = [(value, getattr(other, name)) for name, value in vars(one).items()]
    return all(_same_place(*pair, elements) if isinstance(pair[0], Point) else pair[0] == pair[1] for pair in pairs)


def hits_an_element(action: Action, elements: Elements) -> bool:
    """Tell whether each of the action's points hits a named element. elements: as for `have_the_same_effect`."""
    return all(smallest_element(value, elements) for value in vars(action).values() if isinstance(value, Point))


def _same_place(one: Point, other: Point, elements: Elements) -> bool:
    hit, also = smallest_element(one, elements), smallest_element(other, elements)
    if hit is None and also is None:
        return abs(one.x - other.x) + abs(one.y - other.y) < NEAR
    if hit is not None and also is not None:
        return hit is also
    return _distance(one, also) < _MISS if hit is None else _distance(other, hit) < _MISS


def _distance(point: Point, element: Mapping[str, Any]) -> float:
    """Return how far a point is outside an element, both ways together."""
    beyond = max(element["x"] - point.x, point.x - element["x"] - element["w"], 0.0)
    return beyond + max(element["y"] - point.y, point.y - element["y"] - element["h"], 0.0)
