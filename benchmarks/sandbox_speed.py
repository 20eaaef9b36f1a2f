"""The timed cases of `flywheel bench sandbox`: steps against plain Playwright and BrowserGym, and unobserved time."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from bench_case import BenchCase
from PIL import Image
from sandbox_pages import GAME, MINIWOB, task_of
from sandbox_peers import browsergym, browsergym_python, miniwob_html, playwright_browsers, playwright_round
from sandbox_processes import cpu_s
from sandbox_run import Run, clicks, quartiles

from flywheel.agent.actions import Click, Point, Wait
from flywheel.envs.base import Task
from flywheel.envs.browser.driver import chromium
from flywheel.envs.browser.pool import BrowserPool
from flywheel.envs.suites.catalogue import get_world
from flywheel.envs.suites.server import WorldServer
from flywheel.envs.tasks.drawing import make_task

STEPS_320, STEPS_720, TIMES_PLAYWRIGHT, TIMES_BROWSERGYM, ACCELERATION = 120.0, 45.0, 1.5, 10.0, 100.0  # goals
BEGIN_CPU = 2.0  # times
SIZES = {320: (320, 320), 720: (1280, 720)}
UNOBSERVED_MS = 60_000


# -- steps ------------------------------------------------------------------------------------------------------------
async def our_round(pool: BrowserPool, count: int, places: Sequence[tuple[float, float]]) -> tuple[float, dict]:
    """As `playwright_round`, by `env.step`."""
    async with AsyncExitStack() as stack:
        envs = [await stack.enter_async_context(pool.env()) for _ in range(count)]
        await asyncio.gather(*(env.reset(task_of(GAME, number), number) for number, env in enumerate(envs)))

        async def play(env: Any) -> tuple[int, dict[str, Any]]:
            seen = set()
            for x, y in places:
                result = await env.step(Click(Point(x, y)))
                seen.add(hash(result.observation.screenshot))
            return len(seen), result.info["state"]

        begin = time.perf_counter()
        played = await asyncio.gather(*map(play, envs))
        seconds = time.perf_counter() - begin
    steps = count * len(places)
    return seconds, {
        "page_ms_a_step": sum(state["now"] for _, state in played) / steps,
        "clicks_taken": sum(state["clicks"] for _, state in played) / steps,
        "distinct_screens": sum(distinct for distinct, _ in played) / steps,
    }


async def steps(run: Run, size: int, *, peer: bool) -> dict[str, list[tuple[float, dict]]]:
    """Steps a second of each round, for our side and, where asked for, for Playwright's."""
    settings, width_height = run.sandbox(width=SIZES[size][0], height=SIZES[size][1]), SIZES[size]
    count, pages = run.count(60, 8), run.options.pages
    found: dict[str, list[tuple[float, dict]]] = {"ours": [], "peer": []}
    async with AsyncExitStack() as stack:
        pool, source = await stack.enter_async_context(run.pool(settings))
        browsers = []
        if peer:
            executable = chromium.find_chromium(settings)
            browsers = await stack.enter_async_context(playwright_browsers(executable, run.options.browsers))
        addresses = [source.address(GAME, number) for number in range(pages)]
        for number in range(run.rounds + 1):  # the first warms up
            places = clicks(count, number)
            sides: dict[str, Callable] = {"ours": lambda: our_round(pool, pages, places)}  # noqa: B023
            if peer:
                sides["peer"] = lambda: playwright_round(browsers, addresses, width_height, places)  # noqa: B023
            for name in list(sides) if number % 2 else list(sides)[::-1]:
                seconds, facts = await sides[name]()
                if number:
                    found[name].append((pages * count / seconds, facts))
    return found


def facts(run: Run, side: Sequence[tuple[float, dict]]) -> dict[str, Any]:
    rates = [rate for rate, _ in side]
    return {"interval": [min(rates), max(rates)], **{key: median(f[key] for _, f in side) for key in side[0][1]}}


async def steps_alone(run: Run, size: int, goal: float) -> BenchCase:
    side = (await steps(run, size, peer=False))["ours"]
    rate = median(rate for rate, _ in side)
    return BenchCase(
        "sandbox",
        f"steps_{size}",
        "steps/s",
        rate,
        None,
        "none",
        None,
        goal,
        rate >= goal,
        {
            "n": len(side),
            "pages": run.options.pages,
            "browsers": run.options.browsers,
            "step_ms": run.options.step_ms,
            **facts(run, side),
        },
    )


async def steps_320(run: Run) -> BenchCase:
    return await steps_alone(run, 320, STEPS_320)


async def steps_720(run: Run) -> BenchCase:
    return await steps_alone(run, 720, STEPS_720)


