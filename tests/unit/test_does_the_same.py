"""What corrections take for right: an action that does what the expert's does."""

from __future__ import annotations

import pytest

from flywheel.agent.actions import Click, Drag, Finished, ParseError, Point, Scroll, Type
from flywheel.rollout.corrections import does_the_same

PAGE = {"name": "page", "x": 0.0, "y": 0.0, "w": 1.0, "h": 1.0}
SAVE = {"name": "Save", "x": 0.4, "y": 0.4, "w": 0.2, "h": 0.1}


@pytest.mark.parametrize(
    ("one", "expert", "elements", "right"),
    [
        (Click(Point(0.59, 0.41)), Click(Point(0.5, 0.45)), [PAGE, SAVE], True),
        (Click(Point(0.61, 0.41)), Click(Point(0.5, 0.45)), [PAGE, SAVE], False),  # on the page, beside the button
        (Click(Point(0.52, 0.45)), Click(Point(0.5, 0.45)), [], True),
        (Click(Point(0.57, 0.45)), Click(Point(0.5, 0.45)), [], False),
        (Scroll(Point(0.5, 0.45), "up"), Scroll(Point(0.5, 0.45), "down"), [SAVE], False),
        (Drag(Point(0.5, 0.45), Point(0.1, 0.1)), Drag(Point(0.45, 0.42), Point(0.12, 0.1)), [SAVE], True),
        (Drag(Point(0.5, 0.45), Point(0.1, 0.1)), Drag(Point(0.45, 0.42), Point(0.5, 0.1)), [SAVE], False),
        (Type("paul"), Type("paul"), [], True),
        (Type("box"), Type("paul"), [], False),
        (Finished("4"), Type("4"), [], False),
        (ParseError("no action"), Finished(""), [], False),
    ],
)
def test_an_action_that_does_what_the_experts_does(one, expert, elements, right):
    assert does_the_same(one, expert, elements) is right
