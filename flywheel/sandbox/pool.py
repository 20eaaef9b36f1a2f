"""A pool of pages over several browsers: leases that end, crash recovery, growth and shrinking by load, a clean end.

A crash costs the sessions that were on it, at once and by a named error; the next lease gets a fresh page. What goes
on by itself (overdue sessions, hung pages, memory, idle pages) is in `watchdog.py`, the browsers are in `fleet.py`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from flywheel.environments.env import Env
from flywheel.errors import EnvError, EnvTimeout
from flywheel.sandbox import chromium, profiles, recording
from flywheel.sandbox.browser import BrowserEnv
from flywheel.sandbox.events import Crashed, Event, Events, Leased, Reclaimed, Released, Stepped
from flywheel.sandbox.fleet import CLOSE_S, BackgroundTasks, Fleet
from flywheel.sandbox.hosts import PageSlot
from flywheel.sandbox.lease import Lease
from flywheel.sandbox.process import Chromium
from flywheel.sandbox.sessions import PageSource
from flywheel.sandbox.sources import open_sources
from flywheel.sandbox.status import PoolStatus, look
from flywheel.sandbox.watchdog import Watchdog
from flywheel.settings import Sandbox, Settings

log = logging.getLogger(__name__)
_TRIES = 3  # to open a page whose browser dies meanwhile
_ANOTHER = "lease another environment"
_MB = 2**20


class BrowserPool:
    """`async with BrowserPool(settings.sandbox, source) as pool:`, then `async with pool.env() as env:`.

    events: what happens here (`events.py`). root: the folder that sandbox.record_folder counts from; None: the current
    one. touch: its pages are phones. launch, make_env and clock are there for tests of failures: they start a browser,
    make a tab's environment, and tell the time in seconds. Raises BadInput where no Chromium is installed.
    """

    def __init__(
        self,
        settings: Sandbox,
        source: PageSource | None,
        root: Path | None = None,
        *,
        touch: bool = False,
        launch: Callable[[], Coroutine[Any, Any, Any]] | None = None,
        make_env: Callable[[Any], Env] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.source, self.clock = settings, source, clock
        self.events, self.waiting = Events(), 0
        self.start_s = getattr(source, "start_s", 0.0)  # the longest that a session's own server may take to start
        launch = launch or partial(Chromium.start, chromium.find(settings), settings, touch)
        make_env = make_env or (lambda tab: BrowserEnv(tab, source, settings, touch))
        self.fleet = Fleet(settings, self.events, clock, launch, make_env, self._died)
        self.watchdog = Watchdog(self, settings)
        self._films = (root or Path()) / settings.record_folder
        self._permits = asyncio.Semaphore(settings.pages)  # first come, first served
        self._background, self._writers = BackgroundTasks(), BackgroundTasks()
        self._open, self._count, self._name = False, 0, secrets.token_hex(3)

    async def __aenter__(self) -> BrowserPool:
        for folder in await asyncio.to_thread(profiles.sweep):
            log.info("removed %s, left by a process that was killed", folder)
        self._open = True
        self.fleet.warm()
        self._background.begin(self.watchdog.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        """End every session and browser. Those who still hold a page, or wait for one, get EnvError."""
        self._open = False
        for lease in self.leases:
            self._end(lease, EnvError("the pool was closed", where=lease.where))
        for _ in range(self.waiting):
            self._permits.release()
        await self._background.end(cancel=True)
        await self.fleet.end()
        await self._writers.end(cancel=False)
        self.events.end()

    # -- leases ---------------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def env(self, record: Path | None = None) -> AsyncIterator[Lease]:
        """Lease one page until the block ends, or until sandbox.lease_s or sandbox.silent_s takes it back.

        record: a folder for recordings of all episodes of this lease, whatever sandbox.record says. Raises EnvTimeout
        where no page comes free within sandbox.wait_s, EnvError where no browser starts.
        """
        lease = await self._lease(record)
        try:
            yield lease
        finally:
            await self._release(lease)

    @property
    def leases(self) -> list[Lease]:
        return [page.lease for page in self.fleet.pages if page.lease is not None]

    async def status(self) -> PoolStatus:
        """Browsers, pages and sessions with their ages and memory; `str()` of it is a table for people."""
        return await look(self)

    def reclaim(self, lease: Lease, why: str, error: EnvError) -> None:
        """Take a session back from its holder, who gets `error`. why: overdue or idle."""
        self._end(lease, error, Reclaimed(**_of(lease), why=why))

    # -- what a lease tells ---------------------------------------------------------------------------------------
    def lost(self, lease: Lease, error: EnvError) -> None:
        """Its page crashed, hangs, or died with its browser."""
        self._end(lease, error, Crashed(**_of(lease), error=str(error)))

    def stepped(self, event: Stepped) -> None:
        self.events.tell(event)

    def filmed(self, film: recording.Film, folder: Path) -> asyncio.Task[Path | None]:
        return self._writers.begin(asyncio.to_thread(recording.save, film, folder, self.settings.record_mb * _MB))

    # -- inside ---------------------------------------------------------------------------------------------------
    async def _lease(self, record: Path | None) -> Lease:
        began = self.clock()
        await self._permit()
        try:
            page = await self._page()
        except BaseException:
            self._permits.release()
            raise
        self._count += 1
        session = f"{self._name}-{self._count}"  # of this lease alone, among all pools
        page.lease = lease = Lease(
            session, page, self, self.clock, self.settings.timeout_s, self._camera(session, record), self.start_s
        )
        self.events.tell(Leased(**_of(lease), waited=lease.began - began))
        return lease

    async def _permit(self) -> None:
        self.waiting += 1
        try:
            async with asyncio.timeout(self.settings.wait_s):
                await self._permits.acquire()
        except TimeoutError:
            raise EnvTimeout(
                f"no page came free within {self.settings.wait_s:g} s", where="browser pool", fix="raise sandbox.pages"
            ) from None
        finally:
            self.waiting -= 1

    async def _page(self) -> PageSlot:
        """A sound page, reserved. Tried again where its browser dies while it is being opened."""
        for attempt in range(1, _TRIES + 1):
            if not self._open:
                raise EnvError("the pool is closed", where="browser pool", fix="lease inside of its `async with`")
            page = self.fleet.reserve()
            try:
                await asyncio.wait({page.opening})
                page.opening.result()
                if page.state == "ready" and page.sound:
                    return page
                self.fleet.throw_away(page, "lost")
                raise EnvError("the browser died while it opened a page", where=f"browser {page.host.pid}")
            except EnvError as error:
                if page.host.chromium is None or attempt == _TRIES:
                    raise
                log.info("opening a page again: %s", error)
            except BaseException:
                page.reserved = False
                raise
        raise AssertionError("the last try returns or raises")

    async def _release(self, lease: Lease) -> None:
        """Returns once its page is ready for the next session, and its recordings are on disk."""
        if not lease.over:  # else its page was freed when it was ended
            self._give_back(lease)
        if lease.chores:
            # Tasks: a holder that is cancelled here leaves a clean page and whole recordings all the same.
            await asyncio.wait(lease.chores)

    def _give_back(self, lease: Lease) -> None:
        lease.cut()
        held = self.clock() - lease.began
        self.events.tell(Released(**_of(lease), seconds=held, episodes=lease.episodes, steps=lease.steps))
        lease.end(EnvError("the session was given back", where=lease.where, fix=_ANOTHER))
        lease.page.lease, lease.page.state = None, "tidying"
        lease.chores.add(self._background.begin(self._tidy(lease.page)))

    async def _tidy(self, page: PageSlot) -> None:
        """Make a page that was given back ready for the next session, or throw it away."""
        try:
            if page.sound:
                with suppress(EnvError, TimeoutError):
                    async with asyncio.timeout(CLOSE_S):
                        await page.env.close()
                        page.state = "ready"
            if page.state == "ready" and page.sound:
                self.fleet.give_back(page)
            else:
                self.fleet.throw_away(page, "lost")
        finally:
            self._permits.release()

    def _died(self, page: PageSlot, what: str) -> None:
        lease = page.lease
        if lease is not None:
            self.lost(lease, EnvError(what, where=lease.where, fix=_ANOTHER))

    def _end(self, lease: Lease, error: EnvError, event: Event | None = None) -> None:
        """End a session now: its holder gets `error`, its page is thrown away, its place is free for another."""
        if lease.over:
            return
        lease.end(error)
        if event is not None:
            self.events.tell(event)
            log.warning("%s", error)
        lease.page.lease = None
        self.fleet.throw_away(lease.page, "lost")
        self._permits.release()

    def _camera(self, session: str, record: Path | None) -> recording.Camera | None:
        keep, folder = ("all", record) if record else (self.settings.record, self._films)
        return None if keep == "none" else recording.Camera(keep, session, folder, self.settings.record_mb * _MB)


def _of(lease: Lease) -> dict[str, Any]:
    return {"browser": lease.page.host.pid, "page": lease.page.number, "session": lease.session}


@asynccontextmanager
async def open_sandbox(settings: Settings, root: Path | None = None) -> AsyncIterator[BrowserPool]:
    """The pages' servers and the browser pool: `async with open_sandbox(settings) as pool:`.

    root: the folder that relative paths in the settings count from, which is the workspace; None: the current one.
    """
    async with open_sources(settings, root) as source, BrowserPool(settings.sandbox, source, root) as pool:
        yield pool
