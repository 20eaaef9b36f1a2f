"""Lease browser pages to episodes: keep deadlines, survive crashes, grow and shrink with the load, close cleanly."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from flywheel.agent.actions import Action
from flywheel.config import SandboxSettings, Settings
from flywheel.envs.base import Env, Gesture, LatestPicture, StepResult, Task
from flywheel.envs.browser import episode_recorder, fleet
from flywheel.envs.browser.driver import chromium
from flywheel.envs.browser.env import BrowserEnv
from flywheel.envs.browser.episode_recorder import EpisodeRecorder
from flywheel.envs.browser.fleet import BackgroundTasks, BrowserFleet, PageSlot, PoolEvent, PoolEvents
from flywheel.envs.browser.page_source import PageSource
from flywheel.envs.browser.pages.manifest import load_page_manifests
from flywheel.envs.browser.pages.session import ManifestPages
from flywheel.utils import child_processes
from flywheel.utils.errors import EnvError, EnvTimeout


@dataclass(frozen=True)
class PageStatus:
    """Hold the status of one page of a pool.

    state: opening, ready, leased, tidying or closing. age_s: seconds since it was opened. unused_s: seconds since the
    last call to its environment ended. session: name of its lease. session, task, episode, step: "" or 0 where it is
    not leased. busy: a call is under way. left_s: seconds until the lease is taken back.
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
    """Hold the status of one browser of a pool.

    pid: 0 while it starts. state: starting, serving or retiring (takes no more sessions). age_s: seconds since its
    start began. episodes: resets so far. memory_mb: MiB of all its processes (PSS); 0 where the system does not tell.
    pids: of all its processes.
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
    """Hold the status of a pool; `str()` of it is a table for people.

    waiting: number of callers that wait for a page. counts: events so far, by the name of their class.
    """

    browsers: tuple[BrowserStatus, ...]
    waiting: int
    counts: Mapping[str, int]

    @property
    def sessions(self) -> tuple[PageStatus, ...]:
        """Return the pages that are leased."""
        return tuple(page for browser in self.browsers for page in browser.pages if page.session)

    @property
    def memory_mb(self) -> float:
        """Return the memory of all browsers, in MiB."""
        return sum(browser.memory_mb for browser in self.browsers)

    def __str__(self) -> str:
        pages = sum(len(browser.pages) for browser in self.browsers)
        lines = [
            f"{len(self.browsers)} browsers, {pages} pages, {len(self.sessions)} sessions, {self.waiting} waiting, "
            f"{self.memory_mb:.0f} MB; " + ", ".join(f"{name} {n}" for name, n in sorted(self.counts.items()))
        ]
        for b in self.browsers:
            told = f"browser {b.pid}: {b.state}, {b.age_s:.0f} s old, {b.episodes} episodes, {b.memory_mb:.0f} MB"
            lines.append(f"{told}, {len(b.pids)} processes")
            for p in b.pages:
                held = f", {p.session}: task {p.task}, episode {p.episode}, step {p.step}" if p.session else ""
                left = f", {p.left_s:.0f} s left" if p.session else ""
                busy = ", in a call" if p.busy else f", unused for {p.unused_s:.0f} s"
                lines.append(f"  page {p.number}: {p.state}, {p.age_s:.0f} s old{held}{busy}{left}")
        return "\n".join(lines)


LeaseResult = TypeVar("LeaseResult")


class PageLease:
    """Lend one page to one holder, as an `Env` that the pool can end at any moment. Only `BrowserPool.env` makes it.

    Where the pool reclaims the lease, or its browser dies, the call under way, or else the next one, raises EnvError
    that says so. The lease ends a call that the environment does not end itself after twice `sandbox.timeout_s`.
    session: the lease's name in events and status. recorder: None where nothing is recorded. Its calls raise what those
    of the environment raise, EnvError for a second call at once or after the lease's end, and EnvTimeout.
    """

    def __init__(self, session: str, page: PageSlot, owner: BrowserPool, recorder: EpisodeRecorder | None) -> None:
        self.session, self.page = session, page
        self._owner, self._clock, self._recorder = owner, owner.clock, recorder
        self._limit_s = 2 * owner.settings.timeout_s
        self._reset_s = self._limit_s + owner.start_s
        self._scope: asyncio.Timeout | None = None
        self._over: EnvError | None = None
        self.task: Task | None = None
        self.episodes = self.steps = self.step_number = 0
        self.began = self.used = owner.clock()
        self.chores: set[asyncio.Task[Any]] = set()  # background work that `BrowserPool.env` waits for at its end

    # -- Env ------------------------------------------------------------------------------------------------------
    async def reset(self, task: Task, seed: int) -> StepResult:
        """Begin an episode, and with it a recording.

        Its deadline is twice `sandbox.timeout_s`, and what the page's server may take to start.
        """
        self.end_episode()
        self.task, self.step_number = task, 0
        began = self._clock()
        self.episodes += 1
        self.page.host.episodes += 1
        result = await self._call("reset", lambda: self.env.reset(task, seed), self._reset_s)
        if self._recorder:
            self._recorder.begin(task, seed, result)
        self._publish_step(result, began)
        return result

    async def step(self, action: Action) -> StepResult:
        """Carry out one action and return the result, within twice `sandbox.timeout_s`."""
        began = self._clock()
        result = await self._call("step", lambda: self.env.step(action), self._limit_s)
        self.steps, self.step_number = self.steps + 1, self.step_number + 1
        if self._recorder:
            self._recorder.add(action, result)
        self._publish_step(result, began)
        return result

    async def checkpoint(self) -> bytes:
        return await self._call("checkpoint", self.env.checkpoint, self._limit_s)

    async def restore(self, checkpoint: bytes) -> StepResult:
        """Restore a checkpoint as `BrowserEnv.restore`, with no deadline but those of each step and of the lease."""
        result = await self._call("restore", lambda: self.env.restore(checkpoint), None)
        if self._recorder:
            self._recorder.add(None, result)
        return result

    async def close(self) -> None:
        if self._over is None:
            self.end_episode()
            await self._call("close", self.env.close, self._limit_s)

    # -- LiveView -------------------------------------------------------------------------------------------------
    @property
    def touch(self) -> bool:
        return self.env.touch

    def watch(self) -> AbstractContextManager[LatestPicture]:
        return self.env.watch()

    async def apply_gestures(self, gestures: Sequence[Gesture], ms: float) -> list[str]:
        return await self._call("person's gesture", lambda: self.env.apply_gestures(gestures, ms), self._limit_s)

    async def release_all(self) -> None:
        await self._call("person's leave", self.env.release_all, self._limit_s)

    # -- for tests, tools and the pool ----------------------------------------------------------------------------
    @property
    def env(self) -> Any:
        """Return the leased environment."""
        return self.page.env

    @property
    def tab(self) -> Any:
        """Return the tab that plays the episode."""
        return self.page.tab

    @property
    def busy(self) -> bool:
        """Tell whether a call is under way."""
        return self._scope is not None

    @property
    def over(self) -> bool:
        """Tell whether the lease has ended."""
        return self._over is not None

    @property
    def where(self) -> str:
        """Return session, browser, page and task in words, for messages."""
        task = f", task {self.task.task_id}" if self.task else ""
        return f"session {self.session}, browser {self.page.host.pid}, page {self.page.number}{task}"

    def end(self, error: EnvError) -> None:
        """End the lease: every later call, and the one under way, raises `error`."""
        self._over = error
        self.end_episode(str(error))
        if self._scope is not None:
            with suppress(RuntimeError):  # the call has just ended, or its own deadline has passed
                self._scope.reschedule(asyncio.get_running_loop().time())

    def end_episode(self, error: str = "") -> None:
        """End the episode, and begin to write its recording. error: what ended it early; "": nothing."""
        film = self._recorder.finish(error) if self._recorder else None
        if film is not None:
            self.chores.add(self._owner.save_recording(film, self._recorder.folder))

    # -- inside ---------------------------------------------------------------------------------------------------
    async def _call(self, what: str, call: Callable[[], Awaitable[LeaseResult]], limit_s: float | None) -> LeaseResult:
        if self._over is not None:
            raise self._copy_error()
        if self.busy:
            raise EnvError("another call of this session is under way", where=self.where, fix="await it first")
        try:
            async with asyncio.timeout(limit_s) as self._scope:
                return await call()
        except TimeoutError:
            if self._over is None:
                late = EnvTimeout(f"the environment did not answer a {what} in {limit_s:g} s", where=self.where)
                self._owner.fail_lease(self, late)
            raise self._copy_error() from None
        except EnvError as error:
            if self._over is not None:
                raise self._copy_error() from error
            if self.env.broken:
                self._owner.fail_lease(self, error)
            raise
        finally:
            self._scope = None
            self.used = self._clock()

    def _copy_error(self) -> EnvError:
        """Return a new copy of the error that ended this session: an exception is raised only once."""
        return type(self._over)(self._over.what, where=self._over.where, fix=self._over.fix)

    def _publish_step(self, result: StepResult, began: float) -> None:
        seconds, ended = self._clock() - began, result.terminated or result.truncated
        about = {"task": self.task.task_id, "step": self.step_number, "seconds": seconds, "ended": ended}
        self._owner.events.publish(fleet.Stepped(**_event_fields(self), **about))


log = logging.getLogger(__name__)
_DEADLINE_INTERVAL_S = 1.0  # between checks of deadlines
_MEMORY_INTERVAL_S = 2.0
_HEALTH_INTERVAL_S = 5.0  # between health checks of each page


class PoolWatchdog:
    """Watch over a pool: take back overdue sessions, end hung pages, bound memory and close what is idle.

    `run` repeats these checks for ever; the other methods each make one check.
    """

    def __init__(self, pool: BrowserPool, settings: SandboxSettings) -> None:
        self._pool, self._settings = pool, settings

    async def run(self) -> None:
        """Repeat all checks, every one to five seconds, until cancelled; one that fails is logged, and repeated."""
        async with asyncio.TaskGroup() as group:
            group.create_task(_repeat_every(_DEADLINE_INTERVAL_S, self.reclaim_overdue))
            group.create_task(_repeat_every(_DEADLINE_INTERVAL_S, self.close_idle))
            group.create_task(_repeat_every(_HEALTH_INTERVAL_S, self.end_hung_pages))
            group.create_task(_repeat_every(_MEMORY_INTERVAL_S, self.limit_memory))

    async def reclaim_overdue(self) -> None:
        """Take back sessions held for more than sandbox.lease_s, or without a call for sandbox.heartbeat_timeout_s."""
        s, now = self._settings, self._pool.clock()
        for lease in self._pool.leases:
            if now - lease.began > s.lease_s:
                self._pool.reclaim(lease, "overdue", f"it was held for more than {s.lease_s:g} s", "lease_s")
            elif not lease.busy and now - lease.used > s.heartbeat_timeout_s:
                why = f"it got no call for {s.heartbeat_timeout_s:g} s"
                self._pool.reclaim(lease, "idle", why, "heartbeat_timeout_s")

    async def close_idle(self) -> None:
        """Close pages unused for sandbox.idle_s, all but sandbox.pages_min, and the browsers that this leaves empty."""
        served, now = self._pool.fleet, self._pool.clock()
        there = [page for page in served.pages if page.state != "closing"]
        old = [page for page in there if page.free and now - page.used > self._settings.idle_s]
        # Pages of the emptiest browsers come first, so that whole browsers close.
        old.sort(key=lambda page: (page.host.load, page.used))
        for page in old[: max(len(there) - self._settings.pages_min, 0)]:
            served.discard(page, "idle")
        for host in list(served.hosts):
            empty = all(page.state == "closing" for page in host.pages)
            if host.alive and empty and now - host.used > self._settings.idle_s:
                served.retire(host, "idle")

    async def end_hung_pages(self) -> None:
        """End leased pages that hang between two calls: they do not answer a ping."""
        quiet = [lease for lease in self._pool.leases if lease.task is not None and not lease.busy]
        await asyncio.gather(*(self._ask(lease) for lease in quiet))

    async def limit_memory(self) -> None:
        """Kill pages above sandbox.page_mb, which counts as a crash, and retire browsers above sandbox.browser_mb."""
        served, s = self._pool.fleet, self._settings
        pids = [host.pid for host in served.hosts if host.alive]
        families = await asyncio.to_thread(child_processes.measure_memory, pids, one_mb=s.page_mb, all_mb=s.browser_mb)
        for host in list(served.hosts):
            family = families.get(host.pid, [])
            host.memory_mb = sum(process.mb for process in family)
            for process in family:
                if process.kind == "renderer" and process.mb > s.page_mb and host.alive:
                    log.warning("a page of browser %d took %d MB: ended", host.pid, process.mb)
                    with suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)
            if host.memory_mb > s.browser_mb:
                served.retire(host, "memory")

    async def _ask(self, lease: PageLease) -> None:
        used = lease.used
        try:
            await lease.tab.ping()
        except EnvTimeout:
            if lease.used == used and not (lease.busy or lease.over):  # else its call keeps its own deadline
                what = f"the page hangs: it did not answer within {self._settings.timeout_s:g} s"
                self._pool.fail_lease(lease, EnvTimeout(what, where=lease.where, fix=_LEASE_ANOTHER))
        except EnvError as error:
            log.debug("%s: %s", lease.where, error)  # it navigates; or it crashed, which its tab reports


async def _repeat_every(seconds: float, look: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await look()
        except Exception:
            log.exception("the pool's watchdog stumbled, and goes on")


_TRIES = 3  # attempts to open a page where its browser dies meanwhile
_LEASE_ANOTHER = "lease another environment"
_MB = 2**20


class BrowserPool:
    """Lease pages of browsers: `async with BrowserPool(settings.sandbox, source) as pool:`, then `pool.env()`.

    A crash ends the sessions of its page or browser at once, by an error that says so; the next lease gets a new page.

    settings: the block `sandbox`. source: opens the pages of tasks; None where `make_env` needs none. root: the folder
    from which sandbox.record_folder counts; None: the current one. touch: the pages are phones. launch, make_env and
    clock are for tests of failures: they start a browser, make a tab's environment, and give the time in seconds.
    events: streams what happens (`fleet.py`). Raises BadInput where no Chromium is installed.
    """

    def __init__(
        self,
        settings: SandboxSettings,
        source: PageSource | None,
        root: Path | None = None,
        *,
        touch: bool = False,
        launch: Callable[[], Coroutine[Any, Any, Any]] | None = None,
        make_env: Callable[[Any], Env] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.source, self.clock = settings, source, clock
        self.events, self.waiting = PoolEvents(), 0
        self.start_s = getattr(source, "start_s", 0.0)  # seconds that a session's own server may take to start, at most
        launch = launch or partial(chromium.Chromium.start, chromium.find_chromium(settings), settings, touch)
        make_env = make_env or (lambda tab: BrowserEnv(tab, source, settings, touch))
        self.fleet = BrowserFleet(settings, self.events, clock, launch, make_env, self._died)
        self.watchdog = PoolWatchdog(self, settings)
        self.lease_of: dict[PageSlot, PageLease] = {}  # by leased page
        self._films = (root or Path()) / settings.record_folder
        self._permits = asyncio.Semaphore(settings.pages)  # first come, first served
        self._background, self._writers = BackgroundTasks(), BackgroundTasks()
        self._open, self._count, self._name = False, 0, secrets.token_hex(3)

    async def __aenter__(self) -> BrowserPool:
        for folder in await asyncio.to_thread(child_processes.remove_abandoned_folders):
            log.info("removed %s, left by a process that was killed", folder)
        self._open = True
        self.fleet.open_minimum()
        self._background.begin(self.watchdog.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        """End every session and browser. Callers that still hold a page, or wait for one, get EnvError."""
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
    async def env(self, record: Path | None = None) -> AsyncIterator[PageLease]:
        """Lease one page until the block ends, or the pool takes it back; yields the lease, an `Env`.

        It is taken back after sandbox.lease_s, or sandbox.heartbeat_timeout_s without a call. record: a folder for
        recordings of all episodes of this lease, whatever sandbox.record says; None: as that says. Raises EnvTimeout
        where no page comes free within sandbox.acquire_timeout_s, EnvError where no browser starts or the pool is not
        open. The end of the block waits until recordings are on disk.
        """
        lease = await self._lease(record)
        try:
            yield lease
        finally:
            await self._release(lease)

    @property
    def leases(self) -> list[PageLease]:
        """Return the leases of all leased pages."""
        return list(self.lease_of.values())

    async def status(self) -> PoolStatus:
        """Return the browsers and pages of the pool, with their ages in seconds, memory in MiB and leases."""
        hosts, browsers = list(self.fleet.hosts), []
        families = await asyncio.to_thread(child_processes.measure_memory, [host.pid for host in hosts if host.pid])
        for host in hosts:
            state = f"retiring ({host.retiring})" if host.retiring else "serving" if host.pid else "starting"
            family, age_s = families.get(host.pid, []), self.clock() - host.opened
            memory_mb, pids = sum(process.mb for process in family), tuple(process.pid for process in family)
            pages = tuple(map(self._page_status, host.pages))
            browsers.append(BrowserStatus(host.pid, state, age_s, host.episodes, memory_mb, pids, pages))
        return PoolStatus(tuple(browsers), self.waiting, self.events.counts)

    def _page_status(self, page: PageSlot) -> PageStatus:
        now, lease = self.clock(), self.lease_of.get(page)
        if lease is None:
            return PageStatus(page.number, page.state, now - page.opened, now - page.used)
        task, left_s = lease.task.task_id if lease.task else "", lease.began + self.settings.lease_s - now
        held = (lease.session, task, lease.episodes, lease.step_number, lease.busy, left_s)
        return PageStatus(page.number, "leased", now - page.opened, now - lease.used, *held)

    def reclaim(self, lease: PageLease, kind: str, why: str, setting: str) -> None:
        """Take a session back from its holder, whose calls then raise EnvTimeout.

        kind: overdue or idle, for the event. why: in words, for the error. setting: name of the setting of `sandbox` to
        raise, for the error too.
        """
        fix = f"lease another environment, or raise sandbox.{setting}"
        error = EnvTimeout(f"the session was taken back: {why}", where=lease.where, fix=fix)
        self._end(lease, error, fleet.Reclaimed(**_event_fields(lease), why=kind))

    # -- called by leases -----------------------------------------------------------------------------------------
    def fail_lease(self, lease: PageLease, error: EnvError) -> None:
        """End a session whose page crashed, hangs, or died with its browser; its holder's calls raise `error`."""
        self._end(lease, error, fleet.Crashed(**_event_fields(lease), error=str(error)))

    def save_recording(self, film: episode_recorder.EpisodeRecording, folder: Path) -> asyncio.Task[Path | None]:
        """Write an episode's recording into `folder` in the background; the oldest there make room (sandbox.record_mb).

        Returns the task, whose result is the file's path, or None where it was not kept (`write_recording`).
        """
        limit = self.settings.record_mb * _MB
        return self._writers.begin(asyncio.to_thread(episode_recorder.write_recording, film, folder, limit))

    # -- inside ---------------------------------------------------------------------------------------------------
    async def _lease(self, record: Path | None) -> PageLease:
        began = self.clock()
        await self._permit()
        try:
            page = await self._page()
        except BaseException:
            self._permits.release()
            raise
        self._count += 1
        session = f"{self._name}-{self._count}"  # unique among the leases of all pools
        lease = self.lease_of[page] = PageLease(session, page, self, self._make_recorder(session, record))
        self.events.publish(fleet.Leased(**_event_fields(lease), waited=lease.began - began))
        return lease

    async def _permit(self) -> None:
        self.waiting += 1
        try:
            async with asyncio.timeout(self.settings.acquire_timeout_s):
                await self._permits.acquire()
        except TimeoutError:
            late = f"no page came free within {self.settings.acquire_timeout_s:g} s"
            raise EnvTimeout(late, where="browser pool", fix="raise sandbox.pages") from None
        finally:
            self.waiting -= 1

    async def _page(self) -> PageSlot:
        """Reserve a healthy page and wait until it is open; tries again where its browser dies meanwhile."""
        for attempt in range(1, _TRIES + 1):
            if not self._open:
                raise EnvError("the pool is closed", where="browser pool", fix="lease inside of its `async with`")
            page = self.fleet.reserve()
            try:
                await asyncio.wait({page.opening})
                page.opening.result()
                if page.state == "ready" and page.healthy:
                    return page
                self.fleet.discard(page, "lost")
                raise EnvError("the browser died while it opened a page", where=f"browser {page.host.pid}")
            except EnvError as error:
                if page.host.chromium is None or attempt == _TRIES:
                    raise
                log.info("opening a page again: %s", error)
            except BaseException:
                page.reserved = False
                raise
        raise AssertionError("the last try returns or raises")

    async def _release(self, lease: PageLease) -> None:
        """End a lease; returns once its page is ready for the next session and its recordings are on disk."""
        if not lease.over:  # else its page was freed when the pool ended it
            self._give_back(lease)
        if lease.chores:
            # They are tasks of their own: they finish even where the holder is cancelled here.
            await asyncio.wait(lease.chores)

    def _give_back(self, lease: PageLease) -> None:
        lease.end_episode()
        held = self.clock() - lease.began
        self.events.publish(
            fleet.Released(**_event_fields(lease), seconds=held, episodes=lease.episodes, steps=lease.steps)
        )
        lease.end(EnvError("the session was given back", where=lease.where, fix=_LEASE_ANOTHER))
        del self.lease_of[lease.page]
        lease.page.state = "tidying"
        lease.chores.add(self._background.begin(self._tidy(lease.page)))

    async def _tidy(self, page: PageSlot) -> None:
        """Make a page that was given back ready for the next session, or close it."""
        try:
            if page.healthy:
                with suppress(EnvError, TimeoutError):
                    async with asyncio.timeout(fleet.CLOSE_TIMEOUT_S):
                        await page.env.close()
                        page.state = "ready"
            if page.state == "ready" and page.healthy:
                self.fleet.give_back(page)
            else:
                self.fleet.discard(page, "lost")
        finally:
            self._permits.release()

    def _died(self, page: PageSlot, what: str) -> None:
        lease = self.lease_of.get(page)
        if lease is not None:
            self.fail_lease(lease, EnvError(what, where=lease.where, fix=_LEASE_ANOTHER))

    def _end(self, lease: PageLease, error: EnvError, event: PoolEvent | None = None) -> None:
        """End a session at once: its holder gets `error`, its page is closed, its place is free for another."""
        if lease.over:
            return
        lease.end(error)
        if event is not None:
            self.events.publish(event)
            log.warning("%s", error)
        del self.lease_of[lease.page]
        self.fleet.discard(lease.page, "lost")
        self._permits.release()

    def _make_recorder(self, session: str, record: Path | None) -> EpisodeRecorder | None:
        keep, folder = ("all", record) if record else (self.settings.record, self._films)
        return None if keep == "none" else EpisodeRecorder(keep, session, folder, self.settings.record_mb * _MB)


