"""What a pool does by itself: it takes back overdue sessions, finds hung pages, bounds memory, closes what is idle.

A call under way has deadlines of its own (`lease.py`); here is what nobody is waiting for.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from flywheel.errors import EnvError, EnvTimeout
from flywheel.sandbox import memory
from flywheel.settings import Sandbox

if TYPE_CHECKING:
    from flywheel.sandbox.lease import Lease
    from flywheel.sandbox.pool import BrowserPool

log = logging.getLogger(__name__)
_CLOCK_S = 1.0  # between looks at deadlines
_MEMORY_S = 2.0
_HEALTH_S = 5.0  # between questions to each page


class Watchdog:
    """`run` looks again and again; each look may be called by itself."""

    def __init__(self, pool: BrowserPool, settings: Sandbox) -> None:
        self._pool, self._settings = pool, settings

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_forever(_CLOCK_S, self.deadlines))
            group.create_task(_forever(_CLOCK_S, self.idle))
            group.create_task(_forever(_HEALTH_S, self.pages))
            group.create_task(_forever(_MEMORY_S, self.memory))

    async def deadlines(self) -> None:
        """Sessions held for too long, or whose holder is silent, are taken back."""
        s, now = self._settings, self._pool.clock()
        for lease in self._pool.leases:
            if now - lease.began > s.lease_s:
                error = EnvTimeout(
                    f"the session was taken back: it was held for more than {s.lease_s:g} s",
                    where=lease.where,
                    fix="lease another environment, or raise sandbox.lease_s",
                )
                self._pool.reclaim(lease, "overdue", error)
            elif not lease.busy and now - lease.used > s.silent_s:
                error = EnvTimeout(
                    f"the session was taken back: it got no call for {s.silent_s:g} s",
                    where=lease.where,
                    fix="lease another environment, or raise sandbox.silent_s",
                )
                self._pool.reclaim(lease, "idle", error)

    async def idle(self) -> None:
        """Pages that nobody used for sandbox.idle_s are closed, but for sandbox.pages_min; browsers left empty too."""
        fleet, now = self._pool.fleet, self._pool.clock()
        there = [page for page in fleet.pages if page.state != "closing"]
        old = [page for page in there if page.free and now - page.used > self._settings.idle_s]
        # Of the emptiest browsers first, so that whole browsers go.
        old.sort(key=lambda page: (page.host.load, page.used))
        for page in old[: max(len(there) - self._settings.pages_min, 0)]:
            fleet.throw_away(page, "idle")
        for host in list(fleet.hosts):
            empty = all(page.state == "closing" for page in host.pages)
            if host.alive and empty and now - host.used > self._settings.idle_s:
                fleet.retire(host, "idle")

    async def pages(self) -> None:
        """A page that does not answer though nobody asks it anything hangs: it is ended before anyone meets it."""
        quiet = [lease for lease in self._pool.leases if lease.task is not None and not lease.busy]
        await asyncio.gather(*(self._ask(lease) for lease in quiet))

    async def memory(self) -> None:
        """A page above sandbox.page_mb is ended as a crash; a browser above sandbox.browser_mb is replaced."""
        fleet, s = self._pool.fleet, self._settings
        pids = [host.pid for host in fleet.hosts if host.alive]
        families = await asyncio.to_thread(memory.measure, pids, one_mb=s.page_mb, all_mb=s.browser_mb)
        for host in list(fleet.hosts):
            family = families.get(host.pid, [])
            host.memory_mb = sum(process.mb for process in family)
            for process in family:
                if process.kind == "renderer" and process.mb > s.page_mb and host.alive:
                    log.warning("a page of browser %d took %d MB: ended", host.pid, process.mb)
                    with suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)
            if host.memory_mb > s.browser_mb:
                fleet.retire(host, "memory")

    async def _ask(self, lease: Lease) -> None:
        used = lease.used
        try:
            await lease.tab.ping()
        except EnvTimeout:
            if lease.used == used and not (lease.busy or lease.over):  # else its holder has a deadline of its own
                error = EnvTimeout(
                    f"the page hangs: it did not answer within {self._settings.timeout_s:g} s",
                    where=lease.where,
                    fix="lease another environment",
                )
                self._pool.lost(lease, error)
        except EnvError as error:
            log.debug("%s: %s", lease.where, error)  # it navigates; or it crashed, which is told by its tab


async def _forever(seconds: float, look: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await look()
        except Exception:
            log.exception("the pool's watchdog stumbled, and goes on")
