"""How much of the time environments are in use."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from flywheel.environments.env import Env, Task
from flywheel.environments.router import Environments


class Occupancy:
    """`Environments` over others, which counts what is lent. places: that there are at most. clock: seconds."""

    def __init__(self, environments: Environments, places: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._environments, self._places, self._clock = environments, places, clock
        self._lent, self._area = 0, 0.0  # environments now; environment-seconds since `_began`
        self._began = self._changed = clock()

    @asynccontextmanager
    async def env(self, task: Task) -> AsyncIterator[Env]:
        async with self._environments.env(task) as env:
            self._change(1)
            try:
                yield env
            finally:
                self._change(-1)

    def share(self) -> float:
        """Of the places' time since it was last asked, what environments were lent for: 0 to 1."""
        self._change(0)
        seconds = self._changed - self._began
        share = self._area / (self._places * seconds) if seconds > 0 else 0.0
        self._area, self._began = 0.0, self._changed
        return share

    def _change(self, by: int) -> None:
        now = self._clock()
        self._area += self._lent * (now - self._changed)
        self._lent, self._changed = self._lent + by, now
