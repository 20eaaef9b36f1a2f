"""What an operator asks of a pool: its browsers, its pages, whose they are, and what they take."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flywheel.sandbox import memory

if TYPE_CHECKING:
    from flywheel.sandbox.hosts import BrowserSlot, PageSlot
    from flywheel.sandbox.pool import BrowserPool


@dataclass(frozen=True)
class PageStatus:
    """state: opening, ready, leased, tidying or closing. unused_s: seconds since the last answer of its environment.

    session, task, episode, step: empty or 0 where it is not leased. left_s: until the lease is taken back.
    """

    number: int
    state: str
    age_s: float
    unused_s: float
    session: str = ""
    task: str = ""
    episode: int = 0
    step: int = 0
    busy: bool = False
    left_s: float = 0.0


@dataclass(frozen=True)
class BrowserStatus:
    """pid: 0 while it starts. state: starting, serving or retiring (takes no more sessions). pids: all its processes.

    memory_mb: MiB of all its processes (PSS); 0 where the system does not tell.
    """

    pid: int
    state: str
    age_s: float
    episodes: int
    memory_mb: float
    pids: tuple[int, ...]
    pages: tuple[PageStatus, ...]


@dataclass(frozen=True)
class PoolStatus:
    """waiting: those who wait for a page. counts: events so far, by the name of their class."""

    browsers: tuple[BrowserStatus, ...]
    waiting: int
    counts: Mapping[str, int]

    @property
    def sessions(self) -> tuple[PageStatus, ...]:
        """The pages that are leased."""
        return tuple(page for browser in self.browsers for page in browser.pages if page.session)

    @property
    def memory_mb(self) -> float:
        return sum(browser.memory_mb for browser in self.browsers)

    def __str__(self) -> str:
        pages = sum(len(browser.pages) for browser in self.browsers)
        lines = [
            f"{len(self.browsers)} browsers, {pages} pages, {len(self.sessions)} sessions, {self.waiting} waiting, "
            f"{self.memory_mb:.0f} MB; " + ", ".join(f"{name} {n}" for name, n in sorted(self.counts.items()))
        ]
        for b in self.browsers:
            lines.append(
                f"browser {b.pid}: {b.state}, {b.age_s:.0f} s old, {b.episodes} episodes, {b.memory_mb:.0f} MB, "
                f"{len(b.pids)} processes"
            )
            for p in b.pages:
                held = f", {p.session}: task {p.task}, episode {p.episode}, step {p.step}" if p.session else ""
                left = f", {p.left_s:.0f} s left" if p.session else ""
                busy = ", in a call" if p.busy else f", unused for {p.unused_s:.0f} s"
                lines.append(f"  page {p.number}: {p.state}, {p.age_s:.0f} s old{held}{busy}{left}")
        return "\n".join(lines)


async def look(pool: BrowserPool) -> PoolStatus:
    hosts = list(pool.fleet.hosts)
    families = await asyncio.to_thread(memory.measure, [host.pid for host in hosts if host.pid])
    browsers = tuple(_browser(pool, host, families.get(host.pid, [])) for host in hosts)
    return PoolStatus(browsers, pool.waiting, pool.events.counts)


def _browser(pool: BrowserPool, host: BrowserSlot, family: list[memory.Process]) -> BrowserStatus:
    state = f"retiring ({host.retiring})" if host.retiring else "serving" if host.pid else "starting"
    return BrowserStatus(
        host.pid,
        state,
        pool.clock() - host.opened,
        host.episodes,
        sum(process.mb for process in family),
        tuple(process.pid for process in family),
        tuple(_page(pool, page) for page in host.pages),
    )


def _page(pool: BrowserPool, page: PageSlot) -> PageStatus:
    now, lease = pool.clock(), page.lease
    if lease is None:
        return PageStatus(page.number, page.state, now - page.opened, now - page.used)
    return PageStatus(
        page.number,
        "leased",
        now - page.opened,
        now - lease.used,
        lease.session,
        lease.task.task_id if lease.task else "",
        lease.episodes,
        lease.step_number,
        lease.busy,
        lease.began + pool.settings.lease_s - now,
    )
