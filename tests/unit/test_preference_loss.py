"""The preference losses: TRL's numbers, the way they push, and what they do not depend on."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flywheel.config import AdapterSettings, PreferenceSettings, Settings
from flywheel.training.data import Example, PreferencePair, ShuffledDataset
from flywheel.training.preference import PairedDataset, preference_loss

NOW = torch.tensor([[-12.5, -10.0], [-3.25, -9.5], [-40.0, -38.5], [-7.5, -7.5]])
REFERENCE = torch.tensor([[-14.0, -9.0], [-3.0, -8.0], [-41.0, -38.0], [-7.25, -8.5]])
TOKENS = torch.tensor([[8.0, 7.0], [3.0, 5.0], [20.0, 21.0], [4.0, 4.0]])
# What TRL 0.19.1 gives for these: DPOTrainer.dpo_loss (sigmoid) of the sums, CPOTrainer.cpo_loss (simpo) of the means.
TRL = [
    ({"beta": 0.1}, [0.575939416885376, 0.6325990557670593, 0.62095707654953, 0.7575990557670593]),
    ({"beta": 0.5}, [0.25192907452583313, 0.42870068550109863, 0.38687101006507874, 1.0537006855010986]),
    (
        {"loss": "simpo", "beta": 2.0, "margin": 1.0},
        [1.5158368349075317, 0.4258032441139221, 1.567295789718628, 1.3132617473602295],
    ),
    (
        {"loss": "simpo", "beta": 2.5, "margin": 0.5},
        [1.1952556371688843, 0.19394056499004364, 1.2530313730239868, 0.9740769863128662],
    ),
]
BOTH = pytest.mark.parametrize("kind", ["dpo", "simpo"])
sums = st.floats(-200, 0)


@pytest.mark.parametrize(("chosen", "expected"), TRL)
def test_it_is_trls(chosen, expected):
    got = preference_loss(NOW, REFERENCE, TOKENS, PreferenceSettings(**chosen))
    assert got.tolist() == pytest.approx(expected, rel=1e-6)


def test_at_the_reference_dpo_is_log_two():
    assert preference_loss(NOW, NOW, TOKENS, PreferenceSettings()).tolist() == pytest.approx([math.log(2)] * 4)


@BOTH
@given(st.lists(st.tuples(sums, sums, sums, sums), min_size=1, max_size=5))
def test_a_step_down_raises_the_kept_one_and_lowers_the_other(kind, rows):
    numbers = torch.tensor(rows, dtype=torch.float64)
    now = numbers[:, :2].clone().requires_grad_()
    preference_loss(
        now, numbers[:, 2:], torch.full((len(rows), 2), 5.0), PreferenceSettings(loss=kind)
    ).sum().backward()
    assert (now.grad[:, 0] <= 0).all()
    assert (now.grad[:, 1] >= 0).all()
    assert torch.allclose(now.grad.sum(1), torch.zeros(len(rows), dtype=torch.float64))  # of equal lengths


@given(sums, sums, sums, sums, st.floats(-50, 50), st.floats(-50, 50))
def test_tokens_that_both_begin_with_change_no_dpo(one, other, before, other_before, shared, shared_before):
    """The log-probability of a prefix that both responses have is in both sums, now and before."""
    now, reference = torch.tensor([[one, other]]).double(), torch.tensor([[before, other_before]]).double()
    plain = preference_loss(now, reference, torch.ones(1, 2), PreferenceSettings())
    longer = preference_loss(now + shared, reference + shared_before, torch.ones(1, 2), PreferenceSettings())
    assert torch.allclose(plain, longer)


@given(sums, sums, sums, sums, st.floats(0.01, 5))
def test_the_two_ways_round_a_dpo_pair_differ_by_its_margin(one, other, before, other_before, beta):
    """-log s(z) and -log s(-z) differ by z."""
    chosen = PreferenceSettings(beta=beta)
    now, reference = torch.tensor([[one, other]]).double(), torch.tensor([[before, other_before]]).double()
    there = preference_loss(now, reference, torch.ones(1, 2), chosen)
    back = preference_loss(now.flip(1), reference.flip(1), torch.ones(1, 2), chosen)
    assert float(back - there) == pytest.approx(beta * (one - other - before + other_before), abs=1e-4)


@given(st.integers(1, 7), st.integers(1, 30), st.integers(1, 5), st.integers(1, 4), st.integers(0, 9))
def test_each_pair_comes_equally_often_and_not_too_often(batches, pairs, per_step, repeats, seed):
    made = [PreferencePair(Example(None, (1,), None, f"t{n}", 0, "games"), (2,)) for n in range(pairs)]
    examples = ShuffledDataset([made[0].chosen] * batches, 1, 0)
    paired = PairedDataset(examples, made, PreferenceSettings(pairs=per_step), repeats, seed)
    came = Counter(number for index in range(batches) for number in paired.pair_numbers(index))
    assert came.total() == min(batches * per_step, repeats * pairs) == paired.trajectory_samples.total()
    often = [came[number] for number in range(pairs)]
    assert max(often) - min(often) <= 1
    assert max(often) <= repeats
    assert {paired.get_batch(index)[0].trajectory_id for index in range(batches)} == {"t0"}


def test_the_fingerprint_tells_the_pairs_apart():
    one = Example(None, (1, 3), None, "t", 0, "games")
    examples = ShuffledDataset([one], 1, 0)

    def of(rejected=(2,), **chosen):
        return PairedDataset(examples, [PreferencePair(one, rejected)], PreferenceSettings(**chosen), 3, 5).fingerprint

    assert of() == of()
    assert len({of(), of((4,)), of(beta=0.2), of(loss="simpo"), examples.fingerprint}) == 5


def test_dropout_is_refused():
    adapter = AdapterSettings(method="lora", dropout=0.1)
    assert Settings(adapter=adapter).preference.weight == 0
    with pytest.raises(ValueError, match=r"adapter\.dropout 0"):
        Settings(adapter=adapter, preference=PreferenceSettings(weight=0.5))
