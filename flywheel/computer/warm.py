"""Computers, or what else takes long to start, that have started before they are asked for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar


class Closes(Protocol):
    async def close(self) -> None: ...


T = TypeVar("T", bound=Closes)


class Warm(Generic[T]):
    """count: how many wait at once. Used in an `async with`, which ends those that are left."""

    def __init__(self, start: Callable[[], Awaitable[T]], count: int) -> None:
        self._start, self._count = start, count
        self._waiting: deque[asyncio.Task[T]] = deque()

    async def __aenter__(self) -> Warm[T]:
        self.fill()
        return self

    async def __aexit__(self, *_: object) -> None:
        waiting, self._count = tuple(self._waiting), 0
        self._waiting.clear()
        for made in await asyncio.gather(*waiting, return_exceptions=True):
            if not isinstance(made, BaseException):
                await made.close()

    async def take(self) -> T:
        """One that nobody else has. Another takes its place at the next `fill`: to start it at once would slow down
        what is begun in this one. Raises EnvError where it did not start."""
        if not self._waiting:
            return await self._start()
        taken = self._waiting.popleft()
        try:
            return await taken
        except asyncio.CancelledError:  # the asker's time is over, and what was taken would be nobody's
            taken.add_done_callback(_forsake)
            raise

    def fill(self) -> None:
        """Begin to start as many as are lacking."""
        while len(self._waiting) < self._count:
            self._waiting.append(asyncio.ensure_future(self._start()))


def _forsake(taken: asyncio.Task[T]) -> None:
    if not taken.cancelled() and taken.exception() is None:
        _closing.add(closing := asyncio.ensure_future(taken.result().close()))
        closing.add_done_callback(_closing.discard)


_closing: set[asyncio.Future] = set()  # the loop holds its tasks by weak references alone
