"""Browsers without a browser, for tests of what the pool does when they die, hang, grow and grow old."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

from fake_env import FakeEnv, fake_task

from flywheel.config import SandboxSettings
from flywheel.envs.base import StepResult
from flywheel.envs.browser.pool import BrowserPool
from flywheel.utils.errors import EnvError, EnvTimeout

TASK = fake_task(1, max_steps=9)
_pids = itertools.count(10_000_000)  # above what any system gives out


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeTab:
    def __init__(self, browser: FakeChromium) -> None:
        self.browser, self.died = browser, asyncio.Event()
        self.hung = self.closed = False

    async def ping(self) -> None:
        if self.hung:
            raise EnvTimeout("the page did not answer")

    async def close(self) -> None:
        if self.browser.stuck:
            await asyncio.Event().wait()
        self.closed = True

    def crash(self) -> None:
        self.died.set()


class FakeChromium:
    """stuck: its tabs do not close."""

    def __init__(self) -> None:
        self.pid, self.died, self.stuck = next(_pids), asyncio.Event(), False
        self.ended = False

    @property
    def alive(self) -> bool:
        return not self.died.is_set()

    async def open_tab(self, width: int, height: int) -> FakeTab:
        await asyncio.sleep(0)
        if not self.alive:
            raise EnvError("the browser is gone")
        return FakeTab(self)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.kill()
        self.ended = True

    def kill(self) -> None:
        self.died.set()


class TabEnv(FakeEnv):
    """A FakeEnv that fails with its tab, and waits while `held`."""

    def __init__(self, tab: FakeTab) -> None:
        super().__init__()
        self.tab, self.held = tab, False
        self.closes = 0

    async def step(self, action) -> StepResult:
        await self._answer()
        return await super().step(action)

    async def reset(self, task, seed) -> StepResult:
        await self._answer()
        return await super().reset(task, seed)

    async def close(self) -> None:
        self.closes += 1
        await super().close()

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if self.held:
            try:
                await asyncio.Event().wait()
            except BaseException:
                self.broken = True
                raise
        if self.tab.died.is_set() or not self.tab.browser.alive:
            self.broken = True
            raise EnvError("the page is gone")


class Fleetful:
    """A pool over fakes. `async with Fleetful(pages=4) as f`: f.pool, f.browsers (all ever started), f.clock."""

    def __init__(self, fail_starts: int = 0, **settings) -> None:
        self.settings = SandboxSettings(**{"pages_min": 0, "timeout_s": 30, **settings})
        self.browsers: list[FakeChromium] = []
        self.clock, self._fail = Clock(), fail_starts
        self.starts = 0

    async def launch(self) -> FakeChromium:
        self.starts += 1
        await asyncio.sleep(0)
        if self.starts <= self._fail:
            raise EnvError("the browser did not start")
        self.browsers.append(FakeChromium())
        return self.browsers[-1]

    @property
    def pages(self) -> list[int]:
        """How many each browser has."""
        return sorted(len(host.pages) for host in self.pool.fleet.hosts)

    @property
    def alive(self) -> list[FakeChromium]:
        return [browser for browser in self.browsers if browser.alive]

    async def __aenter__(self) -> Fleetful:
        self.pool = BrowserPool(self.settings, None, launch=self.launch, make_env=TabEnv, clock=self.clock)
        await self.pool.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.pool.__aexit__(*error)
        assert all(browser.ended for browser in self.browsers)


async def hold(fleet: Fleetful, stack: contextlib.AsyncExitStack, count: int):
    """Leases that end with the stack."""
    return [await stack.enter_async_context(fleet.pool.env()) for _ in range(count)]


async def settle() -> None:
    """Let everything that can run, run."""
    for _ in range(50):
        await asyncio.sleep(0)
