"""Draw levels of a game from a seed, tell them apart by content, and draw again until one is fit to be played."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from flywheel.envs.suites.catalogue import BrowserWorld
from flywheel.envs.suites.search import SearchLimit
from flywheel.utils.errors import DataError

T = TypeVar("T")
_TRIES = 2000


def first_winnable(make: Callable[[], T | None], what: str, tries: int = _TRIES) -> T:
    """Call `make` until it returns something, and return that; a search that reaches its limit counts as None.

    what: the level, for the error. Raises DataError where `tries` calls give nothing.
    """
    for _ in range(tries):
        try:
            made = make()
        except SearchLimit:
            continue
        if made is not None:
            return made
    raise DataError(f"no level in {tries} tries", where=what, fix="loosen what its generator asks of a level")


def levels_digest(params: dict[str, Any]) -> str:
    """Hash of a level's content: the same for equal params, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(params, sort_keys=True).encode()).hexdigest()


def draw_levels(
    world: BrowserWorld, template: str, level: int, n: int, start: int = 0
) -> Iterator[tuple[int, dict[str, Any]]]:
    """`n` different levels as (seed, params), of the seeds from `start` on; a seed that repeats one is left out.

    Raises DataError where more than half of the seeds repeat.
    """
    seen: set[str] = set()
    seed = start
    while len(seen) < n:
        params = world.draw(template, level, seed)
        if (key := levels_digest(params)) not in seen:
            seen.add(key)
            yield seed, params
        seed += 1
        if seed - start > 2 * n + 10:
            raise DataError(
                f"only {len(seen)} different levels", where=f"world {world.name}, {template}, level {level}"
            )
