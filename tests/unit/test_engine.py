"""Continuous batching: what a row's neighbours, its time of joining and what was computed before do not change."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from checkpoints import ARCHITECTURES, make
from PIL import Image as Picture

from flywheel.agent.prompt import Image, Message
from flywheel.policy.devices import is_small_model
from flywheel.policy.encoding import Encoder, collate_sequences
from flywheel.policy.inference import engine as engines
from flywheel.policy.inference.cache import find_positions, make_prompt
from flywheel.policy.inference.engine import BatchRow, InferenceEngine, generate_responses
from flywheel.policy.inference.fused_layers import optimise_for_inference
from flywheel.policy.model import load_model
from flywheel.policy.protocol import SamplingParams
from flywheel.policy.torch_threads import open_pass_pool, use_one_core_in_thread
from flywheel.utils.errors import PolicyError

MB = 1 << 20


def png(seed: int, width: int = 120, height: int = 90) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Picture.fromarray(pixels).save(out, format="PNG")
    return out.getvalue()


def asked(number: int):
    """Contexts of several lengths, with no screen, one, or three of several sizes in several turns."""
    task = "Click the red tile" + " and the next" * (number % 5) + "."
    match number % 4:
        case 0:
            return (Message("user", (task,)),)
        case 1 | 2:
            return (Message("user", (Image(png(number, 60 + 20 * number, 90)), task)),)
        case _:
            turns = [
                part
                for turn in range(2)
                for part in (Message("user", (Image(png(turn)),)), Message("assistant", ("Action: wait()",)))
            ]
            return (*turns, Message("user", (Image(png(number)), task)))


class Checkpoint:
    """A model, its encoder, and contexts as rows."""

    def __init__(self, folder, frozen: bool = True) -> None:
        self.folder, self.model, self.encoder = folder, load_model(folder, device="cpu"), Encoder.from_folder(folder)
        self.text_pass = optimise_for_inference(self.model) if frozen else None

    def prompt(self, context):
        encoded = self.encoder.encode(context)
        keys = [part.png for message in context for part in message.parts if isinstance(part, Image)]
        return make_prompt(self.model, encoded, self.encoder.end_id, keys)

    def row(self, context, **sampling):
        return BatchRow(self.prompt(context), SamplingParams(**sampling))

    def engine(self, **room):
        return InferenceEngine(self.model, self.encoder.end_id, text_pass=self.text_pass, **room)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def checkpoint(request, tmp_path_factory):
    return Checkpoint(make(tmp_path_factory.mktemp("family") / request.param, request.param))


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    return Checkpoint(make(tmp_path_factory.mktemp("one") / "qwen3", "qwen3_vl"))


def finish(engine, ended=()):
    ended = list(ended)
    while engine.rows:
        ended += engine.step()
    return ended


def rows_of(checkpoint, count):
    return [
        checkpoint.row(asked(n), seed=n, max_new_tokens=5 + n % 7, temperature=(n % 4) / 2, ignore_end=True)
        for n in range(count)
    ]


def same(row, other):
    assert row.error is None
    assert row.token_ids == other.token_ids
    assert row.logprobs == pytest.approx(other.logprobs, rel=1e-5, abs=1e-5)


def test_positions_are_those_of_the_library(checkpoint):
    """Twice: what a prompt of the same form before it left is used."""
    for number in [*range(12), *range(12)]:
        encoded = checkpoint.encoder.encode(asked(number))
        ids, kinds = torch.from_numpy(encoded.input_ids), torch.from_numpy(encoded.mm_token_type_ids)
        grid = torch.from_numpy(encoded.image_grid_thw) if len(encoded.image_grid_thw) else None
        expected, _ = checkpoint.model.base_model.get_rope_index(ids[None], kinds[None], image_grid_thw=grid)
        assert torch.equal(find_positions(checkpoint.model, encoded), expected[:, 0])


def test_alone_in_a_batch_and_joining_late_are_the_same(checkpoint):
    alone = rows_of(checkpoint, 16)
    for row in alone:
        engine = checkpoint.engine()
        finish(engine, engine.admit([row]))
    together, late = rows_of(checkpoint, 16), rows_of(checkpoint, 16)
    engine = checkpoint.engine()
    assert {id(row) for row in finish(engine, engine.admit(together))} == {id(row) for row in together}
    engine = checkpoint.engine(prefix_bytes=MB, vision_bytes=MB)
    for begin in range(0, 16, 3):  # three join at each step, while others leave
        engine.admit(late[begin : begin + 3])
        engine.step()
    finish(engine)
    for one, two, three in zip(alone, together, late, strict=True):
        assert len(one.token_ids) == one.sampling.max_new_tokens
        same(one, two)
        same(one, three)


def test_log_probabilities_are_those_of_a_plain_pass(checkpoint):
    rows = rows_of(checkpoint, 8)
    engine = checkpoint.engine()
    finish(engine, engine.admit(rows))
    plain = load_model(checkpoint.folder, device="cpu")
    for number, row in enumerate(rows):
        encoded = checkpoint.encoder.encode(asked(number)).extended(row.token_ids)
        if checkpoint.encoder.image_id in row.token_ids:  # a plain pass would look for its screen
            continue
        with torch.no_grad():
            logprobs = plain(**collate_sequences([encoded], "right")).logits[0].log_softmax(-1)
        expected = [logprobs[len(row.prompt) - 1 + i, token].item() for i, token in enumerate(row.token_ids)]
        assert row.logprobs == pytest.approx(expected, abs=1e-4)


def test_generate_is_the_engine_in_one_call(qwen3):
    prompts = [qwen3.encoder.encode(asked(n)) for n in range(6)]
    samplings = [SamplingParams(seed=n, max_new_tokens=7) for n in range(6)]
    done = generate_responses(qwen3.model, qwen3.encoder.end_id, prompts, samplings)
    rows = [qwen3.row(asked(n), seed=n, max_new_tokens=7) for n in range(6)]
    engine = qwen3.engine()
    finish(engine, engine.admit(rows))
    assert [list(sample.token_ids) for sample in done] == [row.token_ids for row in rows]


def test_generate_refuses_stop_texts(qwen3):
    prompt, stopped = qwen3.encoder.encode(asked(0)), SamplingParams(stop=("x",))
    with pytest.raises(ValueError, match="stop"):
        generate_responses(qwen3.model, qwen3.encoder.end_id, [prompt], [stopped])


def test_samples_of_one_prompt_are_computed_once(checkpoint):
    engine = checkpoint.engine(prefix_bytes=MB, vision_bytes=MB)
    rows = [checkpoint.row(asked(3), seed=n, max_new_tokens=6, ignore_end=True) for n in range(5)]
    finish(engine, engine.admit(rows[:3]))
    assert engine.counts.prefilled == len(rows[0].prompt)
    finish(engine, engine.admit(rows[3:]))  # later: it is still known
    assert engine.counts.prefilled == len(rows[0].prompt)
    assert engine.counts.shared == 4 * len(rows[0].prompt)
    assert engine.vision.encoded == 3
    for row in rows:
        alone = checkpoint.row(asked(3), seed=row.sampling.seed, max_new_tokens=6, ignore_end=True)
        bare = checkpoint.engine(share=False)
        finish(bare, bare.admit([alone]))
        same(row, alone)
    assert len({tuple(row.token_ids) for row in rows}) == 5


def test_a_longer_context_takes_over_what_it_begins_with(checkpoint):
    """Turn by turn, as an episode asks: each context has the earlier one's screens and another ending."""
    turns = []
    engine = checkpoint.engine(prefix_bytes=MB, vision_bytes=MB)
    for turn in range(4):
        context = (*turns, Message("user", (Image(png(turn)), "Buy milk.")))
        before, row = engine.counts.prefilled, checkpoint.row(context, seed=turn, max_new_tokens=5, ignore_end=True)
        finish(engine, engine.admit([row]))
        alone = checkpoint.row(context, seed=turn, max_new_tokens=5, ignore_end=True)
        bare = checkpoint.engine()
        finish(bare, bare.admit([alone]))
        same(row, alone)
        screen = row.prompt.screens[-1]
        if turn:  # all up to the last screen but one was known
            shared = row.prompt.screens[-2].stop
            assert engine.counts.prefilled - before <= len(row.prompt) - shared
            assert screen.start >= shared
        turns += [Message("user", (Image(png(turn)),)), Message("assistant", (f"Action: press(key='{turn}')",))]
    assert (engine.vision.encoded, engine.vision.shared) == (4, 0)


