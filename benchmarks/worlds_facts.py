"""What `benchmarks/worlds.py` tells of pages: how fast one is set back, how fast a session begins, what it weighs.

Measured one after the other in this process, when nothing else of the benchmark runs.
"""

from __future__ import annotations

import statistics
import time

import httpx
from bench_case import BenchCase
from worlds_figures import case, rounded
from worlds_play import slots

from flywheel.config import Settings
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.suites.catalogue import BrowserWorld
from flywheel.envs.suites.server import WorldServer
from flywheel.envs.tasks.drawing import make_task

_TIMES = 9
SESSION_MS = 50.0  # most that a fresh seeded state may take, its first page included


async def page_cases(worlds: list[BrowserWorld], settings: Settings) -> list[BenchCase]:
    return [await _resets(worlds, settings), *await _sessions(worlds)]


async def _resets(worlds: list[BrowserWorld], settings: Settings) -> BenchCase:
    """Milliseconds until a page in a browser shows a task's first screen: the median of the worlds' medians."""
    by_world = {}
    async with open_browser_pool(settings) as pool, pool.env() as env:
        for world in worlds:
            task = make_task(world, *slots(world)[-1], 0, "eval")
            await env.reset(task, task.seed)
            found = []
            for _ in range(_TIMES):
                started = time.perf_counter()
                await env.reset(task, task.seed)
                found.append(1000 * (time.perf_counter() - started))
            by_world[world.name] = statistics.median(found)
    value = statistics.median(by_world.values())
    return case("reset_time", value, None, True, unit="ms", n=_TIMES, by_world=rounded(by_world))


async def _sessions(worlds: list[BrowserWorld]) -> list[BenchCase]:
    """session_time: milliseconds of the slowest world. page_weight: KiB of the first page, all that it needs."""
    times, sizes = {}, {}
    async with WorldServer() as server, httpx.AsyncClient(follow_redirects=True) as client:
        for world in worlds:
            task = make_task(world, *slots(world)[-1], 0, "eval")
            found = []
            for _ in range(_TIMES + 1):
                started = time.perf_counter()
                url = server.new_session(task, task.seed)
                page = await client.get(url)
                found.append(1000 * (time.perf_counter() - started))
                server.end_session(url)
            times[world.name] = statistics.median(found[1:])  # the first one reads templates
            sizes[world.name] = len(page.content) / 1024
    slowest, middle = max(times.values()), statistics.median(sizes.values())
    return [
        case(
            "session_time",
            slowest,
            SESSION_MS,
            slowest < SESSION_MS,
            unit="ms",
            goal_is="less than",
            n=_TIMES,
            by_world=rounded(times),
        ),
        case("page_weight", middle, None, True, unit="KiB", by_world=rounded(sizes)),
    ]
