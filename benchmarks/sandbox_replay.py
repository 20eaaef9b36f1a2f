"""The case `replay_identical` of `flywheel bench sandbox`: episodes played again from their actions."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence

from bench_case import BenchCase
from sandbox_pages import GAME, task_of
from sandbox_run import Run

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Click, Point, Wait
from flywheel.config import Settings
from flywheel.envs.base import Task
from flywheel.envs.browser.pool import BrowserPool
from flywheel.envs.tasks.drawing import make_tasks


def random_action(rng: random.Random) -> Action:
    point = Point(rng.random(), rng.random())
    keys = ("left", "right", "up", "down", "tab", "enter", "a")
    return rng.choice(
        (
            Click(point),
            Click(point),
            Click(point),
            act.LeftDouble(point),
            act.RightSingle(point),
            act.Drag(point, Point(rng.random(), rng.random())),
            act.Scroll(point, rng.choice(("up", "down"))),
            act.Hotkey((rng.choice(keys),)),
            act.Type(rng.choice(("red", "7", "x\n"))),
            Wait(),
        )
    )


async def play(pool: BrowserPool, task: Task, actions: Sequence[Action]) -> list[bytes]:
    """The screens of an episode."""
    async with pool.env() as env:
        result = await env.reset(task, task.seed)
        screens = [result.observation.screenshot]
        for action in actions:
            if result.terminated or result.truncated:
                break
            result = await env.step(action)
            screens.append(result.observation.screenshot)
    return screens


async def replay_identical(run: Run) -> BenchCase:
    """Episodes of all worlds and of the moving game; the replay runs in another browser, in another order."""
    count = run.count(100, 10)
    rng = random.Random(0)
    worlds = make_tasks(Settings(), 0, "eval")
    tasks = [task_of(GAME, number) if number % 5 == 4 else worlds[number % len(worlds)] for number in range(count)]
    episodes = [(task, [random_action(rng) for _ in range(min(task.max_steps, 12))]) for task in tasks]
    found: list[dict[int, list[bytes]]] = []
    for turn in range(2):
        order = list(range(count))
        random.Random(turn).shuffle(order)
        async with run.pool(run.sandbox(width=320, height=320)) as (pool, _):
            limit = asyncio.Semaphore(run.options.pages)
            screens: dict[int, list[bytes]] = {}

            async def one(number: int) -> None:
                async with limit:  # noqa: B023
                    screens[number] = await play(pool, *episodes[number])  # noqa: B023

            await asyncio.gather(*map(one, order))
            found.append(screens)
    first, again = found
    pairs = [pair for number in range(count) for pair in itertools.zip_longest(first[number], again[number])]
    same = sum(one == other for one, other in pairs) / len(pairs)
    whole = sum(first[number] == again[number] for number in range(count)) / count
    return BenchCase(
        "sandbox",
        "replay_identical",
        "fraction of screenshots",
        same,
        None,
        "none",
        None,
        1.0,
        same == 1.0,
        {
            "episodes": count,
            "n": len(pairs),
            "identical_episodes": whole,
            "distinct_screens": len({screen for pair in pairs for screen in pair}) / len(pairs),
        },
    )
