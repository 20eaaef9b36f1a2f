"""Dozens of episodes on real browsers, while pages and whole browsers are killed: none is lost or wrongly scored."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import suppress
from pathlib import Path

from pages import task_of
from processes import gone

from flywheel.agent.actions import Finished
from flywheel.config import SandboxSettings, Settings
from flywheel.envs.browser.fleet import Stepped
from flywheel.envs.browser.pool import BrowserPool, open_browser_pool
from flywheel.envs.suites import oracle
from flywheel.utils import child_processes
from flywheel.utils.errors import EnvError

KILLS = 8
EVERY = 6  # answers
EPISODES = 48
SETTINGS = Settings(sandbox=SandboxSettings(browsers=2, pages=6, timeout_s=60, recycle_after=15))
TASKS = [task_of("tiles", "clear"), task_of("shop", "add"), task_of("shapes", "fit")]


async def test_no_episode_is_lost_or_scored_from_a_crash():
    rng, seen, folders = random.Random(4), set(), set()
    async with open_browser_pool(SETTINGS) as pool:
        undisturbed = [await _play(pool, number) for number in range(2 * len(TASKS))]
        killer = asyncio.create_task(_kill(pool, rng, seen, folders))
        episodes = await asyncio.gather(*(_insist(pool, number) for number in range(EPISODES)))
        assert killer.done(), "not all kills were done: the episodes were over too soon"
        counts = pool.events.counts
        seen |= set(await _processes(pool))
    # What an episode ends in is what it ends in undisturbed, to the pixel.
    for number, episode in enumerate(episodes):
        assert episode == undisturbed[number % len(undisturbed)], number
    assert counts["Crashed"] >= KILLS / 2  # some hit pages that nobody had yet
    assert await gone(seen)
    assert len(folders) > SETTINGS.sandbox.browsers
    assert not any(folder.exists() for folder in folders)


async def _play(pool: BrowserPool, number: int) -> tuple[float, bytes]:
    """Reward and last screen. Every second episode gives up at once, which is worth nothing."""
    task = TASKS[number % len(TASKS)]
    async with pool.env() as env:
        if number % 2:
            await env.reset(task, task.seed)
            last = await env.step(Finished())
        else:
            last = (await oracle.demonstrate_task(env, task, task.seed))[-1][2]
    assert last.terminated
    return last.reward, last.observation.screenshot


async def _insist(pool: BrowserPool, number: int) -> tuple[float, bytes]:
    for _ in range(KILLS):  # a kill costs an episode one try at most
        with suppress(EnvError):
            return await _play(pool, number)
    return await _play(pool, number)


async def _kill(pool: BrowserPool, rng: random.Random, seen: set[int], folders: set[Path]) -> None:
    """After every few answers kill the process of a page, or each fourth time a browser, whatever it is doing."""
    kills = count = 0
    with pool.events.stream(Stepped) as answers:
        async for _ in answers:
            count += 1
            if count % EVERY:
                continue
            processes = await _processes(pool)
            seen |= set(processes)
            folders |= {host.chromium.profile.path for host in pool.fleet.hosts if host.alive}
            kind = "browser" if kills % 4 == 3 else "renderer"
            victims = sorted(pid for pid, one in processes.items() if one == kind)
            if victims:
                with suppress(ProcessLookupError):
                    os.kill(rng.choice(victims), signal.SIGKILL)
                kills += 1
            if kills == KILLS:
                return


async def _processes(pool: BrowserPool) -> dict[int, str]:
    """Process id -> kind, of all browsers."""
    pids = [host.pid for host in pool.fleet.hosts if host.alive]
    families = await asyncio.to_thread(child_processes.measure_memory, pids)
    return {process.pid: process.kind for family in families.values() for process in family}
