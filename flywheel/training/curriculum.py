"""What pretraining shows next: kinds of scenes, each at a level that success raises."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from flywheel.synthesis import scenes

RAISE_AT = 0.7  # success at which a kind's level is raised
WINDOW = 300  # questions that this success is measured on


@dataclass
class Curriculum:
    """The level of each kind of scene, raised by success on questions of that level.

    hits, asked: since the kind's level was last judged.
    """

    levels: dict[str, int] = field(default_factory=lambda: dict.fromkeys(scenes.KINDS, 1))
    hits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(scenes.KINDS, 0))
    asked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(scenes.KINDS, 0))
    success: dict[str, float] = field(default_factory=dict)  # at the last judgement

    def note(self, kind: str, hits: int, asked: int) -> None:
        """Count answers at the kind's present level, and judge it once there are enough."""
        self.hits[kind] += hits
        self.asked[kind] += asked
        if self.asked[kind] < WINDOW:
            return
        self.success[kind] = self.hits[kind] / self.asked[kind]
        self.hits[kind] = self.asked[kind] = 0
        if self.success[kind] >= RAISE_AT and self.levels[kind] < scenes.LEVELS:
            self.levels[kind] += 1

    def plan(self, count: int, rng: random.Random) -> list[tuple[str, int]]:
        """Kinds and levels of the next scenes: more than half at the present level, the rest below it."""
        drawn = []
        for _ in range(count):
            kind = rng.choice(list(scenes.KINDS))
            top = self.levels[kind]
            drawn.append((kind, top if rng.random() < 0.6 else rng.randint(1, top)))
        return drawn

    def state(self) -> dict[str, dict]:
        return {"levels": self.levels, "hits": self.hits, "asked": self.asked, "success": self.success}
