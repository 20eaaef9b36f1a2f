"""Whoever dies - player, node, manager -, no place stays taken, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import managers
import pytest
from aiohttp import web
from managers import DEADLINE_S, SECRET, chosen, manager, node, served, task, until
from text_env import Shelf, Shelves

from flywheel.agent.actions import Type
from flywheel.envs.registry import BACKENDS, open_environments
from flywheel.envs.remote import node_server as nodes
from flywheel.envs.remote.client import TOKEN_VARIABLE
from flywheel.envs.remote.manager import LeasePolicy
from flywheel.envs.remote.protocol import LeaseToken
from flywheel.rollout.episode import EpisodeSlots
from flywheel.utils.errors import BadInput, EnvError, EnvTimeout
from tests.support.ports import find_free_ports

kinds = managers.kinds  # the fixture: shelves are known here


async def test_places_come_back_however_who_plays_ends(tmp_path):
    async with (
        manager(tmp_path) as it,
        node(it.address) as one,
        open_environments(chosen(it.address), [task()]) as environments,
    ):
        with pytest.raises(ZeroDivisionError):
            await _fail(environments, one.node, it.ledger)
        assert one.node.sessions == it.ledger.sessions == {}
        playing = asyncio.create_task(_forever(environments))
        await until(lambda: one.node.sessions, "nothing was leased")
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        assert one.node.sessions == it.ledger.sessions == {}


@pytest.mark.exhaustive
async def test_who_is_killed_is_silent_and_loses_its_places(tmp_path):
    async with manager(tmp_path, LeasePolicy(silent_s=8)) as it, node(it.address) as one:
        player = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _PLAYER, it.address, env={**os.environ, TOKEN_VARIABLE: SECRET},
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1] / "support",
        )  # fmt: skip
        assert (await asyncio.wait_for(player.stdout.readline(), DEADLINE_S)) == b"plays\n"
        assert len(one.node.sessions) == len(it.ledger.sessions) == 3
        player.kill()
        await player.wait()
        await until(lambda: not it.ledger.sessions and not one.node.sessions, "sessions of a dead player stay")
        assert it.ledger.ended["nobody is heard of"] == 3


async def test_a_node_that_dies_is_a_crash_and_the_next_lease_is_elsewhere(tmp_path):
    async with (
        manager(tmp_path, LeasePolicy(node_silent_s=3)) as it,
        open_environments(chosen(it.address), [task()]) as environments,
    ):
        async with contextlib.AsyncExitStack() as stack:
            async with node(it.address):
                env = await stack.enter_async_context(environments.env(task()))
                await env.reset(task(), 3)
            with pytest.raises(EnvError, match="the node is gone"):
                await env.step(Type("set cup 3"))
        async with node(it.address, "two"), environments.env(task()) as env:
            await env.reset(task(), 3)
            assert [one.node for one in it.ledger.sessions.values()] == ["two"]


async def test_a_killed_manager_loses_no_session(tmp_path):
    port, settings = find_free_ports(), None
    address = f"http://127.0.0.1:{port}"
    first = await _manager_process(tmp_path, port)
    try:
        async with node(address) as one:
            settings = chosen(address)
            async with open_environments(settings, [task()]) as environments, environments.env(task()) as env:
                await env.reset(task(), 3)
                os.kill(first.pid, signal.SIGKILL)
                await first.wait()
                await env.step(Type("set cup 3"))  # steps do not go through it
                first = await _manager_process(tmp_path, port)
                async with environments.env(task()) as another:
                    await another.reset(task(), 3)
                    assert len(await _sessions(address)) == len(one.node.sessions) == 2
                result = await env.step(Type("set lamp on"))
                assert result.info["state"]["store"]["cup"] == "3"
            assert await _sessions(address) == []
    finally:
        first.terminate()
        await first.wait()
    assert first.returncode == 0


async def test_a_lease_that_ends_while_the_manager_is_away_frees_its_environment():
    address = f"http://127.0.0.1:{find_free_ports()}"
    async with node(address) as one, aiohttp.ClientSession() as client:
        (identity,) = one.node._identities.values()
        note = LeaseToken("s", "one", "shelves", identity, time.time() + 60)
        async with client.post(f"{one.address}/sessions/s/open", headers={"X-Lease": note.sign(SECRET)}) as answer:
            assert answer.status == 200
        one.node.sessions["s"].until = time.time() - 1
        await until(lambda: not one.node.sessions, "a session whose lease is over goes on")


async def test_a_node_is_told_that_an_address_is_no_manager_s():
    async with served(web.Application()) as address, nodes.open_node("one", SECRET, chosen(), ["shelves"]) as (made, _):
        with pytest.raises(BadInput, match="no manager"):
            async with asyncio.timeout(DEADLINE_S):
                await nodes.send_heartbeats(made, address, SECRET, {"address": "", "places": {}}, asyncio.Event())


async def test_a_drained_node_ends_with_its_last_session(tmp_path):
    async with (
        manager(tmp_path) as it,
        node(it.address) as one,
        open_environments(chosen(it.address, acquire_timeout_s=0.3), [task()]) as environments,
    ):
        await until(lambda: it.ledger.nodes, "the node has not registered")
        async with environments.env(task()) as env:
            await env.reset(task(), 3)
            it.ledger.drain("one")
            with pytest.raises(EnvTimeout, match="all places for shelves are taken"):
                async with environments.env(task()):
                    pass
            await env.step(Type("set cup 3"))
            assert not one.empty.is_set()
        await asyncio.wait_for(one.empty.wait(), DEADLINE_S)


async def test_who_waits_gets_the_place_that_becomes_free(tmp_path):
    settings = {"kinds": {"shelves": {"places": 1}}}
    async with (
        manager(tmp_path) as it,
        node(it.address, settings=chosen(**settings)),
        open_environments(chosen(it.address, **settings), [task()]) as environments,
    ):
        async with environments.env(task()):
            waiting = asyncio.create_task(_reset_once(environments))
            await asyncio.wait([waiting], timeout=0.2)
            assert not waiting.done()
        assert (await asyncio.wait_for(waiting, DEADLINE_S)).observation.text


async def test_as_many_are_played_at_once_as_all_nodes_have(tmp_path):
    settings = {"kinds": {"shelves": {"places": 1}}}
    async with (
        manager(tmp_path) as it,
        node(it.address, settings=chosen(**settings)),
        node(it.address, "two", chosen(**settings)),
        open_environments(run := chosen(it.address, **settings), [task()]) as environments,
        asyncio.timeout(DEADLINE_S),
    ):
        places = EpisodeSlots(run, ["shelves"])
        async with places.acquire(task()), environments.env(task()), places.acquire(task()), environments.env(task()):
            assert {one.node for one in it.ledger.sessions.values()} == {"one", "two"}


async def test_an_environment_that_does_not_begin_is_a_crash(tmp_path, monkeypatch):
    class Broken(Shelf):
        async def reset(self, task, seed):
            raise EnvTimeout("it hangs", where="a shelf")

    monkeypatch.setitem(BACKENDS, "shelves", Shelves(make=Broken))
    async with (
        manager(tmp_path) as it,
        node(it.address),
        open_environments(chosen(it.address), [task()]) as environments,
        environments.env(task()) as env,
    ):
        with pytest.raises(EnvTimeout, match="it hangs"):
            await env.reset(task(), 3)
        with pytest.raises(BadInput, match="cannot be read"):
            await env._remote.call("step", b'[["Point", {"x": 0, "y": 0}]]')


async def _fail(environments, node, ledger) -> None:
    async with environments.env(task()) as env:
        await env.reset(task(), 3)
        assert len(node.sessions) == len(ledger.sessions) == 1
        raise ZeroDivisionError


async def _forever(environments) -> None:
    async with environments.env(task()) as env:
        await env.reset(task(), 3)
        await asyncio.Event().wait()


async def _reset_once(environments):
    async with environments.env(task()) as env:
        return await env.reset(task(), 3)


_PLAYER = """
import asyncio, sys
from text_env import Shelves
from flywheel.envs.registry import BACKENDS
from flywheel.envs.registry import open_environments
import managers

BACKENDS["shelves"] = Shelves()

async def main():
    async with open_environments(managers.chosen(sys.argv[1]), [managers.task()]) as environments:
        contexts = [environments.env(managers.task()) for _ in range(3)]
        for env in [await context.__aenter__() for context in contexts]:
            await env.reset(managers.task(), 3)
        print("plays", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def _manager_process(folder: Path, port: int) -> asyncio.subprocess.Process:
    words = [
        "-c",
        "from flywheel.cli import main; main()",
        "env",
        "server",
        "manager",
        "--port",
        str(port),
        "--state",
        str(folder / "state.db"),
    ]
    made = await asyncio.create_subprocess_exec(
        sys.executable, *words, env={**os.environ, TOKEN_VARIABLE: SECRET}, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + DEADLINE_S
    while True:
        with contextlib.suppress(aiohttp.ClientError):
            await _sessions(f"http://127.0.0.1:{port}")
            return made
        assert time.monotonic() < end, "the manager does not answer"
        await asyncio.sleep(0.05)


async def _sessions(address: str) -> list:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {SECRET}"}) as client,
        client.get(f"{address}/sessions") as answer,
    ):
        return await answer.json()
