"""Shared by the tests of the browser environment."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path

import pocketsphinx

from flywheel.agent.actions import Click, Point
from flywheel.envs.suites import catalogue, oracle
from flywheel.envs.tasks.drawing import make_task
from flywheel.utils.errors import EnvError


def task_of(world: str, template: str, level: int = 1, seed: int = 4):
    return make_task(catalogue.get_world(world), template, level, seed, "train")


def click_on(result, name):
    """A click in the middle of a named element."""
    element = next(e for e in result.info["state"]["elements"] if e["name"] == name)
    return Click(Point(element["x"] + element["w"] / 2, element["y"] + element["h"] / 2))


async def script(env, expression: str):
    """What a JavaScript expression gives in the page."""
    return await env.tab.evaluate(expression)


async def swallow(sending) -> None:
    """Await a call that never comes back, because of what it does to its page."""
    with suppress(EnvError):
        await sending


@cache
def spoken_words() -> frozenset[str]:
    """Words that the recognizer's dictionary knows."""
    path = Path(pocketsphinx.__file__).parent / "model" / "en-us" / "cmudict-en-us.dict"
    return frozenset(line.split(" ", 1)[0] for line in path.read_text().splitlines())


class Experts:
    """How the expert of a world does a task: played once in one of the pool's environments, then remembered."""

    def __init__(self, pool) -> None:
        self._pool, self._played = pool, {}

    async def demonstrate(self, task) -> oracle.Demonstration:
        played = (task.world, task.template, task.level, task.seed)
        if played not in self._played:
            async with self._pool.env() as env:
                self._played[played] = await oracle.demonstrate_task(env, task, task.seed)
        return self._played[played]
