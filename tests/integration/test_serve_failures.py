"""`flywheel model serve` over a policy that fails, callers who go away, and its end while some still wait.

A stand-in for the policy, behind the real routes.
"""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from lamp_env import small_model
from policy_servers import BODY
from processes import PATIENCE_S

from flywheel.config import PolicySettings
from flywheel.policy.encoding import Encoder
from flywheel.policy.protocol import Completion
from flywheel.policy.server import app
from flywheel.utils.errors import BadInput, PolicyBusy, PolicyError, PolicyTimeout


@pytest.fixture(scope="module")
def folder(tmp_path_factory, project):
    return small_model(tmp_path_factory.mktemp("models") / "small", project)


class Scripted:
    """Does what `then` says; `begun` is set at each request and `cancelled` counts those that were given up."""

    weight_version = "v1"

    def __init__(self, encoder, then) -> None:
        self.encoder, self.then = encoder, then
        self.begun, self.cancelled, self.go = asyncio.Event(), asyncio.Semaphore(0), asyncio.Event()

    async def complete(self, context, sampling):
        self.begun.set()
        try:
            return await self.then(self)
        except asyncio.CancelledError:
            self.cancelled.release()
            raise


async def waits(policy):
    await policy.go.wait()
    return Completion("ab", (45, 46), (-1.0, -1.0), 7, "v1", True)


@asynccontextmanager
async def routes(folder, then):
    """The routes over a scripted policy, in this event loop: (service, policy, url)."""
    policy = Scripted(Encoder.from_folder(folder), then)
    service = app.PolicyService(policy, name="small", folder=folder, key=KEY, settings=PolicySettings(timeout_s=20))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app.create_policy_app(service), log_level="error", lifespan="off"))
        running = asyncio.create_task(server._serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0)
        yield service, policy, f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        server.should_exit = True
        await running


KEY = "s3cret"
BEARER = {"Authorization": f"Bearer {KEY}"}


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (PolicyBusy("16 wait", where="embedded policy"), 429, "1"),
        (PolicyTimeout("no answer in 60 s", where="embedded policy"), 504, None),
        (BadInput("the screen is not an image", where="policy context"), 400, None),
        (PolicyError("the model failed", where="embedded policy"), 500, None),
        (ZeroDivisionError("secret detail"), 500, None),
    ],
)
async def test_an_error_of_the_policy_has_its_status(folder, error, status, retry_after):
    async def fails(policy):
        raise error

    async with routes(folder, fails) as (_, _, url), httpx.AsyncClient(timeout=PATIENCE_S, headers=BEARER) as client:
        answer = await client.post(f"{url}/chat/completions", json=BODY | {"n": 3})
        assert (answer.status_code, answer.headers.get("retry-after")) == (status, retry_after)
        message = answer.json()["error"]["message"]
        assert str(error) in message or (isinstance(error, ZeroDivisionError) and "secret" not in message)


async def test_a_caller_who_goes_away_is_no_longer_worked_for(folder):
    async with routes(folder, waits) as (service, policy, url):
        raw = json.dumps(BODY | {"n": 2}).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
        lines = [
            "POST /v1/chat/completions HTTP/1.1",
            "Host: x",
            "Content-Type: application/json",
            f"Authorization: Bearer {KEY}",
        ]
        writer.write("\r\n".join([*lines, f"Content-Length: {len(raw)}", "", ""]).encode() + raw)
        await policy.begun.wait()
        writer.close()
        async with asyncio.timeout(PATIENCE_S):
            await policy.cancelled.acquire()
            await policy.cancelled.acquire()
            await service.drain(PATIENCE_S)


async def test_at_the_end_the_old_ones_are_answered_and_new_ones_refused(folder):
    async with (
        routes(folder, waits) as (service, policy, url),
        httpx.AsyncClient(timeout=PATIENCE_S, headers=BEARER) as client,
    ):
        first = asyncio.create_task(client.post(f"{url}/chat/completions", json=BODY))
        await policy.begun.wait()
        drained = asyncio.create_task(service.drain(PATIENCE_S))
        await asyncio.sleep(0)
        late = await client.post(f"{url}/chat/completions", json=BODY)
        assert (late.status_code, late.headers["retry-after"]) == (503, "1")
        assert "closing" in late.json()["error"]["message"]
        health = await client.get(url.replace("/v1", "/health"))
        assert (health.status_code, health.json()) == (503, {"status": "closing", "under_way": 1})
        assert not drained.done()
        policy.go.set()
        assert (await first).json()["choices"][0]["message"]["content"] == "ab"
        await drained


async def test_who_is_not_answered_within_the_grace_is_told(folder):
    async with (
        routes(folder, waits) as (service, policy, url),
        httpx.AsyncClient(timeout=PATIENCE_S, headers=BEARER) as client,
    ):
        first = asyncio.create_task(client.post(f"{url}/chat/completions", json=BODY))
        await policy.begun.wait()
        await service.drain(0)
        answer = await first
        assert answer.status_code == 503
        assert "closed before the answer" in answer.json()["error"]["message"]


async def test_a_key_is_asked_for_everywhere(folder):
    async with routes(folder, waits) as (_, policy, url), httpx.AsyncClient(timeout=PATIENCE_S) as client:
        policy.go.set()
        for headers, status in (({}, 401), ({"Authorization": "Bearer other"}, 401), (BEARER, 200)):
            assert (await client.get(f"{url}/models", headers=headers)).status_code == status
            answer = await client.post(f"{url}/chat/completions", json=BODY, headers=headers)
            assert answer.status_code == status
            weights = await client.post(f"{url}/weights", json={}, headers=headers)
            assert weights.status_code == (400 if status == 200 else 401)
        assert (await client.get(url.replace("/v1", "/health"))).status_code == 200
