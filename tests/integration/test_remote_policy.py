"""The client of an OpenAI-compatible server: what it makes of a server that fails, and a rollout through a real one."""

from __future__ import annotations

import asyncio
import email.utils
import re
import socket
import time

import pytest
import yaml
from lamp_env import Lamps, settings, small_model, task
from policy_servers import Misbehaving, breaks, context, half, hangs, says, serving

from flywheel.config import PolicySettings, parse_settings
from flywheel.maintenance import doctor
from flywheel.policy import open_policy
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.client.endpoint import PAUSE_S, PolicyEndpoint, parse_retry_after
from flywheel.policy.protocol import SamplingParams
from flywheel.rollout.episode import run_rollout
from flywheel.utils.errors import BadInput, ModelError, PolicyBusy, PolicyError, PolicyTimeout

ASK = SamplingParams(max_new_tokens=8, seed=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, project):
    return small_model(tmp_path_factory.mktemp("models") / "small", project)


@pytest.fixture
def server(folder):
    with Misbehaving(folder).running() as server:
        yield server


def remote(server, **changes):
    return open_policy(
        server.folder, PolicySettings(**{"backend": "openai", "endpoint": server.url, "retries": 0} | changes)
    )


def refusal(message: str) -> dict:
    return {"error": {"message": message, "type": "x", "param": None, "code": None}}


def choice(change):
    """Changes the one choice of an answer."""
    return lambda body: change(body["choices"][0])


SPOILT = {
    "no choices": (lambda body: body.pop("choices"), "choices"),
    "two choices": (lambda body: body["choices"].append(body["choices"][0]), "not an answer"),
    "no usage": (lambda body: body.pop("usage"), "usage"),
    "no logprobs": (choice(lambda c: c.update(logprobs=None)), "no log-probabilities"),
    "no token ids": (choice(lambda c: c.pop("token_ids")), r"no token ids.*must not guess.*return_token_ids"),
    "one id more": (choice(lambda c: c["token_ids"].append(3)), "3 token ids and 2 log-probabilities"),
    "no tokens": (choice(lambda c: (c.update(token_ids=[]), c["logprobs"].update(content=[]))), "without a token"),
    "NaN": (choice(lambda c: c["logprobs"]["content"][1].update(logprob=float("nan"))), "log-probability of nan"),
    "infinite": (choice(lambda c: c["logprobs"]["content"][1].update(logprob=float("-inf"))), "of -inf"),
    "positive": (choice(lambda c: c["logprobs"]["content"][1].update(logprob=0.5)), "log-probability of 0.5"),
    "text for a number": (choice(lambda c: c["logprobs"]["content"][0].update(logprob="x")), "no number"),
    "text for an id": (choice(lambda c: c.update(token_ids=["1", "2"])), "whole numbers"),
    "negative id": (choice(lambda c: c.update(token_ids=[-1, 2])), "whole numbers"),
    "aborted": (choice(lambda c: c.update(finish_reason="abort")), "'abort'"),
    "another prompt": (lambda body: body["prompt_token_ids"].__setitem__(3, 9), "part at token 3"),
    "other weights": (choice(lambda c: c.update(weight_version="else")), "weights else.*someone else published"),
}


@pytest.mark.parametrize("name", SPOILT)
async def test_an_answer_that_cannot_be_true_is_refused_and_the_others_go_on(server, name):
    spoil, words = SPOILT[name]
    server.next = [server.spoilt(spoil)]
    policy = remote(server)
    results = await asyncio.gather(*(policy.complete(context(n), ASK) for n in range(4)), return_exceptions=True)
    await policy.close()
    failed = [result for result in results if isinstance(result, Exception)]
    assert [type(error) for error in failed] == [PolicyError]
    with pytest.raises(PolicyError, match=words):
        raise failed[0]
    assert server.url in str(failed[0])
    assert [result.token_ids for result in results if result not in failed] == [(45, 46)] * 3


