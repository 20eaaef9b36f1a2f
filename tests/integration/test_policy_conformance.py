"""What every back-end of `Policy` keeps: the embedded one, and the remote one over a real `model serve` process."""

from __future__ import annotations

import asyncio
import io
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from night import by_day
from PIL import Image as Picture
from policy_servers import checkpoints, context, make_adapter, serving

from flywheel.agent.prompt import Context, Image, Message
from flywheel.config import PolicySettings
from flywheel.policy import open_policy
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.client.remote import RemotePolicy
from flywheel.policy.encoding import Encoder, collate_sequences
from flywheel.policy.model import load_model
from flywheel.policy.protocol import SamplingParams
from flywheel.utils.errors import BadInput, ModelError, PolicyBusy, PolicyError, PolicyTimeout

SAMPLINGS = [SamplingParams(temperature=0.4 + 0.2 * n, max_new_tokens=3 + 2 * n, seed=100 + n) for n in range(6)]
CONTEXTS = [context(n) for n in range(5)] + [
    (
        Message("system", ("You act.",)),
        Message("user", (Image(context(5)[-1].parts[0].png), "Go on.")),
        Message("assistant", ("Thought: I click.\nAction: wait()",)),
        Message("user", (context(6)[-1].parts[0],)),
    )
]


@pytest.fixture(scope="module", params=by_day(["checkpoints", "adapters"]))
def folders(tmp_path_factory, request):
    """The one that is served, another one, and an adapter of the first."""
    root = tmp_path_factory.mktemp("models")
    wholes = checkpoints(root, 2)
    first, second, third = (make_adapter(wholes[0], root / f"a{n}", n) for n in range(3))
    return [first, second, third] if request.param == "adapters" else [*wholes, first]


@pytest.fixture(scope="module")
def server(folders):
    with serving(folders[0]) as server:
        yield server


@dataclass(frozen=True)
class Backend:
    settings: dict

    def open(self, folder: Path, **changes):
        return open_policy(folder, PolicySettings(**self.settings | changes))


@pytest.fixture(params=by_day(["transformers", "openai"]))
def backend(request, folders):
    if request.param == "transformers":
        return Backend({"backend": "transformers"})
    return Backend({"backend": "openai", "endpoint": request.getfixturevalue("server").url})


@pytest.fixture
async def policy(backend, folders):
    policy = backend.open(folders[0])
    yield policy
    await policy.close()


async def test_log_probabilities_are_those_of_a_training_pass(policy, folders):
    asked = [(folder, *pair) for folder in (folders[0], folders[2]) for pair in zip(CONTEXTS, SAMPLINGS, strict=True)]
    completions = await asyncio.gather(*map(policy.complete, CONTEXTS, SAMPLINGS))
    await policy.load(folders[2])
    completions += await asyncio.gather(*map(policy.complete, CONTEXTS, SAMPLINGS))
    await policy.load(folders[0])
    models, encoder = {folder: load_model(folder) for folder in folders}, Encoder.from_folder(folders[0])
    for (folder, screens, sampling), done in zip(asked, completions, strict=True):
        sequence = encoder.encode(screens).extended(done.token_ids)
        with torch.no_grad():
            rows = models[folder](**collate_sequences([sequence], "right")).logits[0].log_softmax(-1)
        recomputed = [rows[done.prompt_tokens + n - 1, token].item() for n, token in enumerate(done.token_ids)]
        assert done.logprobs == pytest.approx(recomputed, abs=1e-4)
        assert done.prompt_tokens == len(encoder.encode(screens))
        assert 1 <= len(done.token_ids) == len(done.logprobs) <= sampling.max_new_tokens
        assert done.weight_version == checkpoint_digest(folder)
        assert done.text == encoder.decode([token for token in done.token_ids if token != encoder.end_id])
        assert done.finished == (done.token_ids[-1] == encoder.end_id)


async def test_the_same_seed_gives_the_same_tokens_alone_and_among_others(policy):
    together = await asyncio.gather(*map(policy.complete, CONTEXTS, SAMPLINGS))
    for asked, sampling, done in zip(CONTEXTS, SAMPLINGS, together, strict=True):
        alone = await policy.complete(asked, sampling)
        assert alone.token_ids == done.token_ids
        assert alone.logprobs == pytest.approx(done.logprobs, abs=1e-4)
    seeds = {(await policy.complete(CONTEXTS[0], SamplingParams(max_new_tokens=6, seed=n))).token_ids for n in range(4)}
    assert len(seeds) == 4


def blank(side: int) -> Context:
    out = io.BytesIO()
    Picture.new("L", (side, side)).save(out, format="PNG")
    return (Message("user", (Image(out.getvalue()), "Go.")),)


