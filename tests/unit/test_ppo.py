"""The PPO objective: known answers, and that splitting, ordering and padding change neither loss nor gradient."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from night import examples

from flywheel.training.modeling.policy_forward import token_logprobs
from flywheel.training.rl.losses import PolicyTerms, explained_variance, policy_loss, positive_nll, value_loss

EPS = {"eps_low": 0.2, "eps_high": 0.28}


def one(ratio: float, advantage: float) -> tuple[float, float, PolicyTerms]:
    """Loss and d loss / d log-probability of a single token."""
    new = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True]])
    loss, terms = policy_loss(
        new, torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), advantage).double(), mask, tokens=1, **EPS
    )
    loss.backward()
    return float(loss.detach()), float(new.grad), terms


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.25, 1.0, -1.25, -1.25),  # under 1 + eps_high: clip-higher leaves it free, eps 0.2 would not
        (1.5, 1.0, -1.28, 0.0),
        (0.5, 1.0, -0.5, -0.5),  # a bad ratio of a good action is never clipped
        (0.5, -1.0, 0.8, 0.0),
        (1.5, -1.0, 1.5, 1.5),
        (3.5, -1.0, 3.0, 0.0),  # dual clip: a bad action that has become likelier counts three times at most
        (3.5, -2.0, 6.0, 0.0),
        (3.5, 1.0, -1.28, 0.0),  # and nothing changes where A > 0
    ],
)
def test_clipping(ratio, advantage, loss, gradient):
    got_loss, got_gradient, terms = one(ratio, advantage)
    assert (got_loss, got_gradient) == pytest.approx((loss, gradient))
    assert terms.clipped == (gradient == 0)
    assert terms.kl == pytest.approx(ratio - 1 - math.log(ratio))


@pytest.mark.parametrize(
    ("weight", "ratio", "advantage", "loss", "gradient"),
    [
        (0.5, 1.0, 1.0, -0.5, -0.5),
        (0.5, 1.0, -1.0, 0.5, 0.5),  # PPO on the whole ratio would leave no gradient: 0.5 < 1 - eps_low
        (1.2, 1.25, 1.0, -1.5, -1.5),  # nor here: 1.5 > 1 + eps_high; the step's own move is 1.25
        (2.0, 1.0, 1.0, -1.28, -1.28),  # the weight is held to 1 + eps_high
        (2.0, 1.5, 1.0, -1.28 * 1.28, 0.0),
        (2.0, 1.0, -1.0, 2.0, 2.0),
        (5.0, 1.0, -1.0, 3.0, 3.0),  # and to dual_clip
        (0.5, 0.5, -1.0, 0.4, 0.0),
        (0.5, 4.0, -1.0, 1.5, 0.0),  # dual clip bounds the step's own move, the weight is held apart from it
    ],
)
def test_older_weights_weigh_and_the_steps_own_move_is_clipped(weight, ratio, advantage, loss, gradient):
    old, proximal = torch.zeros(1).double(), torch.tensor([math.log(weight)]).double()
    new = (proximal + math.log(ratio)).requires_grad_()
    every = torch.tensor([True])
    got, terms = policy_loss(
        new, old, torch.tensor([advantage]).double(), every, tokens=1, proximal=proximal, dual_clip=3.0, **EPS
    )
    got.backward()
    assert (float(got.detach()), float(new.grad)) == pytest.approx((loss, gradient))
    assert terms.clipped == (gradient == 0)
    assert terms.truncated == (weight > (1.28 if advantage > 0 else 3.0))
    moved = weight * ratio
    assert terms.kl == pytest.approx(moved - 1 - math.log(moved))


@settings(deadline=None)
@given(st.floats(-3, 3), st.floats(-5, 5), st.floats(1.01, 10))
def test_dual_clip_is_the_formula_of_its_source(log_ratio, advantage, dual_clip):
    """Ye et al. 2020, equation 5: max(min(r A, clip(r) A), c A) where A < 0."""
    ratio, clipped = math.exp(log_ratio), min(max(math.exp(log_ratio), 0.8), 1.28)
    wanted = min(ratio * advantage, clipped * advantage)
    if advantage < 0:
        wanted = max(wanted, dual_clip * advantage)
    new, old, every = torch.tensor([log_ratio]).double(), torch.zeros(1).double(), torch.tensor([True])
    loss, _ = policy_loss(new, old, torch.tensor([advantage]).double(), every, tokens=1, dual_clip=dual_clip, **EPS)
    assert float(loss) == pytest.approx(-wanted, rel=1e-6, abs=1e-12)


def test_of_the_newest_weights_it_is_plain_ppo_bit_for_bit():
    (new, old, adv, _), mask = batch(4, 5, 0)
    plain, decoupled = (policy_loss(new, old, adv, mask, tokens=9, proximal=near, **EPS) for near in (None, old))
    assert torch.equal(plain[0], decoupled[0])
    assert plain[1] == decoupled[1]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_ratio_beyond_all_numbers_leaves_them_finite(sign):
    new = torch.tensor([[0.0, -1.0]], requires_grad=True)
    loss, _ = policy_loss(
        new,
        torch.tensor([[-200.0, -1.0]]),
        torch.full((1, 2), sign),
        torch.ones(1, 2, dtype=torch.bool),
        tokens=2,
        **EPS,
    )
    loss.backward()
    assert torch.isfinite(loss)
    assert new.grad.tolist()[0] == pytest.approx([0.0, -sign / 2])


def batch(rows: int, length: int, seed: int):
    rng = np.random.default_rng(seed)
    mask = rng.random((rows, length)) < 0.6
    mask[0, 0] = True
    parts = [rng.normal(size=(rows, length)) * 0.3 for _ in range(4)]
    for part in parts[1:]:
        part[~mask] = np.nan  # never to be read
    return [torch.tensor(part) for part in parts], torch.tensor(mask)


def gradient(rows: list[list[int]], parts, mask, padding: int) -> tuple[float, torch.Tensor, PolicyTerms]:
    """Sum of the losses over micro-batches of the given rows, each padded wider; and its gradient."""
    new, old, adv, near = parts
    new = new.clone().requires_grad_()
    total, terms = torch.zeros((), dtype=torch.float64), PolicyTerms()
    positive = torch.arange(len(mask)) % 2 == 0
    for chosen in rows:
        wide = [torch.nn.functional.pad(p[chosen], (0, padding), value=math.nan) for p in (new, old, adv, near)]
        seen = torch.nn.functional.pad(mask[chosen], (0, padding), value=False)
        loss, got = policy_loss(*wide[:3], seen, tokens=int(mask.sum()), proximal=wide[3], **EPS)
        nll = positive_nll(wide[0], seen, positive[chosen], tokens=int(mask[positive].sum()))
        squared = value_loss(wide[0], wide[2], seen, tokens=int(mask.sum()))
        total, terms = total + loss + 0.1 * nll + squared, terms + got
    total.backward()
    return float(total.detach()), new.grad, terms


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(2, 7), st.integers(1, 5), st.integers(0, 3), st.integers(0, 10**6), st.data())
def test_split_order_and_padding_change_nothing(rows, length, padding, seed, data):
    parts, mask = batch(rows, length, seed)
    whole = gradient([list(range(rows))], parts, mask, 0)
    order = data.draw(st.permutations(range(rows)))
    cut = data.draw(st.integers(1, rows - 1))
    split = gradient([list(order[:cut]), list(order[cut:])], parts, mask, padding)
    assert split[0] == pytest.approx(whole[0], abs=1e-12)
    assert torch.isfinite(whole[1]).all()
    torch.testing.assert_close(split[1], whole[1], rtol=0, atol=1e-12)
    assert split[2].means() == pytest.approx(whole[2].means(), abs=1e-9)


def test_token_level_mean_counts_tokens_not_samples():
    """One sample of 3 tokens and one of 1 weigh 3 to 1 (DAPO), not 1 to 1."""
    mask = torch.tensor([[True, True, True], [True, False, False]])
    advantages = torch.tensor([[1.0, 1.0, 1.0], [-1.0, 0.0, 0.0]])
    loss, _ = policy_loss(torch.zeros(2, 3), torch.zeros(2, 3), advantages, mask, tokens=4, **EPS)
    assert float(loss) == pytest.approx(-(3 - 1) / 4)


def test_positive_nll_only_of_correct_samples():
    logprobs, mask = torch.tensor([[-1.0, -3.0], [-100.0, -100.0]]), torch.ones(2, 2, dtype=torch.bool)
    assert float(positive_nll(logprobs, mask, torch.tensor([True, False]), tokens=2)) == 2.0
    assert float(positive_nll(logprobs, mask, torch.tensor([False, False]), tokens=0)) == 0.0


def test_a_pack_s_tokens_are_those_of_the_padded_batch():
    """Flat arrays, as a pack gives them, and padded ones: the same losses."""
    (new, old, adv, _), mask = batch(3, 4, 0)
    positive = torch.tensor([True, False, True])
    each = positive[:, None].expand(-1, 4)
    padded, flat = (
        (new, old, adv, mask),
        (new[mask], old[mask], adv[mask], torch.ones(int(mask.sum()), dtype=torch.bool)),
    )
    one, two = (policy_loss(*arrays, tokens=7, **EPS) for arrays in (padded, flat))
    assert float(one[0]) == pytest.approx(float(two[0]))
    assert one[1] == two[1]
    assert positive_nll(new, mask, positive, tokens=5) == positive_nll(flat[0], flat[3], each[mask], tokens=5)


def test_token_logprobs_and_entropy():
    logits = torch.tensor([[math.log(0.5), math.log(0.25), math.log(0.25)]])
    logp, entropy = token_logprobs(logits, torch.tensor([1]))
    assert float(logp) == pytest.approx(math.log(0.25))
    assert float(entropy) == pytest.approx(1.5 * math.log(2))


def test_explained_variance():
    returns = np.array([0.0, 1.0, 0.0, 1.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(np.full(4, 0.3), returns) == 0.0
    assert explained_variance(1 - returns, returns) == -3.0
    assert math.isnan(explained_variance(returns, np.ones(4)))
