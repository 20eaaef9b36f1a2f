"""Draw levels of a game from seeds, compare them by content, and draw again until one can be played."""

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

    what: the level's name in the error. Raises DataError where `tries` calls return nothing.
    """
    for _ in range(tries):
        try:
            made = make()
        except SearchLimit:
            continue
        if made is not None:
            return made
    raise DataError(f"no level in {tries} tries", where=what, fix="loosen what its generator asks of a level")


def level_digest(params: dict[str, Any]) -> str:
    """Return the sha256 of a level's content, in hex: the same for equal params, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(params, sort_keys=True).encode()).hexdigest()


def draw_levels(
    world: BrowserWorld, template: str, level: int, n: int, start: int = 0
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield `n` different levels as (seed, params), from the seed `start` on; a seed that repeats a level is left out.

    world, template, level: to draw of. Raises DataError where about 2 n seeds do not give `n` levels, BadInput as
    `BrowserWorld.draw`.
    """
    seen: set[str] = set()
    seed = start
    while len(seen) < n:
        params = world.draw(template, level, seed)
        if (key := level_digest(params)) not in seen:
            seen.add(key)
            yield seed, params
        seed += 1
        if seed - start > 2 * n + 10:
            raise DataError(
                f"only {len(seen)} different levels", where=f"world {world.name}, {template}, level {level}"
            )
