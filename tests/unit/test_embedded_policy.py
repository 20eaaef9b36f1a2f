"""The policy in process: what it samples, what it says of it, and what happens when things go wrong."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import time

import numpy as np
import pytest
import torch
from checkpoints import make
from policy_servers import context as screen_and_text
from policy_servers import make_adapter
from processes import PATIENCE_S

from flywheel.agent.prompt import Image, Message
from flywheel.config import PolicySettings
from flywheel.envs.screens import vocabulary
from flywheel.policy import open_policy
from flywheel.policy.checkpoint import checkpoint_digest
from flywheel.policy.encoding import Encoder, collate_sequences
from flywheel.policy.inference.embedded import EmbeddedPolicy
from flywheel.policy.inference.engine import sample_tokens
from flywheel.policy.model import load_model, make_tiny_model, save_checkpoint, train_tokenizer
from flywheel.policy.protocol import SamplingParams
from flywheel.utils.errors import BadInput, ModelError, PolicyBusy, PolicyError, PolicyTimeout

SETTINGS = PolicySettings()
CONTEXTS = [screen_and_text(n) for n in range(8)]
LONG = 3000  # tokens: nothing waits for the end of such an answer


def adapted(**changes):
    return SETTINGS.model_copy(update=changes)


async def until(true):
    """Give the worker time until something is so."""
    ends = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < ends, "it never came to pass"
        await asyncio.sleep(0.001)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two checkpoints of different random weights."""
    root = tmp_path_factory.mktemp("models")
    encoder = Encoder.new(train_tokenizer(vocabulary.tokenizer_corpus()))
    return [save_checkpoint(make_tiny_model(seed), encoder, root / f"m{seed}") for seed in (0, 1)]


@pytest.fixture
async def policy(folders):
    policy = EmbeddedPolicy(folders[0], SETTINGS)
    yield policy
    await policy.close()


@pytest.fixture
async def narrow(folders):
    """One request runs, two may wait."""
    policy = EmbeddedPolicy(folders[0], adapted(max_num_seqs=1, max_queue_size=2))
    yield policy
    await policy.close()


async def test_what_is_sampled_does_not_depend_on_the_batch(policy):
    samplings = [SamplingParams(seed=n, max_new_tokens=4 + 3 * n, temperature=0.5 + 0.2 * n) for n in range(8)]
    together = await asyncio.gather(*map(policy.complete, CONTEXTS, samplings))
    for context, sampling, completion in zip(CONTEXTS, samplings, together, strict=True):
        alone = await policy.complete(context, sampling)
        assert alone.token_ids == completion.token_ids
        assert alone.logprobs == pytest.approx(completion.logprobs, rel=1e-5, abs=1e-5)
        assert len(completion.token_ids) == len(completion.logprobs) <= sampling.max_new_tokens


async def test_log_probabilities_are_those_of_a_training_pass(policy, folders):
    sampling = [SamplingParams(seed=n, max_new_tokens=12, temperature=1.3) for n in range(8)]
    completions = await asyncio.gather(*map(policy.complete, CONTEXTS, sampling))
    model, encoder = load_model(folders[0]).train(), Encoder.from_folder(folders[0])
    sequences = [encoder.encode(c).extended(done.token_ids) for c, done in zip(CONTEXTS, completions, strict=True)]
    with torch.no_grad():
        logprobs = model(**collate_sequences(sequences, "right")).logits.log_softmax(-1)
    for row, done in enumerate(completions):
        for number, (token, sampled) in enumerate(zip(done.token_ids, done.logprobs, strict=True)):
            recomputed = logprobs[row, done.prompt_tokens + number - 1, token].item()
            assert sampled == pytest.approx(recomputed, abs=1e-4)


