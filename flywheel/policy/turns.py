"""Turns at a server: so many at once, the others in order; and a time when nobody has one, for a swap of weights."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator


class Turns:
    """Belongs to one event loop. at_once: turns that may be taken at the same time."""

    def __init__(self, at_once: int) -> None:
        self._at_once, self._taken, self._stopped = at_once, 0, False
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._idle: asyncio.Future[None] | None = None
        self._swap = asyncio.Lock()

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    @property
    def free(self) -> bool:
        """Whether the next one need not wait."""
        return not self._stopped and not self._waiters and self._taken < self._at_once

    async def take(self) -> None:
        if self.free:
            self._taken += 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with contextlib.suppress(ValueError):  # it may have been passed over already
                    self._waiters.remove(waiter)
            else:  # the turn came at the same moment
                self.give_back()
            raise

    def give_back(self) -> None:
        self._taken -= 1
        self._go_on()

    @contextlib.asynccontextmanager
    async def nobody(self) -> AsyncIterator[None]:
        """Once all turns that were taken are given back; those who wait go on afterwards."""
        async with self._swap:
            self._stopped = True
            try:
                if self._taken:
                    self._idle = asyncio.get_running_loop().create_future()
                    await self._idle
                yield
            finally:
                self._stopped, self._idle = False, None
                self._go_on()

    def _go_on(self) -> None:
        if self._stopped:
            if not self._taken and self._idle is not None and not self._idle.done():
                self._idle.set_result(None)
            return
        while self._waiters and self._taken < self._at_once:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._taken += 1
                waiter.set_result(None)