def test_another_screen_is_not_taken_for_the_same(qwen3):
    engine = qwen3.engine(prefix_bytes=MB, vision_bytes=MB)
    contexts = [(Message("user", (Image(png(n)), "Click the red tile.")),) for n in range(2)]
    rows = [qwen3.row(context, temperature=0, max_new_tokens=4) for context in contexts]
    assert np.array_equal(rows[0].prompt.ids, rows[1].prompt.ids)  # only the screens differ
    finish(engine, engine.admit(rows))
    assert engine.counts.prefilled == sum(len(row.prompt) for row in rows)
    assert engine.vision.encoded == 2
    assert rows[0].logprobs != pytest.approx(rows[1].logprobs, abs=1e-3)


def test_prefixes_are_forgotten_for_newer_ones(qwen3):
    first = qwen3.row(asked(1), max_new_tokens=1)
    room = qwen3.engine(prefix_bytes=MB)
    room.admit([first])
    one = room._prefixes._held.used
    engine = qwen3.engine(prefix_bytes=int(1.5 * one))
    for number in (1, 2, 1):
        engine.admit([qwen3.row(asked(number), max_new_tokens=1)])
        assert 0 < engine._prefixes._held.used <= 1.5 * one
    begins_alike, _ = first.prompt.cuts[0]  # the system message
    expected = 2 * len(first.prompt) + len(qwen3.prompt(asked(2))) - 2 * begins_alike
    assert engine.counts.prefilled == expected
    assert set(engine._prefixes._cuts.values()) == set(engine._prefixes._held)