async def test_greedy_takes_the_likeliest_token_and_another_seed_another(policy, folders):
    greedy = [
        await policy.complete(CONTEXTS[0], SamplingParams(temperature=0, seed=s, max_new_tokens=6)) for s in (1, 2)
    ]
    assert greedy[0].token_ids == greedy[1].token_ids
    model, encoder = load_model(folders[0]), Encoder.from_folder(folders[0])
    with torch.no_grad():
        first = model(**collate_sequences([encoder.encode(CONTEXTS[0])], "left")).logits[0, -1].argmax().item()
    assert greedy[0].token_ids[0] == first
    drawn = {(await policy.complete(CONTEXTS[0], SamplingParams(seed=s, max_new_tokens=6))).token_ids for s in range(4)}
    assert len(drawn) == 4


def test_draws_follow_the_tempered_distribution():
    """20,000 draws against known probabilities: every count within 5 standard deviations."""
    logits, n = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5]), 20_000
    generator, sampling = torch.Generator().manual_seed(0), SamplingParams(temperature=0.7)
    rows, numbers = logits.expand(100, -1), torch.rand(n // 100, 100, generator=generator, dtype=torch.float64)
    counts = np.bincount([t for some in numbers for t in sample_tokens(rows, [sampling] * 100, some.tolist())])
    expected = (logits / 0.7).softmax(-1).numpy()
    assert (np.abs(counts - n * expected) / np.sqrt(n * expected * (1 - expected))).max() < 5


def test_what_is_impossible_is_never_drawn_and_numbers_that_are_not_finite_hurt_no_neighbour():
    never = float("-inf")
    rows = torch.tensor([[never, 0.0, never], [never, never, 3.0], [float("nan"), 0.0, 0.0], [5.0, 9.0, 1.0]])
    samplings = [SamplingParams(temperature=1.0)] * 3 + [SamplingParams(temperature=0.0)]
    for numbers in np.random.default_rng(0).random((50, 3)).tolist():
        one, two, spoilt, likeliest = sample_tokens(rows, samplings, [*numbers, None]).tolist()
        assert (one, two, likeliest) == (1, 2, 1)
        assert 0 <= spoilt < 3


async def test_the_end_token_ends_a_response(folders, tmp_path):
    """On a model that finds every token equally likely, what is drawn is known: as far into the vocabulary as
    its seed's number into 0 to 1."""
    model, encoder = make_tiny_model(0), Encoder.from_folder(folders[0])
    with torch.no_grad():
        model.model.language_model.norm.weight.zero_()
    save_checkpoint(model, encoder, tmp_path / "flat")
    size = model.config.text_config.vocab_size

    def drawn(seed: int) -> tuple[int, ...]:
        generator = torch.Generator().manual_seed(seed)
        return tuple(int(size * torch.rand(1, generator=generator, dtype=torch.float64)) for _ in range(4))

    seed = next(seed for seed in itertools.count() if encoder.end_id in drawn(seed)[1:])
    expected = drawn(seed)[: drawn(seed).index(encoder.end_id) + 1]
    policy = EmbeddedPolicy(tmp_path / "flat", SETTINGS)
    ended, cut = await asyncio.gather(
        policy.complete(CONTEXTS[0], SamplingParams(seed=seed, max_new_tokens=9)),
        policy.complete(CONTEXTS[0], SamplingParams(seed=seed, max_new_tokens=len(expected) - 1)),
    )
    await policy.close()
    assert (ended.token_ids, ended.finished) == (expected, True)
    assert (cut.token_ids, cut.finished) == (expected[:-1], False)
    assert ended.text == cut.text == encoder.decode(expected[:-1])
    assert ended.logprobs == pytest.approx([-np.log(size)] * len(expected), abs=1e-4)


async def test_a_broken_request_fails_alone(policy):
    broken = (Message("user", (Image(b"no picture"), "Go.")),)
    results = await asyncio.gather(
        policy.complete(CONTEXTS[0], SamplingParams(max_new_tokens=3)),
        policy.complete(broken, SamplingParams(max_new_tokens=3)),
        policy.complete((Message("user", ("word " * 5000,)),), SamplingParams(max_new_tokens=3)),
        policy.complete(CONTEXTS[1], SamplingParams(max_new_tokens=3)),
        return_exceptions=True,
    )
    assert [type(result).__name__ for result in results] == ["Completion", "BadInput", "PolicyError", "Completion"]


def waiting_requests(policy: EmbeddedPolicy) -> int:
    """Requests that are not in the batch yet."""
    return max(0, policy._asked - len(policy._engine.rows))


@pytest.mark.exhaustive
async def test_the_event_loop_goes_on_while_requests_run(policy):
    """A coroutine beside them sees the batch at work, again and again, before any is answered."""
    seen = set()

    async def look():
        while True:
            seen.add(policy._engine.counts.steps)
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    sampling = [SamplingParams(seed=n, max_new_tokens=40, ignore_end=True) for n in range(8)]
    done = await asyncio.gather(*map(policy.complete, CONTEXTS, sampling))
    looking.cancel()
    assert [len(completion.token_ids) for completion in done] == [40] * 8
    assert len(seen) > 5


async def test_a_late_request_joins_the_running_batch_and_may_leave_it_first(policy):
    """It does not wait for the long one, and both are what they are alone."""
    ask = SamplingParams(seed=5, max_new_tokens=6, ignore_end=True)
    alone = await policy.complete(CONTEXTS[1], ask)
    ended = []
    long = asyncio.create_task(policy.complete(CONTEXTS[0], SamplingParams(max_new_tokens=LONG, ignore_end=True)))
    long.add_done_callback(lambda _: ended.append("long"))
    await until(lambda: policy._engine.counts.steps > 20)
    late = await policy.complete(CONTEXTS[1], ask)
    assert ended == []
    assert len(policy._engine.rows) == 1
    assert late.token_ids == alone.token_ids
    assert late.logprobs == pytest.approx(alone.logprobs, rel=1e-5, abs=1e-5)
    long.cancel()


async def test_what_nobody_waits_for_leaves_the_batch_and_the_queue(narrow):
    running = asyncio.create_task(narrow.complete(CONTEXTS[0], SamplingParams(max_new_tokens=LONG, ignore_end=True)))
    await until(lambda: len(narrow._engine.rows) == 1)
    waiting = asyncio.create_task(narrow.complete(CONTEXTS[1], SamplingParams(max_new_tokens=LONG, ignore_end=True)))
    await until(lambda: waiting_requests(narrow) == 1)
    waiting.cancel()
    running.cancel()
    await asyncio.wait([waiting, running])
    last = await narrow.complete(CONTEXTS[2], SamplingParams(max_new_tokens=3, ignore_end=True))
    assert len(last.token_ids) == 3
    assert narrow._engine.counts.steps < LONG
    assert narrow._engine.counts.prompts == 2


async def test_one_more_than_may_wait_is_refused_at_once(narrow):
    ask = SamplingParams(max_new_tokens=3)
    results = await asyncio.gather(*(narrow.complete(CONTEXTS[n], ask) for n in range(5)), return_exceptions=True)
    assert [type(result).__name__ for result in results] == ["Completion"] * 3 + ["PolicyBusy"] * 2
    with pytest.raises(PolicyBusy, match=r"2 requests wait already .*policy\.max_queue_size"):
        raise results[4]
    assert (await narrow.complete(CONTEXTS[4], ask)).token_ids  # there is room again


async def test_samples_of_one_task_share_its_prompt(policy, folders):
    asks = [SamplingParams(seed=n, max_new_tokens=5) for n in range(6)]
    together = await asyncio.gather(*(policy.complete(CONTEXTS[0], ask) for ask in asks))
    counts = policy._engine.counts
    assert counts.prefilled == together[0].prompt_tokens
    assert (counts.prompts, policy._engine.vision.encoded) == (6, 1)
    bare = EmbeddedPolicy(folders[0], adapted(cache_mb=0))
    for ask, done in zip(asks, together, strict=True):
        alone = await bare.complete(CONTEXTS[0], ask)
        assert done.token_ids == alone.token_ids
        assert done.logprobs == pytest.approx(alone.logprobs, rel=1e-5, abs=1e-5)
    assert bare._engine.counts.shared == 0
    await bare.close()


@pytest.mark.exhaustive
async def test_weights_are_swapped_between_requests_and_none_is_lost(folders):
    """The running one ends on the weights it began with; the waiting one gets the new ones, as what comes later."""
    policy = EmbeddedPolicy(folders[0], adapted(max_num_seqs=1))
    old, new = checkpoint_digest(folders[0]), checkpoint_digest(folders[1])
    ask = SamplingParams(seed=3, max_new_tokens=24, ignore_end=True)
    long = SamplingParams(seed=3, max_new_tokens=LONG, ignore_end=True)
    alone = await policy.complete(CONTEXTS[0], long)
    begun = asyncio.create_task(policy.complete(CONTEXTS[0], long))
    await until(lambda: len(policy._engine.rows) == 1)
    waiting = [asyncio.create_task(policy.complete(CONTEXTS[n], ask)) for n in range(3)]
    await until(lambda: waiting_requests(policy) == 3)
    swap = asyncio.create_task(policy.load(folders[1]))
    done = await asyncio.gather(begun, *waiting, swap)
    assert [completion.weight_version for completion in done[:4]] == [old, new, new, new]
    assert (done[0].token_ids, done[0].logprobs) == (alone.token_ids, pytest.approx(alone.logprobs, abs=1e-5))
    fresh = EmbeddedPolicy(folders[1], SETTINGS)  # nothing of the old weights is left in what is kept
    assert done[1].token_ids == (await fresh.complete(CONTEXTS[0], ask)).token_ids != alone.token_ids[:24]
    assert policy.weight_version == new
    await policy.close()
    await fresh.close()


async def test_another_tokeniser_comes_with_its_weights(folders, tmp_path):
    """What waits was encoded for the old one: it is encoded again."""
    make(tmp_path / "other", "qwen2_5_vl")
    policy = EmbeddedPolicy(folders[0], adapted(max_num_seqs=1))
    long = asyncio.create_task(policy.complete(CONTEXTS[0], SamplingParams(max_new_tokens=LONG, ignore_end=True)))
    await until(lambda: len(policy._engine.rows) == 1)
    waiting = asyncio.create_task(policy.complete(CONTEXTS[1], SamplingParams(seed=1, max_new_tokens=5)))
    await until(lambda: waiting_requests(policy) == 1)
    swap = asyncio.create_task(policy.load(tmp_path / "other"))
    await until(lambda: len(policy._swaps) == 1)
    long.cancel()
    completion, _ = await asyncio.gather(waiting, swap)
    other = EmbeddedPolicy(tmp_path / "other", SETTINGS)
    assert completion == await other.complete(CONTEXTS[1], SamplingParams(seed=1, max_new_tokens=5))
    assert completion.prompt_tokens == len(other.encoder.encode(CONTEXTS[1]))
    await policy.close()
    await other.close()


async def test_a_failed_swap_keeps_the_old_weights(policy, folders, tmp_path):
    with pytest.raises(ModelError, match="not a model folder"):
        await policy.load(tmp_path)
    assert (await policy.complete(CONTEXTS[0], SamplingParams(max_new_tokens=2))).weight_version == checkpoint_digest(
        folders[0]
    )


async def test_weights_that_do_not_fit_leave_the_old_ones(policy, folders, tmp_path):
    """A folder that looks whole, and whose fault is found only on loading."""
    broken = tmp_path / "broken"
    shutil.copytree(folders[1], broken)
    raw = json.loads((broken / "config.json").read_text())
    raw["text_config"]["num_hidden_layers"] += 1
    (broken / "config.json").write_text(json.dumps(raw))
    ask = SamplingParams(max_new_tokens=4)
    before = await policy.complete(CONTEXTS[0], ask)
    with pytest.raises(ModelError, match="the weights lack"):
        await policy.load(broken)
    assert await policy.complete(CONTEXTS[0], ask) == before
    await policy.load(folders[1])
    assert (await policy.complete(CONTEXTS[0], ask)).weight_version == checkpoint_digest(folders[1])


async def test_a_model_that_fails_is_told_and_the_next_request_is_answered(policy, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(policy._engine._pass, "prefill", fails)
        with pytest.raises(PolicyError, match="the model failed: out of memory"):
            await policy.complete(CONTEXTS[0], SamplingParams(max_new_tokens=4))
    assert (await policy.complete(CONTEXTS[0], SamplingParams(max_new_tokens=4))).token_ids


@pytest.mark.parametrize("numbers", [{"temperature": -1.0}, {"temperature": float("nan")}, {"max_new_tokens": 0}])
def test_numbers_that_nothing_can_be_sampled_with_are_refused(numbers):
    with pytest.raises(BadInput, match=next(iter(numbers)).partition("_")[0]):
        SamplingParams(**numbers)


async def test_a_deadline_is_a_named_error_and_the_next_request_is_answered(folders):
    policy = EmbeddedPolicy(folders[0], SETTINGS.model_copy(update={"timeout_s": 1e-4}))
    with pytest.raises(PolicyTimeout, match=r"policy\.timeout_s"):
        await policy.complete(CONTEXTS[0], SamplingParams(max_new_tokens=4))
    policy._policy = SETTINGS
    assert len((await policy.complete(CONTEXTS[0], SamplingParams(max_new_tokens=2))).token_ids) <= 2
    await policy.close()


async def test_a_closed_policy_answers_what_it_has_and_says_so_to_the_rest(folders):
    policy = open_policy(folders[0], SETTINGS)
    asked = [asyncio.create_task(policy.complete(context, SamplingParams(max_new_tokens=4))) for context in CONTEXTS]
    await asyncio.sleep(0)
    await policy.close()
    await policy.close()
    assert len(await asyncio.gather(*asked)) == 8
    with pytest.raises(PolicyError, match="closed"):
        await policy.complete(CONTEXTS[0], SamplingParams())
    with pytest.raises(PolicyError, match="closed"):
        await policy.load(folders[1])


def test_callers_may_sit_on_different_event_loops(folders):
    policy = EmbeddedPolicy(folders[0], SETTINGS)
    ask = SamplingParams(seed=1, max_new_tokens=3)
    first, second = (asyncio.run(policy.complete(CONTEXTS[0], ask)) for _ in range(2))
    assert first == second
    asyncio.run(policy.close())


async def test_a_screen_is_not_encoded_again_after_a_swap_that_leaves_the_vision_tower(folders, tmp_path):
    """Adapters of the language model alone: answers are those of a policy that has only ever had the new one. One that
    adapts the tower or the merger, and whole weights, forget all screens."""
    only, also = ["language_model"], ["language_model", "merger"]
    adapters = [
        make_adapter(folders[0], tmp_path / f"{n}", n, targets=t) for n, t in enumerate((only, only, also, also))
    ]
    policy = EmbeddedPolicy(adapters[0], SETTINGS)
    ask = SamplingParams(seed=3, max_new_tokens=12, ignore_end=True)
    answers = [(await policy.complete(CONTEXTS[0], ask)).token_ids]
    for folder, encoded in ((adapters[1], 0), (folders[0], 0), (adapters[2], 1), (adapters[3], 1), (folders[1], 1)):
        await policy.load(folder)
        done = await policy.complete(CONTEXTS[0], ask)
        assert policy._engine.vision.encoded == encoded, folder
        fresh = EmbeddedPolicy(folder, SETTINGS)
        alone = await fresh.complete(CONTEXTS[0], ask)
        await fresh.close()
        assert (done.weight_version, done.token_ids) == (checkpoint_digest(folder), alone.token_ids)
        assert done.logprobs == alone.logprobs
        answers.append(done.token_ids)
    await policy.close()
    assert len(set(answers)) == len(answers)
