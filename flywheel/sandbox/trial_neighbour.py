"""A quiet session in the browser of another that is tried: it must not hear of what that one does."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from flywheel.agent.actions import Wait
from flywheel.environments.env import Task
from flywheel.errors import FlywheelError
from flywheel.sandbox.pool import BrowserPool


class Neighbour:
    """`async with Neighbour(pool, task) as neighbour:`; the pool has one browser, and room for two sessions."""

    def __init__(self, pool: BrowserPool, task: Task) -> None:
        self._pool, self._task = pool, dataclasses.replace(task, max_steps=10_000)
        self._stack = contextlib.AsyncExitStack()
        self._env: Any = None

    async def __aenter__(self) -> Neighbour:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def harm(self) -> str:
        """What became of it since it was asked last: "" where it is well. One that was harmed begins anew."""
        try:
            if (await self._env.step(Wait())).terminated:  # a game that time alone ends
                await self._env.reset(self._task, self._task.seed)
            return ""
        except FlywheelError as error:
            await self._stack.aclose()
            await self._begin()
            return f"another session in the same browser was harmed: {error.what}"

    async def _begin(self) -> None:
        self._stack = contextlib.AsyncExitStack()
        self._env = await self._stack.enter_async_context(self._pool.env())
        await self._env.reset(self._task, self._task.seed)