def test_a_row_that_is_given_up_between_two_steps_leaves_the_others_alone(qwen3):
    """The last row moves into its gap, outside of any pass of the model."""
    alone = rows_of(qwen3, 5)
    for row in alone:
        engine = qwen3.engine()
        finish(engine, engine.admit([row]))
    rows, engine = rows_of(qwen3, 5), qwen3.engine()
    engine.admit(rows)
    engine.step()
    first, _, third, *_ = engine.rows
    engine.drop(lambda row: row in (first, third))
    left = [number for number, row in enumerate(rows) if row in engine.rows]
    finish(engine)
    assert len(left) == 3
    for number in left:
        same(rows[number], alone[number])


class Failing(torch.nn.Module):
    """A model that runs out of memory where it is told to."""

    def __init__(self, model, when) -> None:
        super().__init__()
        self.model, self.when, self.config = model, when, model.config

    @property
    def base_model(self):
        def forward(**inputs):
            if self.when(inputs["input_ids"]):
                raise RuntimeError("out of memory")
            return self.model.base_model(**inputs)

        forward.get_image_features = self.model.base_model.get_image_features
        forward.forward = self.model.base_model.forward  # its signature is looked at
        return forward

    def get_output_embeddings(self):
        return self.model.get_output_embeddings()


def test_a_prompt_that_fails_fails_alone(qwen3):
    rows = rows_of(qwen3, 6)
    worst = max(len(row.prompt) for row in rows)
    engine = InferenceEngine(Failing(qwen3.model, lambda ids: ids.shape[1] >= worst), qwen3.encoder.end_id)
    ended = finish(engine, engine.admit(rows))
    assert {id(row) for row in ended} == {id(row) for row in rows}
    for row, expected in zip(rows, rows_of(qwen3, 6), strict=True):
        if len(row.prompt) == worst:
            assert isinstance(row.error, PolicyError)
            assert "out of memory" in str(row.error)
        else:
            bare = qwen3.engine()
            finish(bare, bare.admit([expected]))
            same(row, expected)


