"""Weights from the trainer to inference: what every publisher keeps, and a swap under load that loses nothing.

vLLM needs a GPU, so its routes are played here by a small stand-in: what is tested of that publisher is the order of
its calls, and what it does when one fails.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

import pytest
import torch
from night import by_day
from policy_servers import Misbehaving, checkpoints, context, says, serving

from flywheel.config import PolicySettings
from flywheel.policy import open_policy
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.client.endpoint import PolicyEndpoint
from flywheel.policy.client.publishers import CannotPublish, ServePublisher, VllmPublisher
from flywheel.policy.encoding import Encoder, collate_sequences
from flywheel.policy.model import load_model
from flywheel.policy.protocol import SamplingParams
from flywheel.utils.errors import ModelError, PolicyError


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return checkpoints(tmp_path_factory.mktemp("models"), 3)


@pytest.fixture(scope="module")
def server(folders):
    with serving(folders[0]) as server:
        yield server


@dataclass
class Vllm:
    """The routes of vllm 0.32 that the publisher uses. refuse: the one that fails, with its answer."""

    server: Misbehaving
    version: str = "default"
    paused: bool = False
    calls: list = field(default_factory=list)
    refuse: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        for route, change in {
            "GET /weight_info": lambda body: {"weight_version": self.version},
            "POST /pause?mode=wait": lambda body: setattr(self, "paused", True),
            "POST /collective_rpc": lambda body: self._reload(body),
            "POST /reset_prefix_cache": lambda body: {"success": True},
            "POST /update_weight_version": lambda body: setattr(self, "version", body["new_version"]),
            "POST /resume": lambda body: setattr(self, "paused", False),
        }.items():
            self.server.routes[route] = self._route(route, change)

    def _route(self, route, change):
        async def behave(raw, write):
            self.calls.append(route.split("/")[1])
            if route in self.refuse:
                await self.refuse[route](raw, write)
            else:
                await says(200, change(json.loads(raw) if raw else None))(raw, write)

        return behave

    def _reload(self, body):
        assert self.paused
        assert body["method"] == "reload_weights"
        return {"results": [None]}


@pytest.fixture
def vllm(folders):
    with Misbehaving(folders[0]).running() as server:
        yield Vllm(server)


@pytest.fixture(params=["flywheel model serve", "vllm serve, its routes"])
async def publisher(request, folders):
    if request.param == "flywheel model serve":
        yield ServePublisher(PolicyEndpoint(PolicySettings(endpoint=request.getfixturevalue("server").url)))
    else:
        yield VllmPublisher(PolicyEndpoint(PolicySettings(endpoint=request.getfixturevalue("vllm").server.url)))


async def test_what_is_published_answers(publisher, folders):
    for folder in (folders[1], folders[1], folders[0], folders[2]):
        assert await publisher.publish(folder) == checkpoint_digest(folder)
        assert await publisher.version() == checkpoint_digest(folder)


async def test_what_is_no_checkpoint_changes_nothing(publisher, folders, tmp_path):
    await publisher.publish(folders[1])
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ModelError):
            await publisher.publish(folder)
    assert await publisher.version() == checkpoint_digest(folders[1])


async def test_publishers_at_once_end_on_one_of_the_versions(publisher, folders):
    published = await asyncio.gather(*map(publisher.publish, folders))
    assert await publisher.version() in published


async def test_a_server_that_sees_another_file_system_says_so(vllm, folders):
    vllm.server.routes["POST /v1/weights"] = says(400, {"error": {"message": "no such model folder"}})
    with pytest.raises(PolicyError, match=r"no such model folder.*must be able to read .*m1 under the same path"):
        await ServePublisher(PolicyEndpoint(PolicySettings(endpoint=vllm.server.url))).publish(folders[1])


# -- a real swap under load -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("backend", by_day(["transformers", "openai"]))
async def test_a_swap_under_load_loses_no_request(backend, server, folders):
    """32 requests, two swaps: each is answered once, by one version, with that version's log-probabilities."""
    policy = open_policy(folders[0], PolicySettings(backend=backend, endpoint=server.url, max_num_seqs=8, retries=0))
    samplings = [SamplingParams(temperature=1.0, max_new_tokens=6 + n % 9, seed=n) for n in range(32)]
    tasks = [asyncio.create_task(policy.complete(context(n % 5), samplings[n])) for n in range(32)]
    await asyncio.wait(tasks[:4], return_when=asyncio.FIRST_COMPLETED)
    await policy.load(folders[1])
    await asyncio.wait(tasks[12:], return_when=asyncio.FIRST_COMPLETED)
    await policy.load(folders[2])
    done = await asyncio.gather(*tasks)
    last = await policy.complete(context(0), SamplingParams(max_new_tokens=4))
    await policy.close()

    assert last.weight_version == checkpoint_digest(folders[2])
    models = {checkpoint_digest(folder): load_model(folder) for folder in folders}
    encoder = Encoder.from_folder(folders[0])
    assert {completion.weight_version for completion in done} <= set(models)
    assert done[0].weight_version == checkpoint_digest(folders[0])
    for number, completion in enumerate(done):
        sequence = encoder.encode(context(number % 5)).extended(completion.token_ids)
        with torch.no_grad():
            rows = models[completion.weight_version](**collate_sequences([sequence], "right")).logits[0].log_softmax(-1)
        at = completion.prompt_tokens - 1
        recomputed = [rows[at + n, token].item() for n, token in enumerate(completion.token_ids)]
        assert completion.logprobs == pytest.approx(recomputed, abs=1e-4)


