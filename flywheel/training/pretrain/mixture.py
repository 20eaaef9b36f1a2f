"""What pretraining shows: kinds of scenes and their levels, and how it does on each kind."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from flywheel import scenes

# Crowded screens teach most: each thing on a screen is named by the image tokens that show it, at the same cost.
LEVELS = (1, 2, 3, 3, 4, 4)
MORE = {"texts": 7, "sheet": 4, "form": 2, "rows": 1, "buttons": 1}  # times that a kind is drawn beyond the once of all
WINDOW = 300  # questions that success is measured on


def plan(count: int, rng: random.Random) -> list[tuple[str, int]]:
    """Kinds and levels of the next scenes: all kinds, those that teach most more often.

    Levels raised by success, which a small model needs to learn by answers alone which thing a word means, are not
    needed where attention is taught to point: it falls on the right one of several things after 5,000 screens.
    """
    kinds = [*scenes.KINDS, *(kind for kind, times in MORE.items() for _ in range(times))]
    return [(rng.choice(kinds), rng.choice(LEVELS)) for _ in range(count)]


@dataclass
class KindAccuracy:
    """Success for each kind of scene on its newest `WINDOW` questions or more."""

    hits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(scenes.KINDS, 0))
    asked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(scenes.KINDS, 0))
    success: dict[str, float] = field(default_factory=dict)

    def note(self, kind: str, hits: int, asked: int) -> None:
        self.hits[kind] += hits
        self.asked[kind] += asked
        if self.asked[kind] >= WINDOW:
            self.success[kind] = self.hits[kind] / self.asked[kind]
            self.hits[kind] = self.asked[kind] = 0