def test_a_step_that_fails_ends_the_batch_and_the_engine_goes_on(qwen3):
    fails = [True]
    model = Failing(qwen3.model, lambda ids: ids.shape[1] == 1 and bool(fails) and fails.pop())
    engine = InferenceEngine(model, qwen3.encoder.end_id)
    rows = rows_of(qwen3, 3)
    ended = finish(engine, engine.admit(rows))
    assert all("out of memory" in str(row.error) for row in ended)
    assert len(ended) == 3
    (again,) = rows_of(qwen3, 1)
    assert finish(engine, engine.admit([again])) == [again]
    assert again.error is None


def test_numbers_that_are_not_finite_end_one_row(qwen3, monkeypatch):
    engine = qwen3.engine()
    head, calls = engine._pass.logits, []

    def spoiled(hidden):
        logits = head(hidden)
        calls.append(len(hidden))
        if len(calls) == 3:
            logits[1] = float("nan")
        return logits

    monkeypatch.setattr(engine._pass, "logits", spoiled)
    rows = [qwen3.row(asked(n), seed=n, max_new_tokens=8, ignore_end=True) for n in range(3)]
    finish(engine, engine.admit(rows))
    assert [row.error is None for row in rows] == [True, False, True]
    assert "not finite" in str(rows[1].error)
    assert [len(row.token_ids) for row in rows] == [8, 2, 8]


def test_long_prompts_are_computed_in_parts(qwen3, monkeypatch):
    monkeypatch.setattr(engines, "PREFILL_TOKENS", 100)
    widths = []
    model = Failing(qwen3.model, lambda ids: widths.append(ids.numel()))
    rows = rows_of(qwen3, 12)
    engine = InferenceEngine(model, qwen3.encoder.end_id)
    finish(engine, engine.admit(rows))
    whole = rows_of(qwen3, 12)
    bare = qwen3.engine()
    monkeypatch.setattr(engines, "PREFILL_TOKENS", 100_000)
    finish(bare, bare.admit(whole))
    for row, other in zip(rows, whole, strict=True):
        same(row, other)
    assert max(widths) <= max(100, *(len(row.prompt) for row in rows))


def test_threads_side_by_side_leave_the_number_of_others_alone():
    every = torch.get_num_threads()
    assert open_pass_pool(1) is None
    torch.set_num_threads(2)
    try:
        pool = open_pass_pool(2)
        assert list(pool.map(lambda _: torch.get_num_threads(), range(4))) == [1] * 4
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(every)


def test_a_thread_that_keeps_to_one_core_leaves_the_number_of_others_alone():
    every = torch.get_num_threads()
    torch.set_num_threads(2)

    def keeps():
        use_one_core_in_thread()
        torch.zeros(3) + 1
        return torch.get_num_threads()

    try:
        with ThreadPoolExecutor(1) as thread, ThreadPoolExecutor(1) as later:
            assert thread.submit(keeps).result() == 1
            assert later.submit(torch.get_num_threads).result() == torch.get_num_threads() == 2
            assert thread.submit(torch.get_num_threads).result() == 1
    finally:
        torch.set_num_threads(every)


def test_a_large_model_takes_all_cores():
    small = torch.nn.Linear(1000, 1000)
    with torch.device("meta"):
        large = torch.nn.Linear(10_000, 11_000)
    assert is_small_model(small)
    assert not is_small_model(large)
