"""What `flywheel bench corrections` takes for right: an action that does what the expert's does."""

from __future__ import annotations

import importlib
import sys

import pytest

from flywheel.agent.actions import Click, Drag, Finished, ParseError, Point, Scroll, Type
from flywheel.cli.bench import BENCHMARKS_FOLDER

PAGE = {"name": "page", "x": 0.0, "y": 0.0, "w": 1.0, "h": 1.0}
SAVE = {"name": "Save", "x": 0.4, "y": 0.4, "w": 0.2, "h": 0.1}


@pytest.fixture(scope="module")
def same():
    sys.path.insert(0, str(BENCHMARKS_FOLDER))
    try:
        return importlib.import_module("corrections").same
    finally:
        sys.path.remove(str(BENCHMARKS_FOLDER))


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
def test_same(same, one, expert, elements, right):
    assert same(one, expert, elements) is right
