"""Packs: what a sample gives in one, whatever else is in it, is what it gives alone and padded; gradients, too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from checkpoints import make
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from lamp_env import screen, settings, small_model
from night import examples

from flywheel.agent.prompt import Image, Message, build_context
from flywheel.policy.encoding import Encoder
from flywheel.policy.model import load_model, save_checkpoint
from flywheel.training.modeling.monkey_patch import plan_attention
from flywheel.training.modeling.policy_forward import PaddedBatch, PolicyForward, TokenSequence, pack_sequences

S = settings()
PACKED = S.rl.model_copy(update={"pack_tokens": 4096})
PADDED = S.rl.model_copy(update={"pack_tokens": 0, "micro_batch": 3})
WORDS = ("red", "green", "lamp", "left", "right", "click", "done", "row")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, project):
    return small_model(tmp_path_factory.mktemp("packs") / "model", project)


def samples(encoder: Encoder) -> list[tuple]:
    """Prompts of several lengths and screens: two of one task, one twice the same, one a beginning of another, one with
    two screens, one without any."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, n)) for n in (3, 3, 9, 14, 2)]
    contexts = [build_context(text, (), screen("left", n % 2), S.policy) for n, text in enumerate(texts)]
    both = (Message("user", (Image(screen("left")), "Then ", Image(screen("right", 2)), texts[0])),)
    contexts += [contexts[0], contexts[0], both, (Message("user", ("No screen at all",)),)]
    lengths = (4, 9, 1, 12, 3, 4, 7, 5, 2)
    responses = [encoder.encode_text(" ".join(rng.choice(WORDS, 12)))[:n] for n in lengths]
    responses[5] = responses[0]  # the same once more
    responses[6] = [*responses[0], *responses[6]]  # and as the beginning of a longer one
    return [(encoder.encode(context), response) for context, response in zip(contexts, responses, strict=True)]


def read(reader: PolicyForward, pairs, rl) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor], list]:
    """Log-probabilities at 0.5 and hidden states of each item, with gradient."""
    items = [reader.encode_example(*pair) for pair in pairs]
    logprobs, states, parts = {}, {}, reader.split_into_micro_batches(items, rl)
    for part in parts:
        hidden, _, found = reader(part, 0.5)
        ends = np.cumsum([len(items[member].response) for member in part.members])[:-1].tolist()
        logprobs |= dict(zip(part.members, found.tensor_split(ends), strict=True))
        states |= dict(zip(part.members, hidden.tensor_split(ends), strict=True))
    return logprobs, states, parts


def close(one: dict[int, torch.Tensor], two: dict[int, torch.Tensor], atol: float = 2e-5) -> None:
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=atol)


def gradient(reader: PolicyForward, logprobs: dict[int, torch.Tensor]) -> list[torch.Tensor]:
    reader.zero_grad()
    sum((part * (1 + number)).sum() for number, part in logprobs.items()).backward()
    return [torch.zeros(()) if p.grad is None else p.grad.clone() for p in reader.parameters()]


