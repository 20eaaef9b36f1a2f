"""Lines of progress that a test waits for."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

from processes import PATIENCE_S

from flywheel.utils.progress import replace_listener


class Told:
    """Lines that the policy tells, from whichever thread; a line with certain words can be waited for."""

    def __init__(self):
        self.lines, self._loop, self._new = [], asyncio.get_running_loop(), asyncio.Event()

    def __call__(self, stage, line):
        self.lines.append(str(line))
        self._loop.call_soon_threadsafe(self._new.set)

    async def line(self, *words):
        async with asyncio.timeout(PATIENCE_S):
            while not (found := [line for line in self.lines if all(word in line for word in words)]):
                await self._new.wait()
                self._new.clear()
        return found[0]


@contextmanager
def told():
    heard = Told()
    with replace_listener(heard):
        yield heard