def _event_fields(lease: PageLease) -> dict[str, Any]:
    return {"browser": lease.page.host.pid, "page": lease.page.number, "session": lease.session}


@asynccontextmanager
async def open_browser_pool(settings: Settings, root: Path | None = None) -> AsyncIterator[BrowserPool]:
    """Open a browser pool and the servers of its pages: `async with open_browser_pool(settings) as pool:`.

    root: the workspace, from which relative paths in the settings count; None: the current folder. Removes folders that
    killed processes left, and opens sandbox.pages_min pages in the background. At the end of the block all sessions and
    browsers are ended; a caller that still holds a page gets EnvError. Raises BadInput where no Chromium is installed,
    or for a manifest of synthesis.manifests that is wrong, whose package is not fetched, or whose first page or
    server's program is missing; EnvError where a server does not start.
    """
    from flywheel.envs.suites.server import WorldServer  # imports a web server, which drawing tasks does not need

    manifests = load_page_manifests(settings.synthesis.manifests, root or Path())
    async with AsyncExitStack() as stack:
        source: PageSource = await stack.enter_async_context(WorldServer())
        if manifests:
            source = await stack.enter_async_context(ManifestPages(manifests, source))
        yield await stack.enter_async_context(BrowserPool(settings.sandbox, source, root))
