"""The policy in process: what it samples, what it says of it, and what happens when things go wrong."""

from __future__ import annotations

import asyncio
import io
import itertools

import numpy as np
import pytest
import torch
from PIL import Image as Picture

from flywheel.agent.prompt import build_context
from flywheel.errors import BadInput, ModelError, PolicyError, PolicyTimeout
from flywheel.policy import open_policy
from flywheel.policy.embedded import EmbeddedPolicy
from flywheel.policy.encoding import Encoder, collate
from flywheel.policy.model import digest, load_model, new_model, save_checkpoint
from flywheel.policy.protocol import Image, Message, Sampling
from flywheel.policy.sampling import draw
from flywheel.policy.tokenizer import train_tokenizer
from flywheel.settings import Policy
from flywheel.synthesis import words

SETTINGS = Policy()
TEXTS = ("Click the red tile.", "Go.", "Turn on night light and sync, then open the cart.", "Read the number.")


def screen(seed: int) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (224, 224, 3), dtype=np.uint8)
    Picture.fromarray(pixels).save(out, format="PNG")
    return out.getvalue()


CONTEXTS = [build_context(TEXTS[n % 4], [], screen(n), SETTINGS) for n in range(8)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two checkpoints of different random weights."""
    root = tmp_path_factory.mktemp("models")
    encoder = Encoder.new(train_tokenizer(words.corpus()))
    return [save_checkpoint(new_model(seed), encoder, root / f"m{seed}") for seed in (0, 1)]


@pytest.fixture
async def policy(folders):
    policy = EmbeddedPolicy(folders[0], SETTINGS)
    yield policy
    await policy.close()


async def test_what_is_sampled_does_not_depend_on_the_batch(policy):
    samplings = [Sampling(seed=n, max_new_tokens=4 + 3 * n, temperature=0.5 + 0.2 * n) for n in range(8)]
    together = await asyncio.gather(*map(policy.complete, CONTEXTS, samplings))
    for context, sampling, completion in zip(CONTEXTS, samplings, together, strict=True):
        alone = await policy.complete(context, sampling)
        assert alone.token_ids == completion.token_ids
        assert alone.logprobs == pytest.approx(completion.logprobs, abs=1e-4)
        assert len(completion.token_ids) == len(completion.logprobs) <= sampling.max_new_tokens


async def test_log_probabilities_are_those_of_a_training_pass(policy, folders):
    sampling = [Sampling(seed=n, max_new_tokens=12, temperature=1.3) for n in range(8)]
    completions = await asyncio.gather(*map(policy.complete, CONTEXTS, sampling))
    model, encoder = load_model(folders[0]).train(), Encoder.from_folder(folders[0])
    sequences = [encoder.encode(c).extended(done.token_ids) for c, done in zip(CONTEXTS, completions, strict=True)]
    with torch.no_grad():
        logprobs = model(**collate(sequences, "right")).logits.log_softmax(-1)
    for row, done in enumerate(completions):
        for number, (token, sampled) in enumerate(zip(done.token_ids, done.logprobs, strict=True)):
            recomputed = logprobs[row, done.prompt_tokens + number - 1, token].item()
            assert sampled == pytest.approx(recomputed, abs=1e-4)


async def test_greedy_takes_the_likeliest_token_and_another_seed_another(policy, folders):
    greedy = [await policy.complete(CONTEXTS[0], Sampling(temperature=0, seed=s, max_new_tokens=6)) for s in (1, 2)]
    assert greedy[0].token_ids == greedy[1].token_ids
    model, encoder = load_model(folders[0]), Encoder.from_folder(folders[0])
    with torch.no_grad():
        first = model(**collate([encoder.encode(CONTEXTS[0])], "left")).logits[0, -1].argmax().item()
    assert greedy[0].token_ids[0] == first
    drawn = {(await policy.complete(CONTEXTS[0], Sampling(seed=s, max_new_tokens=6))).token_ids for s in range(4)}
    assert len(drawn) == 4


def test_draws_follow_the_tempered_distribution():
    """20,000 draws against known probabilities: every count within 5 standard deviations."""
    logits, n = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5]), 20_000
    generator, sampling = torch.Generator().manual_seed(0), Sampling(temperature=0.7)
    counts = np.bincount([int(draw(logits, sampling, generator)) for _ in range(n)], minlength=5)
    expected = (logits / 0.7).softmax(-1).numpy()
    assert (np.abs(counts - n * expected) / np.sqrt(n * expected * (1 - expected))).max() < 5


async def test_the_end_token_ends_a_response(folders, tmp_path):
    """On a model that finds every token equally likely, what is drawn is known: the largest of its seed's numbers."""
    model, encoder = new_model(0), Encoder.from_folder(folders[0])
    with torch.no_grad():
        model.model.language_model.norm.weight.zero_()
    save_checkpoint(model, encoder, tmp_path / "flat")
    size = model.config.text_config.vocab_size

    def drawn(seed: int) -> tuple[int, ...]:
        generator = torch.Generator().manual_seed(seed)
        return tuple(int(torch.rand(size, generator=generator).argmax()) for _ in range(4))

    seed = next(seed for seed in itertools.count() if encoder.end_id in drawn(seed)[1:])
    expected = drawn(seed)[: drawn(seed).index(encoder.end_id) + 1]
    policy = EmbeddedPolicy(tmp_path / "flat", SETTINGS)
    ended, cut = await asyncio.gather(
        policy.complete(CONTEXTS[0], Sampling(seed=seed, max_new_tokens=9)),
        policy.complete(CONTEXTS[0], Sampling(seed=seed, max_new_tokens=len(expected) - 1)),
    )
    await policy.close()
    assert (ended.token_ids, ended.finished) == (expected, True)
    assert (cut.token_ids, cut.finished) == (expected[:-1], False)
    assert ended.text == cut.text == encoder.decode(expected[:-1])
    assert ended.logprobs == pytest.approx([-np.log(size)] * len(expected), abs=1e-4)


async def test_a_broken_request_fails_alone(policy):
    broken = (Message("user", (Image(b"no picture"), "Go.")),)
    results = await asyncio.gather(
        policy.complete(CONTEXTS[0], Sampling(max_new_tokens=3)),
        policy.complete(broken, Sampling(max_new_tokens=3)),
        policy.complete((Message("user", ("word " * 5000,)),), Sampling(max_new_tokens=3)),
        policy.complete(CONTEXTS[1], Sampling(max_new_tokens=3)),
        return_exceptions=True,
    )
    assert [type(result).__name__ for result in results] == ["Completion", "BadInput", "PolicyError", "Completion"]


async def test_weights_are_swapped_in_order(policy, folders):
    ask = Sampling(seed=3, max_new_tokens=8)
    assert policy.weight_version == digest(folders[0])
    before, _, after = await asyncio.gather(
        policy.complete(CONTEXTS[0], ask), policy.load(folders[1]), policy.complete(CONTEXTS[0], ask)
    )
    assert (before.weight_version, after.weight_version) == (digest(folders[0]), digest(folders[1]))
    assert before.token_ids != after.token_ids
    assert policy.weight_version == digest(folders[1])


async def test_a_failed_swap_keeps_the_old_weights(policy, folders, tmp_path):
    with pytest.raises(ModelError, match="not a model folder"):
        await policy.load(tmp_path)
    assert (await policy.complete(CONTEXTS[0], Sampling(max_new_tokens=2))).weight_version == digest(folders[0])


async def test_a_deadline_is_a_named_error_and_the_next_request_is_answered(folders):
    policy = EmbeddedPolicy(folders[0], SETTINGS.model_copy(update={"timeout_s": 1e-4}))
    with pytest.raises(PolicyTimeout, match=r"policy\.timeout_s"):
        await policy.complete(CONTEXTS[0], Sampling(max_new_tokens=4))
    policy._policy = SETTINGS
    assert len((await policy.complete(CONTEXTS[0], Sampling(max_new_tokens=2))).token_ids) <= 2
    await policy.close()


async def test_a_closed_policy_says_so(folders):
    policy = open_policy(folders[0], SETTINGS)
    await policy.close()
    await policy.close()
    with pytest.raises(PolicyError, match="closed"):
        await policy.complete(CONTEXTS[0], Sampling())


def test_callers_may_sit_on_different_event_loops(folders):
    policy = EmbeddedPolicy(folders[0], SETTINGS)
    ask = Sampling(seed=1, max_new_tokens=3)
    first, second = (asyncio.run(policy.complete(CONTEXTS[0], ask)) for _ in range(2))
    assert first == second
    asyncio.run(policy.close())


def test_a_back_end_of_a_later_version_is_refused(folders):
    with pytest.raises(BadInput, match="later version"):
        open_policy(folders[0], SETTINGS.model_copy(update={"backend": "openai", "endpoint": "http://localhost"}))
