"""Start and close the browsers and pages of a pool, clean up after those that crash, and stream events of this."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from flywheel.config import SandboxSettings
from flywheel.envs.base import Env
from flywheel.utils.errors import EnvError, EnvTimeout

# Events, for any number of readers, none of which can block the pool: each has its own buffer, which drops and counts
# the oldest events of a slow reader. The counts by kind are exact, whoever reads.


@dataclass(frozen=True, kw_only=True)
class PoolEvent:
    """Hold an event of a pool.

    browser: its process id; 0 where there is none yet. page: its number in the pool; 0: the event is about the browser.
    session: name of the lease concerned; "": none.
    """

    browser: int = 0
    page: int = 0
    session: str = ""
    at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, kw_only=True)
class Started(PoolEvent):
    """Report that a browser or a page is open. seconds: how long that took."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class Leased(PoolEvent):
    """Report that a session began. waited: seconds until its page was ready."""

    waited: float


@dataclass(frozen=True, kw_only=True)
class Stepped(PoolEvent):
    """Report that a reset (step 0) or a step was answered, in `seconds`. task: its id. ended: the episode is over."""

    task: str
    step: int
    seconds: float
    ended: bool


@dataclass(frozen=True, kw_only=True)
class Crashed(PoolEvent):
    """Report that a page or a browser crashed or hangs. error: the message that its holder gets."""

    error: str


@dataclass(frozen=True, kw_only=True)
class Reclaimed(PoolEvent):
    """Report that a session was taken back. why: `overdue` (the lease's deadline) or `idle` (no call for long)."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Released(PoolEvent):
    """Report that a holder gave a session back. seconds: how long it was held. steps: without resets."""

    seconds: float
    episodes: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class Closed(PoolEvent):
    """Report that the pool closed a browser or a page. why: idle, episodes, memory, lost or end."""

    why: str


class PoolEvents:
    """Publish a pool's events to all who read them, and count them by class."""

    def __init__(self) -> None:
        self._streams: set[PoolEventStream] = set()
        self._counts: Counter[str] = Counter()
        self._over = False

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the number of events so far, by the name of their class."""
        return dict(self._counts)

    def publish(self, event: PoolEvent) -> None:
        """Publish an event, without waiting for any reader. Call it in the event loop's thread."""
        self._counts[type(event).__name__] += 1
        for stream in self._streams:
            stream.put(event)

    def stream(self, *kinds: type[PoolEvent], size: int = 1024) -> PoolEventStream:
        """Stream later events, of `kinds` or all: `with pool.events.stream(Crashed) as s: async for e in s`.

        size: events buffered for a slow reader. Without `with` the stream lasts until the pool ends.
        """
        stream = PoolEventStream(self._streams, kinds or (PoolEvent,), size)
        self._streams.add(stream)
        if self._over:
            stream.end()
        return stream

    def end(self) -> None:
        """End all streams: the pool is closed, and each reader still gets its buffered events."""
        self._over = True
        for stream in self._streams:
            stream.end()


class PoolEventStream(AsyncIterator[PoolEvent]):
    """Iterate over a pool's events for one reader, oldest first. dropped: number that the reader was too slow for."""

    def __init__(self, streams: set[PoolEventStream], kinds: tuple[type[PoolEvent], ...], size: int) -> None:
        self._streams, self._kinds = streams, kinds
        self._kept: deque[PoolEvent] = deque(maxlen=size)
        self._more = asyncio.Event()
        self._over = False
        self.dropped = 0

    def put(self, event: PoolEvent) -> None:
        """Add an event, unless the reader did not ask for its kind; a full buffer drops the oldest."""
        if isinstance(event, self._kinds):
            self.dropped += len(self._kept) == self._kept.maxlen
            self._kept.append(event)
            self._more.set()

    def end(self) -> None:
        """End the iteration, after the buffered events."""
        self._over = True
        self._more.set()

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
        self._streams.discard(self)
        self.end()


# Browsers and their pages.

SlotState = Literal["opening", "ready", "tidying", "closing"]


@dataclass(eq=False)
class PageSlot:
    """Hold one page (a tab) of a pool and its state.

    opened, used: when, in seconds of the pool's clock. reserved: a lease has it, or waits for it; set before anything
    is awaited, so that two sessions never get the same page. env, tab: None until the task `opening` is done, which
    raises EnvError where it fails.
    """

    number: int
    host: BrowserSlot
    opened: float
    used: float
    state: SlotState = "opening"
    reserved: bool = False
    tab: Any = None
    env: Any = None
    opening: asyncio.Task[None] | None = field(default=None, repr=False)
    death_watch: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def free(self) -> bool:
        """Tell whether the page can be reserved."""
        return not self.reserved and (self.state == "opening" or (self.state == "ready" and self.healthy))

    @property
    def healthy(self) -> bool:
        """Tell whether nothing is known to be wrong with the page, which must be open."""
        return self.host.alive and not self.env.broken and not self.tab.died.is_set()