async def test_a_broken_request_fails_alone_and_by_name(policy):
    ask = SamplingParams(max_new_tokens=3)
    no_picture = (Message("user", (Image(b"no picture"), "Go.")),)
    too_large, point = (blank(8000), blank(1))
    too_long = (Message("user", ("word " * 5000,)),)
    results = await asyncio.gather(
        policy.complete(CONTEXTS[0], ask),
        policy.complete(no_picture, ask),
        policy.complete(too_long, ask),
        policy.complete(CONTEXTS[1], ask),
        policy.complete(too_large, ask),
        policy.complete(point, ask),
        return_exceptions=True,
    )
    assert isinstance(results[1], BadInput)
    assert "not an image" in str(results[1])
    assert isinstance(results[2], BadInput | PolicyError)
    assert "do not fit into the model's" in str(results[2])
    assert isinstance(results[4], BadInput)
    assert "too large: 8000 x 8000" in str(results[4])
    assert [len(results[n].token_ids) for n in (0, 3, 5)] == [3, 3, 3]


def _give_it(policy, timeout_s: float) -> None:
    """`policy.timeout_s` of one that is open, so that opening it has its time."""
    policy._policy = policy._policy.model_copy(update={"timeout_s": timeout_s})
    if isinstance(policy, RemotePolicy):
        policy._servers._timeout_s = timeout_s


async def test_a_deadline_has_a_name(backend, folders):
    policy = backend.open(folders[0])
    await policy.complete(CONTEXTS[0], SamplingParams(max_new_tokens=1))
    _give_it(policy, 1e-4)
    with pytest.raises(PolicyTimeout, match=r"policy\.timeout_s"):
        await policy.complete(CONTEXTS[0], SamplingParams(max_new_tokens=40))
    _give_it(policy, 60.0)
    assert (await policy.complete(CONTEXTS[0], SamplingParams(max_new_tokens=2))).token_ids
    await policy.close()


async def test_a_full_queue_has_a_name_and_those_in_it_are_answered(backend, folders):
    policy = backend.open(folders[0], max_num_seqs=1, max_queue_size=2)
    ask = SamplingParams(max_new_tokens=20, seed=1)
    results = await asyncio.gather(*(policy.complete(CONTEXTS[0], ask) for _ in range(12)), return_exceptions=True)
    answered = [result for result in results if not isinstance(result, Exception)]
    assert all(isinstance(result, PolicyBusy) for result in results if isinstance(result, Exception))
    assert 2 <= len(answered) < 12
    assert len({done.token_ids for done in answered}) == 1
    await policy.close()


async def test_a_cancelled_request_leaves_the_others_alone(policy):
    tasks = [
        asyncio.create_task(policy.complete(CONTEXTS[0], SamplingParams(max_new_tokens=30, seed=n))) for n in range(6)
    ]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(result.token_ids for result in results[1::2])


async def test_weights_are_swapped_and_the_old_ones_kept_where_that_fails(policy, folders, tmp_path):
    ask = SamplingParams(seed=3, max_new_tokens=8)
    old, new = checkpoint_digest(folders[0]), checkpoint_digest(folders[1])
    before = await policy.complete(CONTEXTS[0], ask)
    await policy.load(folders[1])
    after = await policy.complete(CONTEXTS[0], ask)
    assert (before.weight_version, after.weight_version, policy.weight_version) == (old, new, new)
    assert before.token_ids != after.token_ids
    torn = shutil.copytree(folders[2], tmp_path / "torn")
    file = torn / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    for folder in (tmp_path, torn):
        with pytest.raises(ModelError):
            await policy.load(folder)
        assert (await policy.complete(CONTEXTS[0], ask)).token_ids == after.token_ids
    await policy.load(folders[0])
    assert (await policy.complete(CONTEXTS[0], ask)).token_ids == before.token_ids


async def test_closing_answers_what_is_under_way_and_refuses_what_comes_after(backend, folders):
    policy = backend.open(folders[0])
    tasks = [
        asyncio.create_task(policy.complete(CONTEXTS[0], SamplingParams(max_new_tokens=9, seed=n))) for n in range(4)
    ]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await policy.close()
    await policy.close()
    assert all(done.token_ids for done in await asyncio.gather(*tasks))
    with pytest.raises(PolicyError, match="closed"):
        await policy.complete(CONTEXTS[0], SamplingParams())


def test_callers_may_sit_on_different_event_loops(backend, folders):
    policy = backend.open(folders[0])
    ask = SamplingParams(seed=1, max_new_tokens=3)
    first, second = (asyncio.run(policy.complete(CONTEXTS[0], ask)) for _ in range(2))
    assert first == second
    asyncio.run(policy.close())


def test_a_folder_that_is_no_checkpoint_is_refused(backend, tmp_path):
    with pytest.raises(ModelError):
        backend.open(tmp_path)


@pytest.mark.exhaustive
async def test_both_back_ends_say_the_same(folders, server):
    """Same tokens for the same seeds, same log-probabilities, same text, same end."""
    embedded = open_policy(folders[0], PolicySettings())
    remote = open_policy(folders[0], PolicySettings(backend="openai", endpoint=server.url))
    ours = await asyncio.gather(*map(embedded.complete, CONTEXTS, SAMPLINGS))
    theirs = await asyncio.gather(*map(remote.complete, CONTEXTS, SAMPLINGS))
    for one, other in zip(ours, theirs, strict=True):
        assert (one.token_ids, one.text, one.prompt_tokens) == (other.token_ids, other.text, other.prompt_tokens)
        assert (one.finished, one.weight_version) == (other.finished, other.weight_version)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    await embedded.close()
    await remote.close()
    assert server.process.poll() is None
