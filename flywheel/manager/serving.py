"""A manager, or a node, listens for as long as it is wanted: for the command and for a run's own cluster alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from aiohttp import web

from flywheel.local_server import at_port
from flywheel.manager import node as nodes

_QUEUE = 2048  # connections that wait to be taken


@asynccontextmanager
async def listening(application: web.Application, host: str, port: int = 0) -> AsyncIterator[str]:
    """Its address, until the end of the block. port: 0 takes a free one. Raises BadInput where it is in use."""
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        with at_port(port, host):
            await web.TCPSite(runner, host, port, backlog=_QUEUE).start()
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def play(
    opening: AbstractAsyncContextManager[tuple[nodes.Node, Mapping[str, Any]]],
    token: str,
    *,
    manager: str,
    host: str,
    port: int = 0,
    address: str = "",
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Be a node, until it was drained. opening: `nodes.opened(...)`. address: where who plays finds it; empty: where it
    listens. ready: is told the address. Raises BadInput where the manager refuses it, or the port is in use, and what
    `opening` raises."""
    async with opening as (made, places), listening(made.application(), host, port) as own:
        empty = asyncio.Event()
        about = {"address": address or own, "places": places}
        working = [
            asyncio.ensure_future(nodes.beats(made, manager, token, about, empty)),
            asyncio.ensure_future(empty.wait()),
        ]
        ready(about["address"])
        try:
            done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for one in working:
                one.cancel()
            await asyncio.gather(*working, return_exceptions=True)