@dataclass(eq=False)
class BrowserSlot:
    """Hold one browser of a pool and its state.

    opened, used: when, in seconds of the pool's clock. closed: its end has begun. retiring: why it takes no more
    sessions; "" while it does. episodes: resets so far. chromium: None until the task `starting` is done.
    """

    number: int
    opened: float
    used: float
    starting: asyncio.Task[None] | None = field(default=None, repr=False)
    chromium: Any = None
    pages: list[PageSlot] = field(default_factory=list)
    episodes: int = 0
    retiring: str = ""
    closed: bool = False
    memory_mb: float = 0.0

    @property
    def alive(self) -> bool:
        """Tell whether the browser has started and is still there."""
        return self.chromium is not None and self.chromium.alive

    @property
    def pid(self) -> int:
        """Return the id of the browser's process; 0 before it has started."""
        return self.chromium.pid if self.chromium is not None else 0

    @property
    def load(self) -> int:
        """Return the number of reserved pages."""
        return sum(page.reserved for page in self.pages)

    def free_page(self) -> PageSlot | None:
        """Return an unreserved page, ready or opening; the one used last, so that the others can become idle."""
        free = [page for page in self.pages if page.free]
        return max(free, key=lambda page: (page.state == "ready", page.used), default=None)


log = logging.getLogger(__name__)
_START_TIMEOUT_S = 60.0  # deadline of a browser's or a page's start, which is slow on a busy machine
CLOSE_TIMEOUT_S = 10.0  # deadline of closing one page or environment
_BUSY_FIX = "give the machine less to do, or lower sandbox.pages"


