"""A manager, its nodes, and environments that are shelves: what tests of them share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web
from processes import PATIENCE_S
from text_env import STORE, Shelves

from flywheel.agent.actions import Click, Point, Type
from flywheel.config import Settings, parse_settings
from flywheel.envs.registry import BACKENDS
from flywheel.envs.remote import client
from flywheel.envs.remote import manager as remote_manager
from flywheel.envs.remote import node_server as nodes
from flywheel.envs.remote.client import TOKEN_VARIABLE
from flywheel.envs.remote.manager import LeaseLedger, LeasePolicy
from flywheel.envs.tasks.drawing import make_task

SECRET = "a token of the tests alone"
MOVES = (Type("set cup 3"), Click(Point(0.5, 0.5)), Type("set pen"), Type("set map 7"))
DEADLINE_S = PATIENCE_S


@pytest.fixture(autouse=True)
def kinds(monkeypatch):
    """Shelves, known to whoever opens environments here; a test module takes it by its import."""
    monkeypatch.setenv(TOKEN_VARIABLE, SECRET)
    monkeypatch.setattr(nodes, "_BEAT_S", 0.05)
    monkeypatch.setattr(remote_manager, "_RECLAIM_S", 0.05)
    monkeypatch.setattr(client, "_BEAT_S", 0.05)
    made = Shelves()
    monkeypatch.setitem(BACKENDS, "shelves", made)
    return made


def chosen(manager: str = "", **more) -> Settings:
    sandbox = {"backend": "manager" if manager else "local", "manager": manager, "acquire_timeout_s": 60.0, **more}
    return parse_settings({"sandbox": sandbox}, where="test")


def task(level: int = 2, seed: int = 3):
    return make_task(STORE, "on", level, seed, "train")


@asynccontextmanager
async def served(application: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def manager(path: Path, terms: LeasePolicy | None = None) -> AsyncIterator[SimpleNamespace]:
    ledger = LeaseLedger(path / "state.db", terms or LeasePolicy())
    async with served(remote_manager.manager_application(ledger, SECRET)) as address:
        yield SimpleNamespace(ledger=ledger, address=address)


@asynccontextmanager
async def node(
    address: str, name: str = "one", settings: Settings | None = None, kinds=("shelves",), film=0, opening=None
):
    """One that has registered. opening: what opens it."""
    async with (
        opening or nodes.open_node(name, SECRET, settings or chosen(), kinds, film=film) as (made, places),
        served(made.application()) as own,
    ):
        empty = asyncio.Event()
        beating = asyncio.create_task(
            nodes.send_heartbeats(made, address, SECRET, {"address": own, "places": places}, empty)
        )
        try:
            yield SimpleNamespace(node=made, address=own, empty=empty)
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)


async def until(holds, what: str) -> None:
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.01)