@pytest.mark.parametrize("limit", [4096, 40])
def test_packed_is_padded_and_its_gradient(folder, limit):
    pairs = samples(Encoder.from_folder(folder))
    packed, padded = PolicyForward(load_model(folder)), PolicyForward(load_model(folder))
    rl = PACKED.model_copy(update={"pack_tokens": limit})
    (ours, states, parts), (theirs, others, batches) = read(packed, pairs, rl), read(padded, pairs, PADDED)
    assert all(isinstance(part, PaddedBatch) for part in batches)
    assert (len(parts) == 1) is (limit == 4096)
    close(ours, theirs)
    close(states, others)
    for one, two in zip(gradient(packed, ours), gradient(padded, theirs), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


def test_each_screen_and_each_shared_beginning_is_computed_once(folder):
    encoder = Encoder.from_folder(folder)
    reader = PolicyForward(load_model(folder))
    items = [reader.encode_example(*pair) for pair in samples(encoder)]
    (packed,) = reader.split_into_micro_batches(items, PACKED)
    assert len(packed.screens) == 3  # left, left clicked once, right clicked twice
    assert sorted(packed.members) == list(range(len(items)))
    assert packed.tokens < 0.8 * sum(len(item.sequence) for item in items)
    (alone,) = pack_sequences([items[0].sequence], 4096)
    (twice,) = pack_sequences([items[0].sequence, items[5].sequence], 4096)
    assert twice.tokens == alone.tokens
    assert len(twice.targets) == 2 * len(alone.targets)


def test_order_of_the_samples_changes_nothing(folder):
    pairs = samples(Encoder.from_folder(folder))
    reader = PolicyForward(load_model(folder))
    order = np.random.default_rng(1).permutation(len(pairs)).tolist()
    with torch.no_grad():
        straight, mixed = read(reader, pairs, PACKED)[0], read(reader, [pairs[i] for i in order], PACKED)[0]
    for place, number in enumerate(order):
        assert torch.equal(mixed[place], straight[number])


@pytest.mark.parametrize("architecture", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_each_family(architecture, tmp_path):
    folder = make(tmp_path / architecture, architecture)
    encoder = Encoder.from_folder(folder)
    pairs = [
        (encoder.encode((Message("user", (Image(screen("left", n)), f"Open {n}.")),)), encoder.encode_text("click" * n))
        for n in (1, 2, 3)
    ]
    reader = PolicyForward(load_model(folder).float())
    assert reader.reads_packs
    with torch.no_grad():
        close(read(reader, pairs, PACKED)[0], read(reader, pairs, PADDED)[0], atol=1e-4)


def test_a_checkpoint_written_by_training_is_the_library_s(folder, tmp_path):
    """Nothing of how packs are read gets into the files."""
    encoder = Encoder.from_folder(folder)
    for name in ("plain", "read"):
        model = load_model(folder)
        if name == "read":
            PolicyForward(model)
        save_checkpoint(model, encoder, tmp_path / name)
    for file in (tmp_path / "plain").iterdir():
        assert (tmp_path / "read" / file.name).read_bytes() == file.read_bytes()


def _line(ids: list[int]) -> TokenSequence:
    keys = np.array(ids, dtype=np.int64)
    return TokenSequence(keys, np.tile(np.arange(len(ids)), (3, 1)), keys, (), keys[-2:])


@hypothesis_settings(deadline=None, max_examples=examples(40))
@given(st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=30), min_size=1, max_size=8), st.integers(1, 60))
def test_every_sample_finds_its_own_tokens(rows, limit):
    """Followed along its path through a pack a sample reads its own ids at its own positions, and attention sees just
    those, each before its own place."""
    sequences = [_line([7] * 9 + row) for row in rows]
    seen = []
    for packed in pack_sequences(sequences, limit):
        found = {}
        for group in packed.plan.groups:
            for row in range(len(group.queries)):
                for tail in range(group.queries.shape[1]):
                    keys = group.keys[row][group.mask[row, 0, tail]]
                    if len(keys) and int(keys[-1]) == int(group.queries[row, tail]):
                        found.setdefault(int(keys[-1]), keys.tolist())
        assert sorted(found) == list(range(packed.tokens))  # each token is asked for once
        start = 0
        for member in packed.members:
            mine = sequences[member]
            path = found[int(packed.predicting[start + 1])]
            assert packed.ids[0, path].tolist() == mine.ids.tolist()
            assert packed.positions[0, 0, path].tolist() == list(range(len(mine)))
            start += 2
        seen += packed.members
    assert sorted(seen) == list(range(len(rows)))


@hypothesis_settings(deadline=None, max_examples=examples(40))
@given(st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=30), min_size=2, max_size=20), st.integers(2, 4))
def test_shares_are_of_about_equal_size(rows, shares):
    """None has more than an even share and the sequence that it ends with, and two share what there are two of."""
    sequences = [_line([7] * 9 + row) for row in rows]
    (whole,) = pack_sequences(sequences, 10_000)
    packs = pack_sequences(sequences, 10_000, shares=shares)
    longest = max(len(one) for one in sequences)
    assert 2 <= len(packs) <= shares
    assert all(one.tokens <= whole.tokens / shares + longest for one in packs[:-1])
    assert sorted(member for one in packs for member in one.members) == list(range(len(rows)))


def test_a_plan_wastes_little():
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 600, 64).tolist()
    ends = np.cumsum(lengths)
    made = plan_attention(
        [np.arange(end - n, end) for n, end in zip(lengths, ends, strict=True)], [0] * 64, int(ends[-1])
    )
    padded = sum(group.queries.numel() * group.keys.shape[1] for group in made.groups)
    assert padded < 1.5 * sum(n * n for n in lengths)
