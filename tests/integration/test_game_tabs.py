"""Two tabs of one session of a game: each has a game of its own, and neither sees what is done in the other."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
import pytest_asyncio
from night import by_day

from flywheel.config import SandboxSettings
from flywheel.envs.browser.pool import BrowserPool
from flywheel.envs.suites import catalogue, oracle
from flywheel.envs.suites.server import WorldServer, WorldSession
from flywheel.envs.tasks.drawing import make_task

pytestmark = pytest.mark.asyncio(loop_scope="module")


class OneSession:
    """Every tab that asks for a task gets the address of the first one's session."""

    def __init__(self, server: WorldServer) -> None:
        self._server, self._of = server, {}

    def open(self, task, seed):
        if task.task_id not in self._of:
            self._of[task.task_id] = self._server.new_session(task, seed)
        return Tab(self._server, self._of[task.task_id], task)


class Tab(WorldSession):
    def close(self) -> None:
        """The session goes on in the other tab."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    async with (
        WorldServer() as server,
        BrowserPool(SandboxSettings(timeout_s=60, browsers=1, pages=2), OneSession(server)) as opened,
    ):
        yield opened


def digest(result) -> str:
    return hashlib.sha256(result.observation.screenshot).hexdigest()


@pytest.mark.parametrize("name", by_day(catalogue.list_games(), 4))
async def test_a_game_in_one_tab_is_not_changed_by_another_tab(pool, name):
    world = catalogue.get_world(name)
    template, level = min(
        ((template, level) for template, spec in world.templates.items() for level in spec.max_steps),
        key=lambda slot: slot[1],
    )
    task = make_task(world, template, level, 11, "train")
    async with pool.env() as one, pool.env() as other:
        first, beside = await asyncio.gather(one.reset(task, task.seed), other.reset(task, task.seed))
        assert digest(beside) == digest(first)
        advice = oracle.next_expert_step(task, first.info["state"], task.seed)
        moved = await one.step(advice[1])
        assert moved.info["state"] != first.info["state"]
        again = await oracle.demonstrate_task(other, task, task.seed)  # as if nothing had been done in the first tab
        assert digest(again[0][2]) == digest(moved)
        assert again[-1][2].reward == 1.0
        result = moved
        while not result.terminated:
            result = await one.step(oracle.next_expert_step(task, result.info["state"], task.seed)[1])
        assert result.reward == 1.0
        assert digest(result) == digest(again[-1][2])
