"""Scenes drawn ahead of training, by Chromium in a process of its own."""

from __future__ import annotations

import multiprocessing
import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from flywheel import scenes
from flywheel import settings as config
from flywheel.parent import end_with_parent
from flywheel.sandbox import chromium
from flywheel.synthesis.render import Renderer
from flywheel.training.pretrain.mixture import plan


def chunks(name: str, first: int, coordinates: int, size: int) -> Iterator[tuple[int, np.ndarray, list[scenes.Scene]]]:
    """Number, pixels (uint8 [size, side, side, 3]) and scenes of each chunk; the next ones are drawn meanwhile.

    name: of the stream: the same name, number and size give the same scenes. size: scenes drawn at once.
    """
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=end_with_parent)
    try:
        waiting: deque[Future[Any]] = deque()
        for number in range(first, 2**31):
            while len(waiting) < 2:
                waiting.append(pool.submit(_draw, size, f"{name}/{number + len(waiting)}", coordinates))
            pixels, drawn = waiting.popleft().result()
            yield number, pixels, drawn
    finally:
        # Waited for, though a drawing may be under way: else the worker and the end of this process can wait for each
        # other without end.
        pool.shutdown(wait=True, cancel_futures=True)


@cache
def _browser() -> Renderer:
    """One browser for all chunks."""
    return Renderer(str(chromium.find(config.Sandbox()))).__enter__()


def _draw(count: int, seed: str, coordinates: int) -> tuple[np.ndarray, list[scenes.Scene]]:
    rng = random.Random(seed)
    drawn = [scenes.draw(kind, level, rng, coordinates) for kind, level in plan(count, rng)]
    return _browser().draw(drawn), drawn