FAULTS = {
    "not JSON": (says(200, b"<html>\nWelcome"), PolicyError, r"not JSON: '<html>'.*/v1"),
    "nothing": (says(200, b""), PolicyError, "not an answer"),
    "a list": (says(200, [1, 2]), PolicyError, "not an answer"),
    "bad request": (says(400, refusal("too long\nsecond line")), BadInput, r"status 400: too long \("),
    "too large": (says(413, b"Payload Too Large"), BadInput, "413: Payload Too Large"),
    "wrong key": (says(401, {"error": "Unauthorized"}), PolicyError, "401: Unauthorized.*OPENAI_API_KEY"),
    "no such model": (says(404, refusal("no model x")), PolicyError, r"no model x.*policy\.model"),
    "server error": (says(500, b"Traceback\n  File"), PolicyError, r"status 500: Traceback \("),
    "elsewhere": (says(307, b"", "Location: http://127.0.0.1:9/"), PolicyError, "status 307"),
    "too busy": (says(429, refusal("queue full")), PolicyBusy, "429: queue full"),
    "gateway": (says(502, b""), PolicyError, "502"),
    "closing": (says(503, refusal("closing")), PolicyError, "503: closing"),
    "too late there": (says(504, refusal("no answer in 9 s")), PolicyTimeout, "504: no answer in 9 s"),
    "dies at once": (breaks, PolicyError, "connection broke"),
    "dies half way": (half, PolicyError, "connection broke"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_a_failure_has_a_name_and_the_endpoint(server, name):
    behaviour, kind, words = FAULTS[name]
    policy = remote(server)
    server.next = [behaviour]
    with pytest.raises(kind, match=words) as caught:
        await policy.complete(context(0), ASK)
    assert server.url in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (await policy.complete(context(0), ASK)).token_ids == (45, 46)
    await policy.close()


async def test_what_may_pass_is_tried_again(server):
    policy = remote(server, retries=5)
    server.next = [breaks, half, says(429, {}, "Retry-After: 0"), says(502, {}), says(503, {})]
    assert (await policy.complete(context(0), ASK)).token_ids == (45, 46)
    assert server.asked == 6
    await policy.close()


@pytest.mark.parametrize("name", ["not JSON", "bad request", "wrong key", "no such model", "server error", "elsewhere"])
async def test_what_does_not_pass_is_asked_once(server, name):
    policy = remote(server, retries=5)
    server.next = [FAULTS[name][0]]
    with pytest.raises(FAULTS[name][1]):
        await policy.complete(context(0), ASK)
    assert server.asked == 1
    await policy.close()


@pytest.mark.parametrize("name", ["too busy", "closing", "too late there", "dies half way"])
async def test_tries_come_to_an_end(server, name):
    behaviour, kind, _ = FAULTS[name]
    policy = remote(server, retries=2)
    server.next = [behaviour] * 9
    with pytest.raises(kind, match="3 tries"):
        await policy.complete(context(0), ASK)
    assert server.asked == 3
    await policy.close()


async def test_a_pause_that_ends_after_the_deadline_is_not_made(server):
    policy = remote(server, retries=5)
    server.next = [says(429, refusal("come back tomorrow"), "Retry-After: 86400")]
    with pytest.raises(PolicyBusy, match="come back tomorrow"):
        await policy.complete(context(0), ASK)
    assert server.asked == 1
    await policy.close()


async def test_a_slow_server_meets_the_deadline_and_the_others_are_answered(server):
    policy = remote(server, timeout_s=2.0, retries=3)
    server.next = [hangs]
    results = await asyncio.gather(*(policy.complete(context(n), ASK) for n in range(4)), return_exceptions=True)
    (late,) = [result for result in results if isinstance(result, Exception)]
    assert isinstance(late, PolicyTimeout)
    assert server.url in str(late)
    assert "policy.timeout_s" in str(late)
    await policy.close()


async def test_a_full_queue_is_refused_at_once(server):
    policy = remote(server, max_num_seqs=2, max_queue_size=3, timeout_s=2.0)
    server.next = [hangs] * 5  # also those who get a place in the last moment
    results = await asyncio.gather(*(policy.complete(context(0), ASK) for _ in range(7)), return_exceptions=True)
    server.next.clear()
    kinds = [type(result) for result in results]
    assert kinds.count(PolicyBusy) == 2
    assert kinds.count(PolicyTimeout) == 5
    assert "2 requests are under way and 3 wait" in str(next(r for r in results if isinstance(r, PolicyBusy)))
    await policy.close()


# -- opening ----------------------------------------------------------------------------------------------------------
def test_a_server_that_is_not_there(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        with pytest.raises(PolicyError, match=r"no connection.*start the server"):
            open_policy(folder, PolicySettings(backend="openai", endpoint=url, retries=1))


@pytest.mark.parametrize("endpoint", ["localhost:8000", "ftp://x/v1", "http://", "file:///etc/passwd"])
def test_an_endpoint_that_is_no_address(folder, endpoint):
    with pytest.raises(BadInput, match=r"policy\.endpoint"):
        open_policy(folder, PolicySettings(backend="openai", endpoint=endpoint))


def test_a_model_that_the_server_has_not(server):
    with pytest.raises(PolicyError, match=r"no model 'other'; it has: tiny.*policy\.model"):
        remote(server, model="other")


def test_a_list_of_models_that_is_none(server):
    server.routes["GET /v1/models"] = says(200, {"models": []})
    with pytest.raises(PolicyError, match=r"not a list of models.*/v1"):
        remote(server)


def test_a_folder_without_a_tokeniser(server, tmp_path):
    (tmp_path / "model.safetensors").write_bytes((server.folder / "model.safetensors").read_bytes())
    with pytest.raises(ModelError):
        open_policy(tmp_path, PolicySettings(backend="openai", endpoint=server.url))


def test_a_server_whose_weights_cannot_be_changed_must_have_been_started_on_the_folder(server, tmp_path):
    def started_on(root):
        server.routes["GET /v1/models"] = says(200, {"data": [{"id": "m", "owned_by": "vllm", "root": str(root)}]})

    started_on(tmp_path)
    with pytest.raises(PolicyError, match=r"no such route.*VLLM_SERVER_DEV_MODE=1"):
        remote(server)
    started_on(server.folder)
    policy = remote(server)
    assert policy.weight_version == checkpoint_digest(server.folder)
    asyncio.run(policy.close())


async def test_the_key_is_sent(server, monkeypatch):
    monkeypatch.setenv("THE_KEY", "s3cret")
    endpoint = PolicyEndpoint(PolicySettings(endpoint=server.url, key_variable="THE_KEY"))
    async with endpoint.client() as client:
        assert client.headers["authorization"] == "Bearer s3cret"
    async with PolicyEndpoint(PolicySettings(endpoint=server.url, key_variable="NO_SUCH_KEY")).client() as client:
        assert "authorization" not in client.headers


@pytest.mark.exhaustive
def test_doctor_looks_at_the_server(server, tmp_path):
    def found():
        findings = {finding.name: finding for finding in doctor.diagnose_installation(tmp_path)}
        return findings.get("policy server")

    def write(**changes):
        block = "".join(f"  {name}: {value}\n" for name, value in changes.items())
        (tmp_path / "params.yaml").write_text("policy:\n" + block)

    (tmp_path / "dvc.yaml").touch()
    write(backend="transformers")
    assert found() is None
    write(backend="openai", endpoint=server.url)
    assert found().state == "ok"
    assert found().detail == f"{server.url}: tiny (flywheel, weights {server.version})"
    write(backend="openai", endpoint="http://127.0.0.1:9/v1", retries=0)
    assert found().state == "missing"
    assert "no connection" in found().detail
    assert "start the server" in found().fix


def test_the_settings_in_the_page_on_serving_can_be_used(project):
    (block,) = re.findall(r"```yaml\n(.*?)```", (project / "docs" / "serving.md").read_text(), re.DOTALL)
    policy = parse_settings(yaml.safe_load(block), where="docs/serving.md").policy
    assert policy.backend == "openai"
    assert PolicyEndpoint(policy).root == "http://127.0.0.1:8000"


# -- the parts --------------------------------------------------------------------------------------------------------
def test_pauses_are_drawn_below_a_bound_that_doubles():
    one, same, other = (PolicyEndpoint(PolicySettings(endpoint="http://x/v1"), seed) for seed in (1, 1, 2))
    drawn = [[endpoint.pause(number) for number in range(12)] for endpoint in (one, same, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(0 <= pause <= min(8.0, PAUSE_S * 2**number) for number, pause in enumerate(drawn[0]))


def test_retry_after_is_seconds_or_a_date():
    assert [parse_retry_after(value) for value in ("0", "2.5", "-3", "", "soon")] == [0, 2.5, 0, 0, 0]
    assert parse_retry_after(email.utils.formatdate(time.time() - 100)) == 0
    assert 3000 < parse_retry_after(email.utils.formatdate(time.time() + 3600)) <= 3600


# -- a real server ----------------------------------------------------------------------------------------------------
@pytest.mark.exhaustive
async def test_a_rollout_through_a_server_is_the_rollout_in_process(folder):
    """Same tasks, same seeds: the same episodes, to the token."""
    chosen, tasks = settings(policy={"max_new_tokens": 12, "timeout_s": 60}), [task(n) for n in range(4)]
    arguments = {"iteration": 1, "settings": chosen, "temperature": 1.0}
    episodes = {}
    with serving(folder) as server:
        for backend in ("transformers", "openai"):
            changes = {"backend": backend, "endpoint": server.url}
            policy = open_policy(folder, chosen.policy.model_copy(update=changes))
            episodes[backend] = await run_rollout(tasks, 2, policy, Lamps(), **arguments)
            await policy.close()
        assert server.end() == 0
    assert len(episodes["openai"]) == 8
    for one, other in zip(episodes["transformers"], episodes["openai"], strict=True):
        assert one.id == other.id
        for name in ("token_ids", "raw_text", "prompt_tokens", "weight_version"):
            assert [getattr(step, name) for step in one.steps] == [getattr(step, name) for step in other.steps]
        for left, right in zip(one.steps, other.steps, strict=True):
            assert left.logprobs == pytest.approx(right.logprobs, abs=1e-4)
