"""Draw scenes ahead of training, in a Chromium of its own process."""

from __future__ import annotations

import multiprocessing
import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from flywheel import config
from flywheel.envs.browser.driver import chromium
from flywheel.envs.screens import layouts
from flywheel.envs.tasks.grounding import SceneRenderer
from flywheel.utils.processes import exit_with_parent

# Kinds of scenes that pretraining shows, their levels, and the success on each kind.

# Crowded screens teach most at the same cost: every thing on a screen is a target of the image tokens that show it.
LEVEL_MIX = (1, 2, 3, 3, 4, 4)
EXTRA_DRAWS = {
    "texts": 7,
    "sheet": 4,
    "form": 2,
    "rows": 1,
    "buttons": 1,
}  # times that a kind is drawn beyond the once of all
ACCURACY_WINDOW = 300  # questions that success is measured on


def draw_scene_kinds(count: int, rng: random.Random) -> list[tuple[str, int]]:
    """Draw kinds and levels of the next scenes: all kinds, those that teach most more often.

    Levels raised by success, which a small model needs to learn by answers alone which thing a word means, are not
    needed where attention is taught to point: it falls on the right one of several things after 5,000 screens.
    """
    kinds = [*layouts.SCENE_KINDS, *(kind for kind, times in EXTRA_DRAWS.items() for _ in range(times))]
    return [(rng.choice(kinds), rng.choice(LEVEL_MIX)) for _ in range(count)]


@dataclass
class KindAccuracy:
    """Success for each kind of scene on its newest `WINDOW` questions or more."""

    hits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(layouts.SCENE_KINDS, 0))
    asked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(layouts.SCENE_KINDS, 0))
    success: dict[str, float] = field(default_factory=dict)

    def note(self, kind: str, hits: int, asked: int) -> None:
        self.hits[kind] += hits
        self.asked[kind] += asked
        if self.asked[kind] >= ACCURACY_WINDOW:
            self.success[kind] = self.hits[kind] / self.asked[kind]
            self.hits[kind] = self.asked[kind] = 0


# Drawing: Chromium works ahead of training in a process of its own.


def stream_scene_chunks(
    name: str, first: int, coordinates: int, size: int
) -> Iterator[tuple[int, np.ndarray, list[layouts.Scene]]]:
    """Yield number, pixels (uint8 [size, side, side, 3]) and scenes of each chunk; the next ones are drawn meanwhile.

    name: of the stream: the same name, number and size give the same scenes. first: number of the first chunk. size:
    scenes drawn at once.
    """
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=exit_with_parent)
    try:
        waiting: deque[Future[Any]] = deque()
        for number in range(first, 2**31):
            while len(waiting) < 2:
                waiting.append(pool.submit(_render_chunk, size, f"{name}/{number + len(waiting)}", coordinates))
            pixels, drawn = waiting.popleft().result()
            yield number, pixels, drawn
    finally:
        # Waited for, though a drawing may be under way: else the worker and the end of this process can wait for each
        # other without end.
        pool.shutdown(wait=True, cancel_futures=True)


@cache
def _open_renderer() -> SceneRenderer:
    """One browser for all chunks."""
    return SceneRenderer(str(chromium.find_chromium(config.SandboxSettings()))).__enter__()


def _render_chunk(count: int, seed: str, coordinates: int) -> tuple[np.ndarray, list[layouts.Scene]]:
    rng = random.Random(seed)
    drawn = [layouts.draw_scene(kind, level, rng, coordinates) for kind, level in draw_scene_kinds(count, rng)]
    return _open_renderer().draw(drawn), drawn