async def steps_320_vs_playwright(run: Run) -> BenchCase:
    found = await steps(run, 320, peer=True)
    ours, peer = (median(rate for rate, _ in found[name]) for name in ("ours", "peer"))
    pairs = [mine / theirs for (mine, _), (theirs, _) in zip(found["ours"], found["peer"], strict=True)]
    return BenchCase(
        "sandbox",
        "steps_320_vs_playwright",
        "steps/s",
        ours,
        peer,
        "Playwright, page.mouse.click and page.screenshot",
        ours / peer,
        TIMES_PLAYWRIGHT,
        ours / peer >= TIMES_PLAYWRIGHT,
        {
            "n": run.rounds,
            "ratio_interval": [min(pairs), max(pairs)],
            "pages": run.options.pages,
            "browsers": run.options.browsers,
            "ours_facts": facts(run, found["ours"]),
            "peer_facts": facts(run, found["peer"]),
            "page_time": "ours moves by step_ms a step; Playwright's runs with the wall clock",
        },
    )


# -- BrowserGym -------------------------------------------------------------------------------------------------------
async def _checkbox(env: Any) -> Click:
    """The middle of the first checkbox, which BrowserGym's side clicks too."""
    size = "[b.x + b.width / 2, b.y + b.height / 2, innerWidth, innerHeight]"
    asked = f"(() => {{ const b = document.querySelector('input').getBoundingClientRect(); return {size}; }})()"
    answer = await env.tab.page.send("Runtime.evaluate", {"expression": asked, "returnByValue": True})
    x, y, wide, high = answer["result"]["value"]
    return Click(Point(x / wide, y / high))


async def _observe_more(env: Any, screenshot: bytes) -> None:
    """What BrowserGym's observation holds beside the screenshot, by the same calls, and the screenshot as an array."""
    await env.tab.page.send(
        "DOMSnapshot.captureSnapshot", {"computedStyles": [], "includeDOMRects": True, "includePaintOrder": True}
    )
    tree = await env.tab.page.send("Page.getFrameTree")
    frames = [tree["frameTree"]]
    while frames:
        frame = frames.pop()
        frames += frame.get("childFrames", [])
        await env.tab.page.send("Accessibility.getFullAXTree", {"frameId": frame["frame"]["id"]})
    await env.tab.page.send("Runtime.evaluate", {"expression": "document.activeElement && document.activeElement.id"})
    np.asarray(Image.open(io.BytesIO(screenshot)).convert("RGB"))


async def against_browsergym(run: Run, case: str, *, equal: bool) -> BenchCase:
    """Seconds a step, one page on both sides; the ratio is theirs over ours."""
    python = await asyncio.to_thread(browsergym_python, run.options.browsergym_python, run.options.install_s)
    html = await asyncio.to_thread(miniwob_html, python)
    settings = run.sandbox(browsers=1, pages=1)
    theirs_options = {"pre_observation_delay": 0.0, "slow_mo": 0} if equal else {}
    ours: list[float] = []
    theirs: list[float] = []
    link = run.folder / "browsers"
    async with (
        run.pool(settings, html) as (pool, pages),
        browsergym(python, pages.url, chromium.find_chromium(settings), link, **theirs_options) as (gym, shape),
        pool.env() as env,
    ):
        await env.reset(task_of(MINIWOB), 0)
        click = await _checkbox(env)
        await gym.steps(1)
        for _ in range(run.rounds):
            theirs += await gym.steps(run.count(10 if equal else 4, 2))
            for _ in range(run.count(40, 5)):
                begin = time.perf_counter()
                result = await env.step(click)
                if equal:
                    await _observe_more(env, result.observation.screenshot)
                ours.append(time.perf_counter() - begin)
        size = list(Image.open(io.BytesIO(result.observation.screenshot)).size)
    ratio = median(theirs) / median(ours)
    note = (
        "equal: page, binary, one page, click on the same checkbox, pixels of the screenshot, DOM snapshot with "
        "rectangles and paint order, accessibility tree, focused element, PNG decoded; BrowserGym without its waits "
        "(pre_observation_delay 0, slow_mo 0). Not equal: BrowserGym writes an id into every element at each step, "
        "and its page's time runs"
        if equal
        else "BrowserGym's defaults: pre_observation_delay 0.5 s, the task's slow_mo 0.1 s; it observes the DOM and "
        "the accessibility tree too"
    )
    goal = None if equal else TIMES_BROWSERGYM
    return BenchCase(
        "sandbox",
        case,
        "s/step",
        median(ours),
        median(theirs),
        "BrowserGym 0.14.3, env.step on click-checkboxes",
        ratio,
        goal,
        goal is None or ratio >= goal,
        {
            "ratio_is": "peer / ours",
            "n": [len(ours), len(theirs)],
            "interval": quartiles(ours),
            "peer_interval": quartiles(theirs),
            "screenshot": [size, [shape[1], shape[0]]],
            "note": note,
        },
    )


