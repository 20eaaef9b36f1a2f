"""GAE against exact fractions from an oracle written apart, and its properties."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.training.rl.algorithms.ppo import compute_gae, estimate_advantages, estimate_turns, length_adaptive_lambda
from flywheel.utils.errors import TrainingError

_value = st.integers(-20, 20).map(lambda n: Fraction(n, 8))
_rate = st.integers(0, 8).map(lambda n: Fraction(n, 8))
ONES = {"gamma": 1.0, "lambda_critic": 1.0, "alpha": 1.0}


def oracle(rewards, values, mask, gamma, lam, bootstrap=Fraction(0)):
    """The definition, as a double sum over the trainable tokens: no recursion, no floats."""
    at = [i for i, trainable in enumerate(mask) if trainable]
    following = [values[i] for i in at[1:]] + [bootstrap]
    deltas = [rewards[i] + gamma * after - values[i] for i, after in zip(at, following, strict=True)]
    return [
        sum(((gamma * lam) ** k * deltas[j + k] for k in range(len(deltas) - j)), Fraction(0))
        for j in range(len(deltas))
    ]


@st.composite
def trajectories(draw):
    n = draw(st.integers(1, 12))
    mask = draw(st.lists(st.booleans(), min_size=n, max_size=n).filter(any))
    rewards, values = (draw(st.lists(_value, min_size=n, max_size=n)) for _ in range(2))
    return rewards, values, mask


def run(rewards, values, mask, gamma, lam, bootstrap=Fraction(0)):
    hidden = [np.nan if not m else float(v) for v, m in zip(values, mask, strict=True)]
    got = compute_gae(
        [float(r) for r in rewards], hidden, mask, gamma=float(gamma), lam=float(lam), bootstrap=float(bootstrap)
    )
    assert (got[~np.array(mask)] == 0).all()
    return got[np.array(mask)]


def test_known_answer():
    """PAPER: observation tokens hold the value 9, which must not leak in."""
    mask, values = [1, 1, 0, 0, 1, 1], [0.2, 0.3, 9, 9, 0.5, 0.8]
    rewards = [0, 0, 0, 0, 0, 1]
    exact = oracle(
        [Fraction(r) for r in rewards], [Fraction(str(v)) for v in values], mask, Fraction(1), Fraction(1, 2)
    )
    assert exact == [Fraction(3, 10), Fraction(2, 5), Fraction(2, 5), Fraction(1, 5)]
    got = compute_gae(rewards, values, mask, gamma=1, lam=0.5)
    assert got[[0, 1, 4, 5]] == pytest.approx([0.3, 0.4, 0.4, 0.2], abs=1e-15)
    assert (got[2:4] == 0).all()
    # alpha 1/2 and l 4 give lambda_policy 1/2, while lambda_critic 1 makes every return 1.
    both = estimate_advantages(rewards, values, mask, gamma=1, lambda_critic=1, alpha=0.5)
    assert both.advantages == pytest.approx(got, abs=1e-15)
    assert both.returns[[0, 1, 4, 5]] == pytest.approx([1, 1, 1, 1], abs=1e-15)
    assert both.horizon == 2


@settings(deadline=None)
@given(trajectories(), _rate, _rate, _value)
def test_equals_the_definition(trajectory, gamma, lam, bootstrap):
    exact = oracle(*trajectory, gamma, lam, bootstrap)
    assert run(*trajectory, gamma, lam, bootstrap) == pytest.approx([float(a) for a in exact], abs=1e-11)


@settings(deadline=None)
@given(trajectories(), _rate, _value)
def test_lambda_0_gives_the_deltas(trajectory, gamma, bootstrap):
    rewards, values, mask = trajectory
    kept = [(r, v) for r, v, m in zip(rewards, values, mask, strict=True) if m]
    after = [v for _, v in kept[1:]] + [bootstrap]
    deltas = [float(r + gamma * n - v) for (r, v), n in zip(kept, after, strict=True)]
    assert run(*trajectory, gamma, Fraction(0), bootstrap) == pytest.approx(deltas, abs=1e-12)


@settings(deadline=None)
@given(trajectories(), _value)
def test_gamma_and_lambda_1_give_return_minus_value(trajectory, bootstrap):
    rewards, values, mask = trajectory
    kept = [(r, v) for r, v, m in zip(rewards, values, mask, strict=True) if m]
    expected = [float(sum(r for r, _ in kept[i:]) + bootstrap - kept[i][1]) for i in range(len(kept))]
    assert run(*trajectory, Fraction(1), Fraction(1), bootstrap) == pytest.approx(expected, abs=1e-11)


@settings(deadline=None)
@given(trajectories(), _rate, _rate, st.integers(0, 11))
def test_more_observation_tokens_change_nothing(trajectory, gamma, lam, where):
    rewards, values, mask = trajectory
    where = min(where, len(mask))
    wider = ([*part[:where], filler, *part[where:]] for part, filler in ((rewards, 7), (values, 7), (mask, False)))
    assert run(*wider, gamma, lam).tolist() == run(*trajectory, gamma, lam).tolist()


@pytest.mark.parametrize(
    ("length", "alpha", "lam", "horizon"),
    [(100, 0.05, 0.8, 5), (400, 0.05, 0.95, 20), (10, 0.05, 0, 1), (8, 1.5, 11 / 12, 12)],
)
def test_length_adaptive(length, alpha, lam, horizon):
    """The horizon is alpha l tokens, never under one."""
    got = length_adaptive_lambda(length, alpha)
    assert (got.lam, got.horizon) == pytest.approx((lam, horizon))


@settings(deadline=None)
@given(st.lists(st.lists(_value, min_size=1, max_size=4), min_size=1, max_size=5), _rate, _value, _value, st.data())
def test_a_trajectory_cut_into_samples_has_the_advantages_of_the_whole(values, gamma, bootstrap, outcome, data):
    """Against the oracle over the whole, with lambda_policy of the whole trajectory's length. Advantages end in V,
    targets in what was earned."""
    rewards = data.draw(st.lists(_value, min_size=len(values), max_size=len(values)))
    alpha = Fraction(3, 2)
    length = sum(map(len, values))
    lam = max(Fraction(0), 1 - 1 / (alpha * length))
    placed = [
        r for reward, turn in zip(rewards, values, strict=True) for r in [Fraction(0)] * (len(turn) - 1) + [reward]
    ]
    flat = [value for turn in values for value in turn]
    exact = oracle(placed, flat, [True] * length, gamma, lam, bootstrap)
    got = estimate_turns(
        [float(r) for r in rewards],
        [np.array(turn, dtype=float) for turn in values],
        gamma=float(gamma),
        lambda_critic=1.0,
        alpha=float(alpha),
        bootstrap=float(bootstrap),
        outcome=float(outcome),
    )
    assert [len(part) for part in got.advantages] == [len(turn) for turn in values]
    assert np.concatenate(got.advantages) == pytest.approx([float(a) for a in exact], abs=1e-10)
    placed[-1] += outcome
    targets = [a + v for a, v in zip(oracle(placed, flat, [True] * length, gamma, Fraction(1)), flat, strict=True)]
    assert np.concatenate(got.returns) == pytest.approx([float(t) for t in targets], abs=1e-10)


def test_estimated_turn_by_turn_the_outcome_would_not_reach_the_first():
    """Known answer: two turns of one token, reward 1 at the end, V = 0, gamma 1, fixed lambda 1/2."""
    rates = {"gamma": 1.0, "lambda_critic": 1.0, "alpha": 1.5, "lambda_policy": 0.5}
    zero = np.zeros(1)
    assert np.concatenate(estimate_turns([0.0, 1.0], [zero, zero], **rates).advantages).tolist() == [0.5, 1.0]
    assert estimate_turns([0.0], [zero], **rates).advantages[0].tolist() == [0.0]


def test_cut_off_the_advantages_end_in_v_and_the_targets_in_the_outcome():
    """Known answer: V = 1/2, 3/4 and 5/8 behind the limit, nothing earned; lambda 1/2."""
    got = estimate_advantages([0.0, 0.0], [0.5, 0.75], [1, 1], bootstrap=0.625, lambda_policy=0.5, **ONES)
    assert got.advantages.tolist() == [0.25 - 0.0625, -0.125]
    assert got.returns.tolist() == [0, 0]
    # A V that knows nothing but a constant stays no fixed point of its own targets.
    assert estimate_advantages([0.0], [0.9], [1], bootstrap=0.9, **ONES).returns.tolist() == [0]
    assert estimate_advantages([0.0], [0.9], [1], bootstrap=0.9, outcome=0.25, **ONES).returns.tolist() == [0.25]


def test_a_fixed_lambda():
    rewards, values, rates = [0.0, 0.0, 1.0], [0.1, 0.2, 0.3], {"gamma": 1.0, "lambda_critic": 1.0, "alpha": 0.05}
    fixed = estimate_advantages(rewards, values, [1, 1, 1], lambda_policy=0.5, **rates)
    assert fixed.advantages.tolist() == compute_gae(rewards, values, [1, 1, 1], gamma=1.0, lam=0.5).tolist()
    assert fixed.horizon == 2
    assert (
        estimate_advantages(rewards, values, [1, 1, 1], lambda_policy=1.0, **rates).horizon == 3
    )  # no further than it is long


def test_no_trainable_token():
    with pytest.raises(TrainingError, match="no token is trainable"):
        estimate_advantages([1.0], [0.0], [0], **ONES)


def test_number_that_is_read_must_be_finite():
    assert np.isfinite(estimate_advantages([np.nan, 1.0], [np.inf, 0.5], [0, 1], **ONES).advantages).all()
    for wrong in ({"values": [0.5, np.nan]}, {"bootstrap": np.nan}, {"outcome": np.inf}):
        with pytest.raises(TrainingError, match="not finite"):
            estimate_advantages(**{"rewards": [0.0, 1.0], "values": [0.5, 0.5], "mask": [1, 1], **ONES, **wrong})
