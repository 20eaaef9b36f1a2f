"""Who plays, and a node, for `flywheel bench computer --only manager`: play|node ADDRESS CLIENTS, until killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from flywheel.agent.actions import Action, Wait
from flywheel.config import Settings, parse_settings
from flywheel.envs.base import Observation, StepResult, Task
from flywheel.envs.registry import BACKENDS, EnvLimits
from flywheel.envs.remote import node_server as nodes
from flywheel.envs.remote.client import open_remote_envs

_TASK = Task("k1", "d", "w", "t", 1, 1, "Count.", {}, 10**6, "train", "v", 1.0, "c", "light")


class Light:
    """Counts its steps."""

    async def reset(self, task: Task, seed: int) -> StepResult:
        self._steps = 0
        return StepResult(Observation(None, text="0"))

    async def step(self, action: Action) -> StepResult:
        self._steps += 1
        return StepResult(Observation(None, text=str(self._steps)))

    async def close(self) -> None:
        pass


class LightKind:
    """What of a kind is asked here."""

    @asynccontextmanager
    async def env(self) -> AsyncIterator[Light]:
        yield Light()

    @asynccontextmanager
    async def open(self, settings: Settings, root: object) -> AsyncIterator[LightKind]:
        yield self

    def limits(self, settings: Settings) -> EnvLimits:
        return EnvLimits(100_000, 10.0, 10.0)

    def identity(self, settings: Settings) -> dict:
        return {}


async def play(address: str, clients: int) -> None:
    settings = parse_settings({"sandbox": {"manager": address, "acquire_timeout_s": 60.0}}, where="bench")
    async with open_remote_envs(settings) as environments, AsyncExitStack() as stack:
        playing = [await stack.enter_async_context(environments.env(_TASK)) for _ in range(clients)]
        for env in playing:
            await env.reset(_TASK, 1)
        print("all play", flush=True)
        while True:
            await asyncio.gather(*(env.step(Wait()) for env in playing))
            await asyncio.sleep(0.5)


async def node(address: str, token: str) -> None:
    from aiohttp import web

    async with nodes.open_node("light", token, Settings(), ["light"]) as (made, places):
        runner = web.AppRunner(made.application())
        await runner.setup()
        await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
        own, empty = site._server.sockets[0].getsockname()[1], asyncio.Event()
        about = {"address": f"http://127.0.0.1:{own}", "places": places}
        beating = asyncio.create_task(nodes.send_heartbeats(made, address, token, about, empty))
        await empty.wait()
        beating.cancel()
        await runner.cleanup()


if __name__ == "__main__":
    import os

    from flywheel.envs.remote.client import TOKEN_VARIABLE

    BACKENDS["light"] = LightKind()
    what, address, count = sys.argv[1:]
    asyncio.run(play(address, int(count)) if what == "play" else node(address, os.environ[TOKEN_VARIABLE]))