# -- vLLM's order of calls --------------------------------------------------------------------------------------------
def publisher_of(vllm):
    return VllmPublisher(PolicyEndpoint(PolicySettings(endpoint=vllm.server.url, retries=0)))


async def test_vllm_is_paused_while_it_reads_and_resumed_after(vllm, folders):
    await publisher_of(vllm).publish(folders[1])
    assert vllm.calls == ["pause?mode=wait", "collective_rpc", "reset_prefix_cache", "update_weight_version", "resume"]
    assert not vllm.paused


@pytest.mark.parametrize("status", [400, 500])
async def test_vllm_is_resumed_where_the_swap_fails(vllm, folders, status):
    vllm.refuse = {"POST /collective_rpc": says(status, {"error": {"message": "cannot read the file"}})}
    with pytest.raises(PolicyError, match="cannot read the file"):
        await publisher_of(vllm).publish(folders[1])
    assert vllm.calls[-1] == "resume"
    assert (vllm.paused, vllm.version) == (False, "default")


async def test_old_keys_and_values_must_go(vllm, folders):
    vllm.refuse = {"POST /reset_prefix_cache": says(200, {"success": False})}
    with pytest.raises(PolicyError, match="keys and values of the old weights"):
        await publisher_of(vllm).publish(folders[1])
    assert (vllm.paused, vllm.version) == (False, "default")


async def test_an_older_vllm_does_not_name_its_weights(vllm, folders):
    for route in ("GET /weight_info", "POST /update_weight_version"):
        vllm.refuse[route] = says(404, {"detail": "Not Found"})
    publisher = publisher_of(vllm)
    assert await publisher.publish(folders[1]) == checkpoint_digest(folders[1])
    assert await publisher.version() == ""


async def test_a_vllm_without_these_routes_cannot_publish(vllm, folders):
    for route in list(vllm.server.routes):
        del vllm.server.routes[route]
    with pytest.raises(CannotPublish, match="VLLM_SERVER_DEV_MODE=1"):
        await publisher_of(vllm).publish(folders[1])


async def test_a_server_that_does_not_name_its_weights_is_asked_nothing_while_it_swaps(vllm, folders):
    """The client's name for an answer's weights is exact: what is asked before the swap is answered before it."""
    row = {"id": "m", "owned_by": "vllm", "root": "x"}
    vllm.server.routes["GET /v1/models"] = says(200, {"data": [row]})
    seen = []

    def answer(body):
        seen.append((vllm.paused, vllm.version))
        body["choices"][0].pop("weight_version")

    vllm.server.next = [vllm.server.spoilt(answer) for _ in range(25)]
    policy = open_policy(folders[0], PolicySettings(backend="openai", endpoint=vllm.server.url, max_num_seqs=4))
    tasks = [asyncio.create_task(policy.complete(context(0), SamplingParams(seed=n))) for n in range(24)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await policy.load(folders[1])
    done = [*await asyncio.gather(*tasks), await policy.complete(context(0), SamplingParams(seed=24))]
    await policy.close()
    assert not any(paused for paused, _ in seen)
    assert sorted(version for _, version in seen) == sorted(completion.weight_version for completion in done)
    assert {completion.weight_version for completion in done} == {
        checkpoint_digest(folders[0]),
        checkpoint_digest(folders[1]),
    }
