"""Play any suite at random, without knowledge of it, to measure the level of chance."""

from __future__ import annotations

import random

from flywheel.agent.actions import Action, Click, Drag, Hotkey, Point, Type

_KEYS = ("left", "right", "up", "down")
_TEXTS = ("anna\n", "mug\n", "red\n", "7\n")


def random_action(rng: random.Random, *, texts: bool) -> Action:
    """Return a click, a drag or an arrow key, each as likely, at uniformly random points; `texts`: or a typed text."""

    def point() -> Point:
        return Point(rng.random(), rng.random())

    kinds = [
        lambda: Click(point()),
        lambda: Drag(point(), point()),
        lambda: Hotkey((rng.choice(_KEYS),)),
        lambda: Type(rng.choice(_TEXTS)),
    ]
    return rng.choice(kinds if texts else kinds[:3])()
