"""Environments of other machines keep the contract of this machine's, and nobody plays without a lease."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import aiohttp
import httpx
import managers
import pytest
from aiohttp import web
from click.testing import CliRunner
from managers import MOVES, SECRET, chosen, manager, node, task, until
from night import by_day

from flywheel.agent.actions import Finished, Type, Wait
from flywheel.cli import main
from flywheel.config import parse_settings
from flywheel.config.workspace import Workspace
from flywheel.envs.base import Checkpointable, Observation, StepResult, Task
from flywheel.envs.conformance import check_env
from flywheel.envs.registry import BACKENDS, open_environments
from flywheel.envs.remote import protocol
from flywheel.envs.remote.client import TOKEN_VARIABLE
from flywheel.envs.remote.node_server import serve_application
from flywheel.envs.remote.protocol import LeaseToken
from flywheel.pipeline import iterations
from flywheel.utils.errors import BadInput, EnvError, EnvTimeout

kinds = managers.kinds  # the fixture: shelves are known here


# -- commands --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("status", "body", "what"),
    [
        (403, {"error": "the token is wrong", "fix": "export it"}, "the token is wrong"),
        (403, {"message": "forbidden"}, "answers with status 403"),
        (404, {"error": {"code": 7}}, "answers with status 404"),
        (502, ["bad gateway"], "answers with status 502"),
        (200, "hello", "answers with status 200"),
    ],
)
def test_what_stands_in_the_managers_place_is_one_line(monkeypatch, status, body, what):
    monkeypatch.setenv(TOKEN_VARIABLE, SECRET)
    monkeypatch.setattr(httpx, "request", lambda *args, **options: httpx.Response(status, json=body))
    for words in (["status"], ["drain", "one"]):
        found = CliRunner().invoke(main, ["env", "server", *words])
        assert found.exit_code in (1, 2)
        assert what in found.output
        assert len(found.output.splitlines()) == 1


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
    assert protocol.decode_result(protocol.encode_result(result)) == result
    assert protocol.decode_result(protocol.encode_result(StepResult(Observation(None)))) == StepResult(
        Observation(None)
    )
    assert Task(**json.loads(json.dumps(asdict(task())))) == task()
    note = LeaseToken("s", "n", "shelves", "x", 12.5)
    assert LeaseToken.parse(note.sign(SECRET), SECRET) == note
    for broken in (note.sign("another"), f"x{note.sign(SECRET)}", "", "."):
        with pytest.raises(ValueError, match="not signed"):
            LeaseToken.parse(broken, SECRET)
    for error in (EnvError("a", where="b", fix="c"), EnvTimeout("late"), BadInput("no")):
        back = protocol.decode_error(protocol.encode_error(error))
        assert (type(back), str(back)) == (type(error), str(error))
    assert "cannot be read" in str(protocol.decode_error(b"<html>"))


@pytest.mark.parametrize("broken", [b"", b"\0\0\0\x09{}", b"\0\0\0\x02[]", b"\0\0\0\x02{]"])
def test_what_is_no_message_is_refused(broken):
    with pytest.raises(ValueError, match=r"cut off|no head|Expecting"):
        protocol.decode_message(broken)


async def test_a_node_that_answers_no_message_is_an_environment_that_failed(tmp_path):
    async def hello(request: web.Request) -> web.Response:
        return web.Response(body=answers[request.match_info["call"]])

    answers = {"open": b"hello", "checkpoint": b"hello"}
    stranger = web.Application()
    stranger.add_routes([web.post("/sessions/{session}/{call}", hello)])
    async with manager(tmp_path) as it, managers.served(stranger) as address:
        identity = protocol.hash_backend_settings(BACKENDS["shelves"].identity(chosen(it.address)))
        it.ledger.register("one", "boot", address, {"shelves": (1, identity)})
        async with open_environments(chosen(it.address), [task()]) as environments:
            with pytest.raises(EnvError, match="the node's answer cannot be read"):
                async with environments.env(task()):
                    pass
            answers["open"] = protocol.encode_message({"checkpoints": True})
            async with environments.env(task()) as env:
                with pytest.raises(EnvError, match="the node's answer cannot be read"):
                    await env.checkpoint()
        assert it.ledger.sessions == {}


# -- who may ----------------------------------------------------------------------------------------------------------
async def test_without_the_token_nothing_is_done(tmp_path, monkeypatch):
    async with manager(tmp_path) as it, node(it.address) as one, aiohttp.ClientSession() as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer ü"}):
            for method, path in (("POST", "/sessions"), ("GET", "/status"), ("POST", "/nodes/x"), ("GET", "/sessions")):
                async with client.request(method, it.address + path, json={}, headers=headers) as answer:
                    assert answer.status == 401
        for lease in ("", "x.y", LeaseToken("s", "one", "shelves", "i", time.time() + 9).sign("another")):
            async with client.post(f"{one.address}/sessions/s/open", headers={"X-Lease": lease}) as answer:
                assert answer.status == 403
        assert one.node.sessions == {}
        monkeypatch.setenv(TOKEN_VARIABLE, "wrong")
        async with open_environments(chosen(it.address), [task()]) as environments:
            with pytest.raises(BadInput, match="the token is missing or wrong"):
                async with environments.env(task()):
                    pass
        monkeypatch.delenv(TOKEN_VARIABLE)
        with pytest.raises(BadInput, match="not in FLYWHEEL_SANDBOX_TOKEN"):
            async with open_environments(chosen(it.address), [task()]):
                pass


async def test_a_heartbeat_that_lacks_a_field_is_no_unknown_node(tmp_path):
    async with manager(tmp_path) as it, aiohttp.ClientSession(headers={"Authorization": f"Bearer {SECRET}"}) as client:
        for body, status in (({"boot": "1"}, 422), ({"sessions": []}, 422), ({"boot": "1", "sessions": []}, 404)):
            async with client.post(f"{it.address}/nodes/x/beat", json=body) as answer:
                assert answer.status == status


async def test_a_lease_opens_nothing_else_and_nothing_once_it_is_over(tmp_path):
    async with manager(tmp_path) as it, node(it.address) as one, aiohttp.ClientSession() as client:
        await until(lambda: it.ledger.nodes, "the node has not registered")
        identity = it.ledger.nodes["one"].places["shelves"][1]

        async def status(lease: LeaseToken, session: str, call: str = "open") -> int:
            headers = {"X-Lease": lease.sign(SECRET)}
            async with client.post(f"{one.address}/sessions/{session}/{call}", headers=headers) as answer:
                return answer.status

        good = LeaseToken("s", "one", "shelves", identity, time.time() + 60)
        assert await status(good, "t") == 403
        assert await status(LeaseToken("s", "two", "shelves", identity, time.time() + 60), "s") == 403
        assert await status(LeaseToken("s", "one", "shelves", identity, time.time() - 1), "s") == 403
        assert await status(LeaseToken("s", "one", "shelves", "other", time.time() + 60), "s") == 500
        assert await status(good, "s", "exec") == 422
        assert await status(good, "s") == 200  # and the next beat ends it: the manager does not know it
        await until(lambda: not one.node.sessions, "a session that the manager does not know goes on")
        assert await status(good, "s") == 403


@pytest.mark.parametrize(
    ("manager", "token", "said"), by_day([("", SECRET, "no manager"), ("http://a:1", "", "not in FLYW")])
)
def test_a_run_without_a_manager_or_its_token_is_refused_before_it_begins(manager, token, said, monkeypatch, project):
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    chosen = parse_settings({"sandbox": {"backend": "manager", "manager": manager}}, where="test")
    with pytest.raises(BadInput, match=said):
        iterations.run_preflight(Workspace(project), chosen)


async def test_settings_that_differ_are_refused_at_once(tmp_path):
    async with manager(tmp_path) as it, node(it.address):
        other = chosen(it.address, kinds={"shelves": {"largest": 5}})
        async with open_environments(other, [task()]) as environments:
            with pytest.raises(BadInput, match="by other settings than this run"):
                async with environments.env(task()):
                    pass


@pytest.mark.parametrize(
    ("status", "body", "error", "what"),
    [
        (200, {"hello": 1}, BadInput, "what answers there is no manager"),
        (500, {"message": "sorry"}, BadInput, "it answers with status 500"),
        (200, [1], EnvTimeout, "the manager does not answer"),
    ],
)
async def test_another_server_in_the_managers_place_is_told(monkeypatch, status, body, error, what):
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    monkeypatch.setenv(TOKEN_VARIABLE, SECRET)
    other = web.Application()
    other.router.add_route("*", "/{path:.*}", answer)
    async with serve_application(other, "127.0.0.1") as address:
        settings = chosen(address, acquire_timeout_s=0.5)
        async with open_environments(settings, [task()]) as environments:
            with pytest.raises(error, match=what):
                async with environments.env(task()):
                    pass


# -- where it listens ---
async def test_an_address_of_ipv6_stands_in_brackets():
    async with serve_application(web.Application(), "::1") as address, aiohttp.ClientSession(address) as client:
        assert address.startswith("http://[::1]:")
        assert (await client.get("/")).status == 404


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70_000), ("h" * 300, 0), ("no.such.host.invalid", 0)])
async def test_a_place_where_nothing_can_listen_is_told(host, port):
    with pytest.raises(BadInput, match=f"cannot serve at {host}:{port}"):
        async with serve_application(web.Application(), host, port):
            pass