async def step_vs_browsergym(run: Run) -> BenchCase:
    return await against_browsergym(run, "step_vs_browsergym", equal=False)


async def step_vs_browsergym_equal(run: Run) -> BenchCase:
    return await against_browsergym(run, "step_vs_browsergym_equal", equal=True)


# -- seconds of a core -------------------------------------------------------------------------------------------------
class _Apart:
    """The suites, with a browser context for each session."""

    def __init__(self, worlds: WorldServer) -> None:
        self._worlds = worlds

    def open(self, task: Task, seed: int) -> Any:
        session = self._worlds.open(task, seed)
        session.first_party = False
        return session


_CPU_SUITES = {"tiles": "clear", "merge": "reach", "shop": "add"}
_CPU_STEPS = 4


async def _cpu_ms(pool: BrowserPool, tasks: Sequence[Task], count: int) -> dict[str, float]:
    """Milliseconds of a core of a begin, a restore and a step; each begin has a lease of its own, as in a rollout."""

    async def timed(work: Callable[[], Awaitable[int]]) -> float:
        began = cpu_s()
        times = await work()
        await asyncio.sleep(0.5)  # what is disposed of in the background belongs to it
        return (cpu_s() - began) / times * 1000

    async def begin() -> int:
        for number in range(count):
            async with pool.env() as env:
                await env.reset(tasks[number % len(tasks)], number)
        return count

    async def restore() -> int:
        for _ in range(count):
            await env.restore(checkpoint)
        return count

    async def step() -> int:
        for number in range(count * _CPU_STEPS):
            await env.step(Click(Point(0.05, (number % 50) / 100 + 0.3)))
        return count * _CPU_STEPS

    found = {"begin": await timed(begin)}
    game = replace(next(task for task in tasks if task.world == "merge"), max_steps=10_000)
    async with pool.env() as env:
        await env.reset(game, 0)
        checkpoint = await env.checkpoint()
        found["restore"] = await timed(restore)
        found["step"] = await timed(step)
    return found


async def begin_cpu(run: Run) -> BenchCase:
    """A core's time for the beginning of an episode of our suites, against a browser context for each episode."""
    tasks = [make_task(get_world(world), template, 1, 4, "train") for world, template in _CPU_SUITES.items()]
    settings = run.sandbox(width=224, height=224, step_ms=200)
    rounds: dict[str, list[dict[str, float]]] = {"ours": [], "peer": []}
    async with AsyncExitStack() as stack:
        worlds = await stack.enter_async_context(WorldServer())
        pools = {
            name: await stack.enter_async_context(BrowserPool(settings, source))
            for name, source in (("ours", worlds), ("peer", _Apart(worlds)))
        }
        for number in range(run.rounds + 1):  # the first warms up
            for name in list(pools) if number % 2 else list(pools)[::-1]:
                figures = await _cpu_ms(pools[name], tasks, run.count(24, 3))
                if number:
                    rounds[name].append(figures)
    medians = {name: {part: median(one[part] for one in side) for part in side[0]} for name, side in rounds.items()}
    begins = [one["begin"] for one in rounds["ours"]]
    ratio = medians["peer"]["begin"] / medians["ours"]["begin"]
    return BenchCase(
        "sandbox",
        "begin_cpu",
        "ms of a core",
        medians["ours"]["begin"],
        medians["peer"]["begin"],
        "a browser context for each episode",
        ratio,
        BEGIN_CPU,
        ratio >= BEGIN_CPU,
        {
            "ratio_is": "peer / ours",
            "n": run.rounds,
            "interval": [min(begins), max(begins)],
            "restore_ms": [medians[name]["restore"] for name in ("ours", "peer")],
            "step_ms": [medians[name]["step"] for name in ("ours", "peer")],
            "suites": list(_CPU_SUITES),
        },
    )


# -- faster than time --------------------------------------------------------------------------------------------------
async def time_acceleration(run: Run) -> BenchCase:
    """Page time of steps of a minute each on the moving game: 3,600 frames, 2,000 timer calls, one screenshot."""
    rates, frames = [], []
    async with run.pool(run.sandbox(browsers=1, pages=1, step_ms=UNOBSERVED_MS)) as (pool, _), pool.env() as env:
        await env.reset(task_of(GAME), 0)
        for number in range(run.rounds + 1):
            begin = time.perf_counter()
            result = await env.step(Wait())
            if number:
                rates.append(UNOBSERVED_MS / 1000 / (time.perf_counter() - begin))
            frames.append(result.info["state"]["frames"])
    rate = median(rates)
    return BenchCase(
        "sandbox",
        "time_acceleration",
        "page s/s",
        rate,
        1.0,
        "real time",
        rate,
        ACCELERATION,
        rate >= ACCELERATION,
        {"n": len(rates), "interval": [min(rates), max(rates)], "frames_a_minute": frames[-1] - frames[-2]},
    )