class BackgroundTasks:
    """Run asyncio tasks in the background. Their errors are logged, except EnvError, which is for callers that wait."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin `work` as a task, and return it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def end(self, *, cancel: bool) -> None:
        """Wait until all tasks have ended, also those begun meanwhile. cancel: cancel them first."""
        while self._tasks:
            for task in self._tasks if cancel else ():
                task.cancel()
            await asyncio.wait(set(self._tasks))

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, EnvError):
            log.error("a chore of the browser pool failed", exc_info=error)


class BrowserFleet:
    """Hold the browsers and pages of a pool: open them when needed, close them when not, and clean up when they die.

    launch: starts a browser. make_env: makes the environment of a tab. lost: called with a reserved page that died, and
    the reason.
    """

    def __init__(
        self,
        settings: SandboxSettings,
        events: PoolEvents,
        clock: Callable[[], float],
        launch: Callable[[], Coroutine[Any, Any, Any]],
        make_env: Callable[[Any], Env],
        lost: Callable[[PageSlot, str], None],
    ) -> None:
        self._settings, self._events, self._clock = settings, events, clock
        self._launch, self._make_env, self._lost = launch, make_env, lost
        self._background, self._closers = BackgroundTasks(), BackgroundTasks()
        self._numbers = {"host": 0, "page": 0}
        self.hosts: list[BrowserSlot] = []

    @property
    def pages(self) -> list[PageSlot]:
        """Return the pages of all browsers."""
        return [page for host in self.hosts for page in host.pages]

    def reserve(self) -> PageSlot:
        """Reserve a page of the least loaded browser, or of a new one where all have sessions and another may start.

        The page may still be `opening`. The caller must not reserve more than sandbox.pages at once.
        """
        most = math.ceil(self._settings.pages / self._settings.browsers)
        serving = [host for host in self.hosts if not host.retiring]
        fit = [host for host in serving if host.load < most]
        best = min(fit, key=lambda host: (host.load, host.free_page() is None, host.number), default=None)
        if len(serving) < self._settings.browsers and (best is None or best.load):
            best = self._new_host()
        page = best.free_page() or self._new_page(best)
        page.reserved = True
        return page

    def give_back(self, page: PageSlot) -> None:
        """Free a page for the next session."""
        page.reserved, page.used = False, self._clock()
        page.host.used = page.used
        if page.host.episodes >= self._settings.recycle_after:
            self.retire(page.host, "episodes")
        self._close_if_empty(page.host)

    def open_minimum(self) -> None:
        """Begin to open sandbox.pages_min pages, which stay open whatever the load; a later lease raises a failure."""
        for page in [self.reserve() for _ in range(self._settings.pages_min)]:
            page.reserved = False

    def retire(self, host: BrowserSlot, why: str) -> None:
        """Give a browser no more sessions, and close it when its last one has ended. why: for the event."""
        host.retiring = host.retiring or why
        self._close_if_empty(host)

    def discard(self, page: PageSlot, why: str) -> None:
        """Close a page in the background. Where it does not close, its browser retires. why: for the event."""
        if page.reserved:
            page.host.used = self._clock()
        page.state, page.reserved = "closing", False
        self._background.begin(self._discard(page, why))

    async def end(self) -> None:
        """Close all browsers and pages; waits for browsers that are being closed already."""
        await self._background.end(cancel=True)
        for host in self.hosts:
            self._closers.begin(self._close(host, "end"))
        await self._closers.end(cancel=False)

    # -- browsers -------------------------------------------------------------------------------------------------
    def _new_host(self) -> BrowserSlot:
        self._numbers["host"] += 1
        now = self._clock()
        host = BrowserSlot(self._numbers["host"], opened=now, used=now)
        self.hosts.append(host)
        host.starting = self._background.begin(self._start(host))
        return host

    async def _start(self, host: BrowserSlot) -> None:
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                host.chromium = await self._launch()
        except TimeoutError:
            late = f"no browser started within {_START_TIMEOUT_S:g} s"
            raise EnvTimeout(late, where="browser pool", fix=_BUSY_FIX) from None
        except asyncio.CancelledError:
            raise EnvError("the pool was closed", where="browser pool") from None
        finally:
            if host.chromium is None:
                host.closed = True
                self.hosts.remove(host)
        self._events.publish(Started(browser=host.pid, seconds=self._clock() - host.opened))
        self._background.begin(self._await_exit(host))

    async def _await_exit(self, host: BrowserSlot) -> None:
        """Wait for a browser's death, and report it at once to the holders of its pages."""
        await host.chromium.died.wait()
        if host.closed:
            return
        self._events.publish(Crashed(browser=host.pid, error="the browser died"))
        log.warning("browser %d died; %d sessions were on it", host.pid, host.load)
        host.retiring = "lost"
        for page in list(host.pages):
            if page.reserved:
                self._lost(page, "the browser died")
        await self._close(host, "lost")

    def _close_if_empty(self, host: BrowserSlot) -> None:
        if host.retiring and not host.load and not host.closed:
            self._closers.begin(self._close(host, host.retiring))

    async def _close(self, host: BrowserSlot, why: str) -> None:
        if host.closed:
            return
        host.closed, host.retiring = True, host.retiring or why
        rest = [page for page in host.pages if page.state != "closing"]
        for page in rest:
            page.state = "closing"
        try:
            await host.chromium.close()
        except (EnvError, TimeoutError) as error:
            log.error("browser %d did not end: %s", host.pid, error)
        for page in rest:
            await self._close_env(page)
        self.hosts.remove(host)
        self._events.publish(Closed(browser=host.pid, why=why))

    # -- pages ----------------------------------------------------------------------------------------------------
    def _new_page(self, host: BrowserSlot) -> PageSlot:
        self._numbers["page"] += 1
        now = self._clock()
        page = PageSlot(self._numbers["page"], host, opened=now, used=now)
        host.pages.append(page)
        page.opening = self._background.begin(self._open(page))
        return page

    async def _open(self, page: PageSlot) -> None:
        host = page.host
        try:
            await asyncio.wait({host.starting})
            host.starting.result()
            async with asyncio.timeout(_START_TIMEOUT_S):
                page.tab = await host.chromium.open_tab(self._settings.width, self._settings.height)
        except TimeoutError:
            self.retire(host, "lost")
            late = f"no page opened within {_START_TIMEOUT_S:g} s"
            raise EnvTimeout(late, where="browser pool", fix=_BUSY_FIX) from None
        except asyncio.CancelledError:
            raise EnvError("the pool was closed", where="browser pool") from None
        finally:
            if page.tab is None:
                host.pages.remove(page)
        page.env = self._make_env(page.tab)
        page.state, page.used = "ready", self._clock()
        self._events.publish(Started(browser=host.pid, page=page.number, seconds=page.used - page.opened))
        page.death_watch = self._background.begin(self._watch_death(page))

    async def _watch_death(self, page: PageSlot) -> None:
        await page.tab.died.wait()
        if page.state == "closing" or not page.host.alive:
            return
        if page.reserved:
            self._lost(page, "the page crashed")
        else:
            what = "the page crashed, in nobody's use"
            self._events.publish(Crashed(browser=page.host.pid, page=page.number, error=what))
            self.discard(page, "lost")

    async def _discard(self, page: PageSlot, why: str) -> None:
        host = page.host
        if host.alive:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await page.tab.close()
            except (EnvError, TimeoutError) as error:
                log.warning("page %d of browser %d did not close (%s)", page.number, host.pid, error)
                self.retire(host, "lost")
        await self._close_env(page)
        if page in host.pages:
            host.pages.remove(page)
        self._events.publish(Closed(browser=host.pid, page=page.number, why=why))
        self._close_if_empty(host)

    async def _close_env(self, page: PageSlot) -> None:
        """Free what the environment holds besides its page, such as a session of the suites' server."""
        if page.death_watch is not None:
            page.death_watch.cancel()
        if page.env is not None:
            page.env.broken = True  # so that its tab is not prepared for another session
            with suppress(EnvError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await page.env.close()
