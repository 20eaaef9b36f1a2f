"""Weights from the trainer to inference: what every publisher keeps, and a swap under load that loses nothing.

vLLM's routes are played here by a small stand-in: what is tested of that publisher is the order of its calls, and what
it does when one fails. `test_vllm_wheel.py` holds what it sends, and the files of an adapter, against vLLM's own code.
"""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass, field

import pytest
import torch
from night import by_day
from policy_servers import Misbehaving, checkpoints, context, make_adapter, says, serving

from flywheel.config import AdapterSettings, PolicySettings, parse_settings
from flywheel.policy import open_policy
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.client import publishers
from flywheel.policy.client.endpoint import PolicyEndpoint
from flywheel.policy.client.publishers import (
    CannotPublish,
    ServePublisher,
    VllmPublisher,
    check_adapter_server,
    put_servers_to_sleep,
)
from flywheel.policy.encoding import Encoder, collate_sequences
from flywheel.policy.model import load_model
from flywheel.policy.protocol import SamplingParams
from flywheel.utils.errors import BadInput, ModelError, PolicyError


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
    order = ["pause?mode=wait", "collective_rpc", "reset_prefix_cache", "update_weight_version", "resume"]
    assert vllm.calls == ["weight_info", *order]
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


# -- adapters by vLLM's LoRA routes -----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def adapters(folders):
    """Two of the first checkpoint, one of the second; and one that has a part for the merger."""
    root = folders[0].parent
    made = [make_adapter(folders[n // 2], root / f"a{n}", n) for n in range(3)]
    return [*made, make_adapter(folders[0], root / "a3", 3, targets=["merger"])]


@dataclass
class LoraVllm(Vllm):
    """A vllm that was begun with LoRA. loaded: path by name. config: its blocks. old: whether it goes on answering with
    the adapter that was loaded first."""

    loaded: dict[str, str] = field(default_factory=dict)
    config: dict = field(
        default_factory=lambda: {
            "lora_config": {"max_lora_rank": 16},
            "model_config": {"enable_sleep_mode": True},
            "cache_config": {"gpu_memory_utilization": 0.5},
        }
    )
    environment: dict = field(default_factory=lambda: {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": True})
    asleep: bool = False
    old: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for route, change in {
            "GET /v1/models": lambda body: {"data": self._rows()},
            "GET /server_info?config_format=json": lambda body: {
                "vllm_config": self.config,
                "vllm_env": self.environment,
            },
            "POST /sleep?level=1&mode=wait": lambda body: setattr(self, "asleep", True),
            "POST /wake_up": lambda body: setattr(self, "asleep", False),
            "GET /is_sleeping": lambda body: {"is_sleeping": self.asleep},
            "POST /v1/load_lora_adapter": self._take,
            "POST /v1/unload_lora_adapter": lambda body: self._drop(body["lora_name"]),
        }.items():
            self.server.routes[route] = self._route(route, change)
        self.server.next = [self._answer] * 100

    def _rows(self) -> list[dict]:
        base = {"id": "m", "owned_by": "vllm", "root": str(self.server.folder), "parent": None}
        return [base] + [base | {"id": name, "root": path, "parent": "m"} for name, path in self.loaded.items()]

    def _take(self, body) -> bytes:
        self.loaded[body["lora_name"]] = body["lora_path"]
        return b"Success: LoRA adapter added successfully."

    def _drop(self, name: str) -> bytes:
        del self.loaded[name]
        return b"Success: LoRA adapter removed successfully."

    async def _answer(self, raw, write):
        body = self.server.good(raw)
        body["model"] = self.old or json.loads(raw)["model"]
        body["choices"][0].pop("weight_version")
        await says(200, body)(raw, write)


@pytest.fixture
def lora(folders):
    with Misbehaving(folders[0]).running() as server:
        yield LoraVllm(server)


def remote(lora, folder, **changes):
    return open_policy(folder, PolicySettings(backend="openai", endpoint=lora.server.url, retries=0, **changes))


async def test_an_adapter_is_asked_for_by_a_name_with_its_version(lora, adapters, folders):
    policy = remote(lora, folders[0])
    ask = SamplingParams(max_new_tokens=4)
    assert (await policy.complete(context(0), ask)).weight_version == checkpoint_digest(folders[0])
    for folder in (adapters[0], adapters[1], adapters[1]):
        await policy.load(folder)
        done = await policy.complete(context(0), ask)
        assert done.weight_version == policy.weight_version == checkpoint_digest(folder)
        assert lora.loaded == {f"flywheel-{checkpoint_digest(folder)}": str(folder)}  # the one before is gone
    await policy.load(folders[0])  # the base has been there all the time
    assert (await policy.complete(context(0), ask)).weight_version == checkpoint_digest(folders[0])
    assert not lora.loaded
    assert "collective_rpc" not in lora.calls
    await policy.close()


async def test_a_server_that_answers_with_the_old_adapter_is_refused(lora, adapters):
    policy = remote(lora, adapters[0])
    await policy.complete(context(0), SamplingParams())
    lora.old = f"flywheel-{checkpoint_digest(adapters[0])}"
    await policy.load(adapters[1])
    with pytest.raises(PolicyError, match=f"answered with the model '{lora.old}', not with the adapter flywheel-"):
        await policy.complete(context(0), SamplingParams())
    await policy.close()


REFUSED = {  # by vllm 0.33, with its words
    "no route": (404, "Not Found", "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
    "no lora": (500, "add_lora failed: LoRA is not enabled. Use --enable-lora.", "start vllm with --enable-lora and"),
    "rank": (500, "LoRA rank 64 is greater than max_lora_rank 16.", "larger --max-lora-rank, or lower adapter.rank"),
    "dora": (500, "vLLM does not yet support DoRA.", "adapter.dora"),
    "no room": (500, "No free lora slots", "larger --max-loras"),
    "elsewhere": (404, "Loading lora x failed: No adapter found for <path>", "must be able to read .*a0 under"),
    "other": (500, "out of memory", "out of memory"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_vllm_says_of_an_adapter_is_named_with_its_mending(lora, adapters, name):
    status, said, mended = REFUSED[name]
    lora.refuse["POST /v1/load_lora_adapter"] = says(status, {"error": {"message": said, "code": status}})
    with pytest.raises(PolicyError, match=mended):
        await publisher_of(lora).publish(adapters[0])
    assert not lora.loaded


async def test_an_adapter_of_another_base_is_not_sent(lora, adapters, folders):
    with pytest.raises(CannotPublish, match=r"belongs to .*m1, and the server has .*m0"):
        await publisher_of(lora).publish(adapters[2])
    lora.version = checkpoint_digest(folders[2])  # whole weights were published to it
    with pytest.raises(CannotPublish, match=f"the server has the weights {lora.version}"):
        await publisher_of(lora).publish(adapters[0])
    assert not lora.loaded


async def test_no_checkpoint_is_hashed_on_the_event_loop(lora, adapters, monkeypatch):
    threads = set()

    def digest(folder):
        threads.add(threading.get_ident())
        return checkpoint_digest(folder)

    monkeypatch.setattr(publishers, "checkpoint_digest", digest)
    await publisher_of(lora).publish(adapters[0])
    assert threads
    assert threading.get_ident() not in threads


async def test_parts_for_the_vision_tower_want_a_server_that_takes_them(lora, adapters):
    with pytest.raises(CannotPublish, match=r"would leave out.*--enable-tower-connector-lora"):
        await publisher_of(lora).publish(adapters[3])
    lora.config["lora_config"]["enable_tower_connector_lora"] = True
    await publisher_of(lora).publish(adapters[3])
    assert list(lora.loaded.values()) == [str(adapters[3])]


@pytest.mark.parametrize(
    ("block", "value", "adapter", "words"),
    [
        ("lora_config", None, {}, r"begun without LoRA.*--enable-lora"),
        ("lora_config", {"max_lora_rank": 8}, {}, r"rank 8 at most, adapter\.rank is 16.*--max-lora-rank 16"),
        ("lora_config", {"max_lora_rank": 16}, {"targets": ["merger"]}, r"would leave out.*--enable-tower-connector"),
        ("lora_config", {"max_lora_rank": 16}, {"dora": True}, r"no DoRA.*adapter\.dora"),
        ("model_config", {"enable_sleep_mode": False}, {}, r"without sleep mode.*--enable-sleep-mode"),
        ("cache_config", {"gpu_memory_utilization": 0.92}, {}, r"takes 0\.92 .*rest of 0\.7.*utilization 0\.7"),
        ("environment", {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": False}, {}, r"no adapters while it runs.*UPDATING=True"),
    ],
)
def test_a_server_begun_otherwise_than_adapters_need_is_named_before_anything_begins(
    lora, block, value, adapter, words
):
    chosen = AdapterSettings(method="lora", rank=16, **adapter)
    policy = PolicySettings(backend="openai", endpoint=lora.server.url, sleeps_while_training=True)
    check_adapter_server(policy, AdapterSettings(method="lora", rank=16), 0.7)
    if block == "environment":
        lora.environment = value
    else:
        lora.config[block] = value
    with pytest.raises(CannotPublish, match=words):
        check_adapter_server(policy, chosen, 0.7)


def test_a_server_that_does_not_tell_how_it_was_begun_is_taken_unless_it_must_sleep(lora):
    del lora.server.routes["GET /server_info?config_format=json"]
    policy = PolicySettings(backend="openai", endpoint=lora.server.url)
    check_adapter_server(policy, AdapterSettings(method="lora", rank=99), None)
    with pytest.raises(CannotPublish, match=r"no such route.*--enable-sleep-mode"):
        check_adapter_server(policy.model_copy(update={"sleeps_while_training": True}), AdapterSettings(), 0.7)


def test_a_model_serve_that_is_to_sleep_is_told_that_it_does_not(server):
    policy = PolicySettings(backend="openai", endpoint=server.url)
    check_adapter_server(policy, AdapterSettings(method="lora"), None)
    with pytest.raises(CannotPublish, match=r"model serve` does not sleep.*sleeps_while_training to false"):
        check_adapter_server(policy.model_copy(update={"sleeps_while_training": True}), AdapterSettings(), 0.7)


# -- a server that sleeps ---------------------------------------------------------------------------------------------
async def test_a_server_sleeps_while_a_stage_trains_and_wakes_with_the_new_adapter(lora, adapters):
    policy = remote(lora, adapters[0], sleeps_while_training=True)
    await put_servers_to_sleep(policy._policy)
    assert lora.asleep
    await policy.load(adapters[1])
    assert not lora.asleep
    assert (await policy.complete(context(0), SamplingParams())).weight_version == checkpoint_digest(adapters[1])
    await put_servers_to_sleep(policy._policy.model_copy(update={"sleeps_while_training": False}))
    assert not lora.asleep
    await policy.close()
    lora.asleep = True  # as a killed run leaves it
    await remote(lora, adapters[0], sleeps_while_training=True).close()
    assert not lora.asleep


async def test_a_server_that_does_not_sleep_or_wake_is_named(lora, adapters):
    policy = PolicySettings(endpoint=lora.server.url, retries=0, sleeps_while_training=True)
    lora.server.routes["POST /sleep?level=1&mode=wait"] = says(200, {})
    with pytest.raises(PolicyError, match="does not sleep"):
        await put_servers_to_sleep(policy)
    lora.asleep, lora.server.routes["POST /wake_up"] = True, says(200, {})
    with pytest.raises(PolicyError, match="does not wake"):
        remote(lora, adapters[0], sleeps_while_training=True)
    lora.config["model_config"]["enable_sleep_mode"] = False  # it would keep its memory
    with pytest.raises(CannotPublish, match=r"without sleep mode.*--enable-sleep-mode"):
        await put_servers_to_sleep(policy)
    del lora.server.routes["GET /server_info?config_format=json"]
    with pytest.raises(CannotPublish, match=r"no such route.*VLLM_SERVER_DEV_MODE=1"):
        await put_servers_to_sleep(policy)


@pytest.mark.parametrize("other", [{"policy": {"backend": "transformers"}}, {"rl": {"max_staleness": 1}}])
def test_only_a_server_without_episodes_under_way_can_sleep(other):
    policy = {"backend": "openai", "endpoint": "http://127.0.0.1:1/v1", "sleeps_while_training": True}
    fits = {"policy": policy, "rl": {"max_staleness": 0}}
    parse_settings(fits, where="here")
    with pytest.raises(BadInput, match="sleeps_while_training goes with"):
        parse_settings({name: block | other.get(name, {}) for name, block in fits.items()}, where="here")
