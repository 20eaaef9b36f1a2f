"""Stream the events of a browser pool to any number of readers, none of which can hold it up.

Each reader has a buffer of its own. Where a reader is slow its oldest events make room and are counted, so that the
pool never waits and a reader knows what it has missed. The counts by kind are exact, whoever reads.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime


@dataclass(frozen=True, kw_only=True)
class PoolEvent:
    """An event. browser: its process id, 0 where there is none yet. page: its number in the pool; 0: of the browser.

    session: name of the lease; empty where none is concerned.
    """

    browser: int = 0
    page: int = 0
    session: str = ""
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, kw_only=True)
class Started(PoolEvent):
    """A browser or a page is there. seconds: what that took."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class Leased(PoolEvent):
    """A session began. waited: seconds until its page was ready."""

    waited: float


@dataclass(frozen=True, kw_only=True)
class Stepped(PoolEvent):
    """A reset (step 0) or a step was answered, in `seconds`. task: its id. ended: the episode is over."""

    task: str
    step: int
    seconds: float
    ended: bool


@dataclass(frozen=True, kw_only=True)
class Crashed(PoolEvent):
    """A page or a browser is lost, hung ones included. error: what its holder is told."""

    error: str


@dataclass(frozen=True, kw_only=True)
class Reclaimed(PoolEvent):
    """A session was taken back from its holder. why: `overdue` (the lease's deadline) or `idle` (no call for long)."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Released(PoolEvent):
    """A session was given back by its holder. seconds: how long it was held; steps: resets left out."""

    seconds: float
    episodes: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Closed(PoolEvent):
    """A browser or a page was closed by the pool. why: idle, episodes, memory, lost or end."""

    why: str


class PoolEvents:
    """Where the pool tells what happens."""

    def __init__(self) -> None:
        self._streams: set[PoolEventStream] = set()
        self._counts: Counter[str] = Counter()
        self._over = False

    @property
    def counts(self) -> Mapping[str, int]:
        """Events so far, by the name of their class."""
        return dict(self._counts)

    def publish(self, event: PoolEvent) -> None:
        """Publish an event, without waiting for any reader. Call it in the event loop's thread."""
        self._counts[type(event).__name__] += 1
        for stream in self._streams:
            stream.put(event)

    def stream(self, *kinds: type[PoolEvent], size: int = 1024) -> PoolEventStream:
        """Stream events from now on, of `kinds` or all: `with pool.events.stream(Crashed) as s: async for e in s`.

        size: events kept for a slow reader. Without `with` the stream is read until the pool's end.
        """
        stream = PoolEventStream(self, kinds or (PoolEvent,), size)
        self._streams.add(stream)
        if self._over:
            stream.end()
        return stream

    def forget(self, stream: PoolEventStream) -> None:
        self._streams.discard(stream)

    def end(self) -> None:
        """End all streams: the pool is closed, and each reader comes to the end of what it has."""
        self._over = True
        for stream in self._streams:
            stream.end()


class PoolEventStream(AsyncIterator[PoolEvent]):
    """One reader's events, oldest first. `dropped`: how many it was too slow for."""

    def __init__(self, events: PoolEvents, kinds: tuple[type[PoolEvent], ...], size: int) -> None:
        self._events, self._kinds = events, kinds
        self._kept: deque[PoolEvent] = deque(maxlen=size)
        self._more = asyncio.Event()
        self._over = False
        self.dropped = 0

    def put(self, event: PoolEvent) -> None:
        if isinstance(event, self._kinds):
            self.dropped += len(self._kept) == self._kept.maxlen
            self._kept.append(event)
            self._more.set()

    def end(self) -> None:
        self._over = True
        self._more.set()

    def take(self) -> list[PoolEvent]:
        """Take all that is there now, without waiting."""
        taken = list(self._kept)
        self._kept.clear()
        return taken

    async def __anext__(self) -> PoolEvent:
        while not self._kept:
            if self._over:
                raise StopAsyncIteration
            self._more.clear()
            await self._more.wait()
        return self._kept.popleft()

    def __enter__(self) -> PoolEventStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._events.forget(self)
        self.end()
