"""What tells the pages that a run has written something: a stream for each, one look at the files for all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

_LOOK_S = 1.0
_QUIET_S = 15.0  # after which a page is told that nothing has changed, so that it knows that we are here


class Changes:
    """standing: names what stands now (`Resident.standing`)."""

    def __init__(self, standing: Callable[[], str]) -> None:
        self._standing = standing
        self._one = asyncio.Lock()
        self._looked, self._seen = float("-inf"), ""
        self._over = asyncio.Event()

    def end(self) -> None:
        """The streams end; their pages ask again where the server is there again."""
        self._over.set()

    async def stream(self) -> AsyncIterator[str]:
        """The name of what stands, now and each time that it is another one, as server-sent events."""
        told, quiet = "", time.monotonic()
        while not self._over.is_set():
            now = await self._look()
            if now != told or time.monotonic() - quiet > _QUIET_S:
                yield f"data: {now}\n\n" if now != told else ": still so\n\n"
                told, quiet = now, time.monotonic()
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._over.wait()
            except TimeoutError:
                continue

    async def _look(self) -> str:
        async with self._one:
            if time.monotonic() - self._looked > _LOOK_S / 2:
                self._seen = await asyncio.to_thread(self._standing)
                self._looked = time.monotonic()
            return self._seen
