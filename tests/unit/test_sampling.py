"""What may be sampled, beside transformers' own processors of logits."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from flywheel.policy.inference.engine import BatchRow, _reshape_logits
from flywheel.policy.protocol import SamplingParams
from flywheel.utils.errors import BadInput


def row(sampling: SamplingParams, prompt: list[int], answer: list[int]) -> BatchRow:
    return BatchRow(SimpleNamespace(ids=torch.tensor(prompt)), sampling, token_ids=answer)


@given(
    seed=st.integers(0, 2**30),
    temperature=st.floats(0.2, 3),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.05, 1),
    min_p=st.floats(0, 0.5),
    penalty=st.floats(0.5, 2),
)
def test_tokens_that_may_be_sampled_are_those_of_the_library(seed, temperature, top_k, top_p, min_p, penalty):
    dice = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(1, 50, generator=dice)
    prompt, answer = torch.randint(50, (2, 8), generator=dice).tolist()
    sampling = SamplingParams(temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty)
    own = _reshape_logits(logits, [row(sampling, prompt, answer)]) / temperature
    library = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(penalty), TemperatureLogitsWarper(temperature)])
    library.append(MinPLogitsWarper(min_p))
    library += [TopKLogitsWarper(top_k)] if top_k else []
    library.append(TopPLogitsWarper(top_p))
    expected = library(torch.tensor([prompt + answer]), logits)
    differ = own.isinf() != expected.isinf()
    # The library adds up from the least likely one: at a bound that a sum meets, rounding decides.
    assert int(differ.sum()) <= 1
    assert torch.allclose(own[~differ & ~own.isinf()], expected[~differ & ~own.isinf()], atol=1e-5)


def test_penalties_are_taken_off_what_the_answer_holds():
    logits = torch.zeros(2, 6)
    asked = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    shaped = _reshape_logits(logits, [row(asked, [0, 1], [2, 3, 3]), row(SamplingParams(), [0], [5])])
    assert shaped.tolist() == [[0, 0, -0.75, -1.0, 0, 0], [0] * 6]
    assert logits.eq(0).all()


def test_what_asks_for_nothing_is_left_as_it_is():
    logits = torch.randn(2, 6)
    assert _reshape_logits(logits, [row(SamplingParams(), [0], [1])] * 2) is logits


@pytest.mark.parametrize(
    ("name", "value"),
    [("top_p", 0), ("top_k", -1), ("min_p", 1.5), ("presence_penalty", 3), ("repetition_penalty", 0), ("stop", ("",))],
)
def test_what_is_out_of_range_is_named(name, value):
    with pytest.raises(BadInput) as error:
        dataclasses.replace(SamplingParams(), **{name: value})
    assert error.value.where == name
