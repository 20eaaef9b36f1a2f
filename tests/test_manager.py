"""Environments of other machines: they keep the contract, and whoever dies, no place stays taken, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web
from shelves import STORE, Shelf, Shelves

from flywheel import preflight
from flywheel.agent.actions import Click, Finished, Point, Type, Wait
from flywheel.environments import managed, wire
from flywheel.environments.env import Checkpointable, Observation, StepResult
from flywheel.environments.kind import KINDS
from flywheel.environments.managed import TOKEN
from flywheel.environments.router import open_environments
from flywheel.environments.wire import LeaseNote
from flywheel.errors import BadInput, EnvError, EnvTimeout
from flywheel.manager import node as nodes
from flywheel.manager import server
from flywheel.manager.ledger import Ledger, Terms
from flywheel.rollout.pool import Places
from flywheel.sandbox.check import check_env
from flywheel.settings import Settings, parse
from flywheel.synthesis.tasks import make_task
from flywheel.workspace import Workspace

SECRET = "a token of the tests alone"
MOVES = (Type("set cup 3"), Click(Point(0.5, 0.5)), Type("set pen"), Type("set map 7"))
DEADLINE_S = 30.0


@pytest.fixture(autouse=True)
def kinds(monkeypatch):
    monkeypatch.setenv(TOKEN, SECRET)
    monkeypatch.setattr(nodes, "_BEAT_S", 0.05)
    monkeypatch.setattr(server, "_RECLAIM_S", 0.05)
    monkeypatch.setattr(managed, "_BEAT_S", 0.05)
    made = Shelves()
    monkeypatch.setitem(KINDS, "shelves", made)
    return made


def chosen(manager: str = "", **more) -> Settings:
    sandbox = {"backend": "manager" if manager else "local", "manager": manager, "wait_s": 5.0, **more}
    return parse({"sandbox": sandbox}, where="test")


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
async def manager(path: Path, terms: Terms | None = None) -> AsyncIterator[SimpleNamespace]:
    ledger = Ledger(path / "state.db", terms or Terms())
    async with served(server.application(ledger, SECRET)) as address:
        yield SimpleNamespace(ledger=ledger, address=address)


@asynccontextmanager
async def node(address: str, name: str = "one", settings: Settings | None = None, kinds=("shelves",), film=0):
    """One that has registered."""
    async with (
        nodes.opened(name, SECRET, settings or chosen(), kinds, film=film) as (made, places),
        served(made.application()) as own,
    ):
        empty = asyncio.Event()
        beating = asyncio.create_task(nodes.beats(made, address, SECRET, {"address": own, "places": places}, empty))
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


# -- the contract -----------------------------------------------------------------------------------------------------
async def test_a_managed_environment_passes_the_suite(tmp_path):
    async with manager(tmp_path) as it, node(it.address):
        async with open_environments(chosen(it.address), [task()]) as environments:
            await check_env(lambda: environments.env(task()), task(), moves=MOVES)
        assert it.ledger.sessions == {}


async def test_it_plays_as_one_of_this_machine(tmp_path):
    played = []
    async with manager(tmp_path) as it, node(it.address):
        for address in ("", it.address):
            async with open_environments(chosen(address), [task()]) as environments, environments.env(task()) as env:
                results = [await env.reset(task(), 3)]
                results += [await env.step(action) for action in (Wait(), Type("set lamp on"))]
                with pytest.raises(EnvError, match="reset the environment first"):
                    await env.step(Finished(""))
                played.append(results)
                assert not isinstance(env, Checkpointable)
    assert played[0] == played[1]


def test_results_tasks_and_leases_come_back_as_they_were():
    seen = Observation(b"\x89PNG \0\xff", 3, 4, "shop/ü", "text\n😀")
    result = StepResult(seen, 0.5, False, True, {"state": {"a": [1, None]}, "note": "x"})
    assert wire.result_read(wire.result_sent(result)) == result
    assert wire.result_read(wire.result_sent(StepResult(Observation(None)))) == StepResult(Observation(None))
    assert wire.task_read(json.loads(json.dumps(wire.task_sent(task())))) == task()
    note = LeaseNote("s", "n", "shelves", "x", 12.5)
    assert LeaseNote.read(note.signed(SECRET), SECRET) == note
    for broken in (note.signed("another"), f"x{note.signed(SECRET)}", "", "."):
        with pytest.raises(ValueError, match="not signed"):
            LeaseNote.read(broken, SECRET)
    for error in (EnvError("a", where="b", fix="c"), EnvTimeout("late"), BadInput("no")):
        back = wire.error_read(wire.error_sent(error))
        assert (type(back), str(back)) == (type(error), str(error))
    assert "cannot be read" in str(wire.error_read(b"<html>"))


@pytest.mark.parametrize("broken", [b"", b"\0\0\0\x09{}", b"\0\0\0\x02[]", b"\0\0\0\x02{]"])
def test_what_is_no_message_is_refused(broken):
    with pytest.raises(ValueError, match=r"cut off|no head|Expecting"):
        wire.opened(broken)


# -- who may ----------------------------------------------------------------------------------------------------------
async def test_without_the_token_nothing_is_done(tmp_path, monkeypatch):
    async with manager(tmp_path) as it, node(it.address) as one, aiohttp.ClientSession() as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer ü"}):
            for method, path in (("POST", "/sessions"), ("GET", "/status"), ("POST", "/nodes/x"), ("GET", "/sessions")):
                async with client.request(method, it.address + path, json={}, headers=headers) as answer:
                    assert answer.status == 401
        for lease in ("", "x.y", LeaseNote("s", "one", "shelves", "i", time.time() + 9).signed("another")):
            async with client.post(f"{one.address}/sessions/s/open", headers={"X-Lease": lease}) as answer:
                assert answer.status == 403
        assert one.node.sessions == {}
        monkeypatch.setenv(TOKEN, "wrong")
        async with open_environments(chosen(it.address), [task()]) as environments:
            with pytest.raises(BadInput, match="the token is missing or wrong"):
                async with environments.env(task()):
                    pass
        monkeypatch.delenv(TOKEN)
        with pytest.raises(BadInput, match="not in FLYWHEEL_SANDBOX_TOKEN"):
            async with open_environments(chosen(it.address), [task()]):
                pass


async def test_a_lease_opens_nothing_else_and_nothing_once_it_is_over(tmp_path):
    async with manager(tmp_path) as it, node(it.address) as one, aiohttp.ClientSession() as client:
        await until(lambda: it.ledger.nodes, "the node has not registered")
        identity = it.ledger.nodes["one"].places["shelves"][1]

        async def status(lease: LeaseNote, session: str, call: str = "open") -> int:
            headers = {"X-Lease": lease.signed(SECRET)}
            async with client.post(f"{one.address}/sessions/{session}/{call}", headers=headers) as answer:
                return answer.status

        good = LeaseNote("s", "one", "shelves", identity, time.time() + 60)
        assert await status(good, "t") == 403
        assert await status(LeaseNote("s", "two", "shelves", identity, time.time() + 60), "s") == 403
        assert await status(LeaseNote("s", "one", "shelves", identity, time.time() - 1), "s") == 403
        assert await status(LeaseNote("s", "one", "shelves", "other", time.time() + 60), "s") == 500
        assert await status(good, "s", "exec") == 422
        assert await status(good, "s") == 200  # and the next beat ends it: the manager does not know it
        await until(lambda: not one.node.sessions, "a session that the manager does not know goes on")
        assert await status(good, "s") == 403


@pytest.mark.parametrize(("manager", "token", "said"), [("", SECRET, "no manager"), ("http://a:1", "", "not in FLYW")])
def test_a_run_without_a_manager_or_its_token_is_refused_before_it_begins(manager, token, said, monkeypatch, project):
    monkeypatch.setenv(TOKEN, token)
    chosen = parse({"sandbox": {"backend": "manager", "manager": manager}}, where="test")
    with pytest.raises(BadInput, match=said):
        preflight.check(Workspace(project), chosen)


async def test_settings_that_differ_are_refused_at_once(tmp_path):
    async with manager(tmp_path) as it, node(it.address):
        other = chosen(it.address, kinds={"shelves": {"largest": 5}})
        async with open_environments(other, [task()]) as environments:
            with pytest.raises(BadInput, match="by other settings than this run"):
                async with environments.env(task()):
                    pass


# -- who dies ---------------------------------------------------------------------------------------------------------
async def test_places_come_back_however_who_plays_ends(tmp_path):
    async with (
        manager(tmp_path, Terms(silent_s=0.5)) as it,
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


async def test_who_is_killed_is_silent_and_loses_its_places(tmp_path):
    async with manager(tmp_path, Terms(silent_s=0.5)) as it, node(it.address) as one:
        player = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _PLAYER, it.address, env={**os.environ, TOKEN: SECRET}, stdout=subprocess.PIPE,
            cwd=Path(__file__).parent,
        )  # fmt: skip
        assert (await asyncio.wait_for(player.stdout.readline(), DEADLINE_S)) == b"plays\n"
        assert len(one.node.sessions) == len(it.ledger.sessions) == 3
        player.kill()
        await player.wait()
        await until(lambda: not it.ledger.sessions and not one.node.sessions, "sessions of a dead player stay")
        assert it.ledger.ended["nobody is heard of"] == 3


async def test_a_node_that_dies_is_a_crash_and_the_next_lease_is_elsewhere(tmp_path):
    async with (
        manager(tmp_path, Terms(node_silent_s=0.5)) as it,
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
    port, settings = _free_port(), None
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


async def test_a_drained_node_ends_with_its_last_session(tmp_path):
    async with (
        manager(tmp_path) as it,
        node(it.address) as one,
        open_environments(chosen(it.address, wait_s=0.3), [task()]) as environments,
    ):
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
        places = Places(run, ["shelves"])
        async with places.one(task()), environments.env(task()), places.one(task()), environments.env(task()):
            assert {one.node for one in it.ledger.sessions.values()} == {"one", "two"}


async def test_an_environment_that_does_not_begin_is_a_crash(tmp_path, monkeypatch):
    class Broken(Shelf):
        async def reset(self, task, seed):
            raise EnvTimeout("it hangs", where="a shelf")

    monkeypatch.setitem(KINDS, "shelves", Shelves(make=Broken))
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
from shelves import Shelves
from flywheel.environments.kind import KINDS
from flywheel.environments.router import open_environments
import test_manager

KINDS["shelves"] = Shelves()

async def main():
    async with open_environments(test_manager.chosen(sys.argv[1]), [test_manager.task()]) as environments:
        contexts = [environments.env(test_manager.task()) for _ in range(3)]
        for env in [await context.__aenter__() for context in contexts]:
            await env.reset(test_manager.task(), 3)
        print("plays", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def _manager_process(folder: Path, port: int) -> asyncio.subprocess.Process:
    words = [
        "-c",
        "from flywheel.cli import main; main()",
        "sandbox",
        "serve",
        "--port",
        str(port),
        "--state",
        str(folder / "state.db"),
    ]
    made = await asyncio.create_subprocess_exec(
        sys.executable, *words, env={**os.environ, TOKEN: SECRET}, stderr=subprocess.DEVNULL
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


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
