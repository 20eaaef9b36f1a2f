"""The compiled code gives the numbers of torch's layers, each token as if alone, and stands back where it must."""

from __future__ import annotations

import builtins
import random

import numpy as np
import pytest
import torch
from checkpoints import ARCHITECTURES, make
from test_engine import Checkpoint, finish, rows_of, same

from flywheel.agent.prompt import Message
from flywheel.config import PolicySettings
from flywheel.policy.guided_decoding import AnswerConstraint, AnswerState
from flywheel.policy.inference import compiled_pass
from flywheel.policy.inference.cache import KVCache
from flywheel.policy.inference.compiled_code import open_kernels
from flywheel.policy.inference.compiled_pass import CompiledPass
from flywheel.policy.inference.engine import BatchRow, sample_tokens
from flywheel.policy.inference.fused_layers import PaddedPass, TextPass, optimise_for_inference
from flywheel.policy.model import load_model
from flywheel.policy.protocol import SamplingParams
from flywheel.utils.errors import PolicyError

kernels = open_kernels()


def run_all(checkpoint, count=12, late=5):
    engine, rows = checkpoint.engine(), rows_of(checkpoint, count)
    ended = engine.admit(rows[:late])
    for row in rows[late:]:
        ended += engine.step() + engine.admit([row])
    finish(engine, ended)
    return engine, rows


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_answers_are_those_of_torchs_layers(architecture, tmp_path, monkeypatch):
    """Prompts with and without screens, of several lengths, that join late and leave early; a cache that grows."""
    checkpoint = Checkpoint(make(tmp_path / architecture, architecture))
    ours, mine = run_all(checkpoint)
    assert isinstance(ours._pass, CompiledPass)
    monkeypatch.setattr(compiled_pass, "open_kernels", lambda: None)
    theirs, others = run_all(checkpoint)
    assert isinstance(theirs._pass, PaddedPass)
    for row, other in zip(mine, others, strict=True):
        same(row, other)
        assert row.tempered == pytest.approx(other.tempered, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_row_is_the_same_to_the_last_bit_whatever_its_neighbours(architecture, tmp_path):
    checkpoint = Checkpoint(make(tmp_path / architecture, architecture))
    _, together = run_all(checkpoint)
    engine = checkpoint.engine()
    for row, one in zip(together, rows_of(checkpoint, 12), strict=True):
        if row.prompt.screens:  # the vision tower is torch's
            continue
        finish(engine, engine.admit([one]))
        assert (row.token_ids, row.logprobs, row.tempered) == (one.token_ids, one.logprobs, one.tempered)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_several_tokens_at_once_are_the_same_as_one_by_one(architecture, tmp_path):
    """Of two rows, one of which gets more of them."""
    model = load_model(make(tmp_path / architecture, architecture))
    text = optimise_for_inference(model)
    passes, results = CompiledPass.open(model, text), []
    tokens, layers = np.random.default_rng(0).integers(10, 600, 12).tolist(), len(text.layers)
    prompts = [torch.tensor(tokens[:4]), torch.tensor(tokens[4:7])]
    positions = [torch.arange(len(ids)).expand(3, -1) for ids in prompts]
    for joined in (True, False):
        held = KVCache(2, 16, layers)
        passes.prefill(prompts, positions, [0, 0], held, ())
        if joined:
            *three, other = passes.extend([tokens[7:10], tokens[10:11]], [4, 3], [4, 3], held, [3, 1])
            hidden = passes.extend([tokens[7:10], tokens[10:11]], [4, 3], [4, 3], held, [1, 1])
        else:
            passes.extend([tokens[7:8], tokens[10:11]], [4, 3], [4, 3], held, [1, 1])
            first = passes.extend([[token] for token in (tokens[8], tokens[10])], [5, 3], [5, 3], held, [1, 1])
            hidden = passes.extend([[token] for token in (tokens[9], tokens[10])], [6, 3], [6, 3], held, [1, 1])
            assert torch.equal(first[1], hidden[1])
            assert torch.equal(torch.stack([three[1], other]), first)
        results.append(hidden)
    assert torch.equal(*results)


def test_large_layers_of_odd_sizes_are_torchs():
    """No size is a multiple of the kernels' blocks, and rows come in every remainder."""
    rng = np.random.default_rng(1)
    for outputs, inputs in ((1, 1), (65, 7), (130, 50), (64, 192)):
        weight = rng.standard_normal((outputs, inputs), dtype=np.float32)
        packed = kernels.pack_blocks(weight)
        for rows in range(1, 10):
            x = rng.standard_normal((rows, inputs), dtype=np.float32)
            y = np.empty((rows, len(packed) * kernels.BLOCK), np.float32)
            kernels.multiply(x, packed, y)
            np.testing.assert_allclose(y[:, :outputs], x @ weight.T, rtol=1e-4, atol=1e-5)


def test_drawn_tokens_are_those_of_torch():
    rng = np.random.default_rng(0)
    n, vocabulary = 600, 130
    logits = torch.from_numpy(4 * rng.standard_normal((n, vocabulary), dtype=np.float32))
    free = rng.random((n, vocabulary)) < rng.random((n, 1))
    free[:, 7] = True
    bits = np.zeros((n, 160), bool)
    bits[:, :vocabulary] = free
    allowed = np.packbits(bits, axis=1, bitorder="little").view(np.uint32)
    temperatures, numbers = rng.choice([0.0, 0.5, 1.0, 1.7], n), rng.random(n)
    chosen, logprobs = np.empty(n, np.int64), np.empty((n, 2))
    kernels.draw_tokens(logits.numpy(), allowed, temperatures, numbers, chosen, logprobs)
    masked = logits.masked_fill(torch.from_numpy(~free), -1e30)
    samplings = [SamplingParams(temperature=t) for t in temperatures.tolist()]
    random_ = [number if t else None for number, t in zip(numbers.tolist(), temperatures, strict=True)]
    expected = sample_tokens(masked, samplings, random_)
    assert chosen.tolist() == expected.tolist()
    heat = torch.from_numpy(np.where(temperatures == 0, 1, temperatures)).float()[:, None]
    for column, at in ((0, masked), (1, masked / heat)):
        read = at.log_softmax(-1).gather(1, expected[:, None])[:, 0]
        np.testing.assert_allclose(logprobs[:, column], read.numpy(), atol=1e-5)


def test_numbers_that_are_not_finite_are_told():
    bad = np.array([[0, np.nan, 1], [np.inf, 0, 1], [np.nan, 0, 1], [-np.inf, 0, 1]], np.float32)
    allowed = np.array([[7], [7], [6], [7]], np.uint32)
    chosen, logprobs = np.empty(4, np.int64), np.empty((4, 2))
    kernels.draw_tokens(bad, allowed, np.ones(4), np.zeros(4), chosen, logprobs)
    assert np.isfinite(logprobs).tolist() == [[False] * 2, [False] * 2, [True] * 2, [True] * 2]
    assert chosen[3] == 1  # what is impossible is never drawn
    kernels.draw_tokens(bad, np.zeros((4, 1), np.uint32), np.ones(4), np.zeros(4), chosen, logprobs)
    assert np.isnan(logprobs).all()


@pytest.fixture(scope="module")
def shipped(project):
    """The shipped base, and the form of an action that its answers are held to."""
    checkpoint = Checkpoint(project / "models" / "base")
    return checkpoint, new_constraint(checkpoint)


def new_constraint(checkpoint):
    return AnswerConstraint(checkpoint.encoder, checkpoint.model.config.get_text_config().vocab_size, PolicySettings())


def held_rows(checkpoint, constraint, **sampling):
    rows = rows_of(checkpoint, 8)
    return [
        BatchRow(row.prompt, SamplingParams(**{"max_new_tokens": 48, "seed": n, "temperature": n % 3 / 2, **sampling}),
                 constraint=constraint)
        for n, row in enumerate(rows)
    ]  # fmt: skip


def answers(checkpoint, constraint, **sampling):
    rows, engine = held_rows(checkpoint, constraint, **sampling), checkpoint.engine()
    finish(engine, engine.admit(rows))
    assert engine.counts.tokens == sum(len(row.token_ids) for row in rows)
    return [(row.token_ids, row.logprobs, row.tempered) for row in rows], engine.counts.steps


def test_tokens_that_are_guessed_or_have_no_choice_are_computed_together_and_the_answers_stay(shipped, monkeypatch):
    """Guesses come from answers before, so the second time nearly all are right, and the logs are the same bits."""
    checkpoint, _ = shipped
    constraint = new_constraint(checkpoint)
    with monkeypatch.context() as patch:
        patch.setattr(CompiledPass, "takes_several", False)
        expected, one_by_one = answers(checkpoint, constraint)
    constraint = new_constraint(checkpoint)
    first, joined = answers(checkpoint, constraint)
    again, guessed = answers(checkpoint, constraint)
    assert guessed < joined < one_by_one
    assert first == again
    for (tokens, *logs), (others, *theirs) in zip(first, expected, strict=True):
        assert tokens == others
        for one, two in zip(logs, theirs, strict=True):
            assert one == pytest.approx(two, abs=1e-6)


def test_guesses_that_are_wrong_change_nothing(shipped, monkeypatch):
    checkpoint, _ = shipped
    expected, _ = answers(checkpoint, new_constraint(checkpoint))
    constraint = new_constraint(checkpoint)
    answers(checkpoint, constraint, temperature=1.5)  # other answers

    def wild(self, least, most):  # whatever came before, however seldom
        return guess(self, 0.0, most)

    guess = AnswerState.guess
    monkeypatch.setattr(AnswerState, "guess", wild)
    found, _ = answers(checkpoint, constraint)
    assert found == expected


def test_a_text_that_ends_an_answer_ends_it_among_guessed_tokens(shipped):
    checkpoint, constraint = shipped
    ended = []
    for _ in range(2):
        rows, engine = held_rows(checkpoint, constraint, temperature=0.0), checkpoint.engine()
        for row in rows:
            row.stopped = lambda ids: len(ids) == 3
        finish(engine, engine.admit(rows))
        ended.append([row.token_ids for row in rows])
    assert ended[0] == ended[1]
    assert {len(ids) for ids in ended[1]} == {3}


@pytest.mark.parametrize("most", [1, 9, 14])
def test_joined_tokens_keep_to_the_limit(shipped, most):
    checkpoint, constraint = shipped
    rows, engine = held_rows(checkpoint, constraint, max_new_tokens=most), checkpoint.engine()
    finish(engine, engine.admit(rows))
    for row in rows:
        assert row.error is None
        assert len(row.token_ids) == most or row.token_ids[-1] == checkpoint.encoder.end_id


def test_penalties_beside_rows_without_are_drawn_by_torch(shipped):
    """And the random numbers of the rows stay theirs."""
    checkpoint, _ = shipped
    alone = rows_of(checkpoint, 3)
    for row in alone:
        engine = checkpoint.engine()
        finish(engine, engine.admit([row]))
    rows, engine = rows_of(checkpoint, 3), checkpoint.engine()
    other = checkpoint.row((Message("user", ("Go.",)),), max_new_tokens=4, top_k=3, seed=1, ignore_end=True)
    finish(engine, engine.admit([*rows, other]))
    for row, one in zip(rows, alone, strict=True):
        same(row, one)


@pytest.mark.parametrize("most", [20_000, 5])
def test_places_that_are_remembered_are_those_of_the_grammar(shipped, monkeypatch, most):
    """Beside a state that asks the grammar each time; many answers begin alike, and the tree begins anew where it is
    full."""
    monkeypatch.setattr("flywheel.policy.guided_decoding._MOST_PLACES", most)
    checkpoint, constraint = shipped
    dice = random.Random(0)
    for _ in range(12):
        state, matcher = constraint.begin(), constraint.open_matcher()
        for _place in range(30):
            blocked = state.blocked()
            assert (constraint.look(matcher).allowed == state.allowed).all()
            allowed = np.flatnonzero(~blocked)
            assert state.only == (allowed[0] if len(allowed) == 1 else None)
            token = int(allowed[dice.randrange(min(3, len(allowed)))])
            state.add(token)
            if token == checkpoint.encoder.end_id:
                assert not state.blocked().any()
                break
            matcher.consume_token(token)
        other = constraint.begin()
        never = int(np.flatnonzero(other.blocked())[-1])
        with pytest.raises(PolicyError, match="is not of the form"):
            other.add(never)


def test_where_there_is_no_numba_torch_computes(tmp_path, monkeypatch, caplog):
    checkpoint = Checkpoint(make(tmp_path / "m", "qwen3_vl"))
    _, expected = run_all(checkpoint, 3, 2)
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("flywheel.policy.inference") and "cpu_kernels" in (rest[2] or ()):
            raise RuntimeError("cannot cache function: no locator available")
        return real(name, *rest, **more)

    open_kernels.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    try:
        engine, rows = run_all(checkpoint, 3, 2)
    finally:
        open_kernels.cache_clear()
    assert isinstance(engine._pass, PaddedPass)
    assert "no locator available" in caplog.text
    for row, other in zip(rows, expected, strict=True):
        same(row, other)


def test_what_it_does_not_know_is_left_to_torch(tmp_path, monkeypatch):
    folder = make(tmp_path / "m", "qwen3_vl")
    model = load_model(folder)
    text = optimise_for_inference(model)
    assert CompiledPass.open(model, None) is None
    assert CompiledPass.open(model, text) is not None
    with monkeypatch.context() as patch:
        patch.setattr(compiled_pass, "is_small_model", lambda model: False)
        assert CompiledPass.open(model, text) is None
    with monkeypatch.context() as patch:
        patch.setattr(text.rotary, "rope_type", "dynamic")
        assert CompiledPass.open(model, text) is None
    biased = load_model(folder)
    biased.lm_head = torch.nn.Linear(*reversed(biased.lm_head.weight.shape))
    assert CompiledPass.open(biased, TextPass(biased)) is None
