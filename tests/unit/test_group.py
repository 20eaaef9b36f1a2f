"""Group-relative advantages: known answers against exact fractions, and their properties."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.config import RlSettings
from flywheel.training.rl.algorithm import ScoredTrajectory
from flywheel.training.rl.algorithms.grpo import Grpo, group_relative_advantages
from flywheel.utils.errors import TrainingError


def test_known_answer():
    """Rewards 1, 0, 0, 1 of one task: mean 1/2, deviation 1/sqrt(3). Those of the other task are all the same."""
    got = group_relative_advantages([1, 3, 0, 3, 0, 1], ["a", "b", "a", "b", "a", "a"])
    assert got == pytest.approx(np.array([1, 0, -1, 0, -1, 1]) * math.sqrt(3) / 2, rel=2e-6)
    assert group_relative_advantages([5.0], ["alone"]).tolist() == [0]
    assert group_relative_advantages([], []).tolist() == []


def oracle(rewards: list[Fraction]) -> list[float]:
    mean = sum(rewards, Fraction(0)) / len(rewards)
    variance = sum(((r - mean) ** 2 for r in rewards), Fraction(0)) / max(len(rewards) - 1, 1)
    return [float(r - mean) / (math.sqrt(variance) + 1e-6) if variance else 0.0 for r in rewards]


@settings(deadline=None)
@given(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=16).filter(lambda some: max(some) - min(some) > 1e-3))
def test_agrees_with_the_libraries(rewards):
    """verl's line, `(r - r.mean()) / (r.std() + 1e-6)` of a torch tensor; TRL has the same with 1e-4."""
    group = torch.tensor(rewards, dtype=torch.float64)
    got = group_relative_advantages(rewards, ["task"] * len(rewards))
    assert got == pytest.approx(((group - group.mean()) / (group.std() + 1e-6)).numpy(), rel=1e-12, abs=1e-12)


_rewards = st.lists(st.integers(-8, 8).map(lambda n: Fraction(n, 8)), min_size=1, max_size=8)


@settings(deadline=None)
@given(st.lists(_rewards, min_size=1, max_size=4), st.randoms())
def test_equals_the_definition_whatever_the_order(groups, random):
    rows = [
        (reward, name, value)
        for name, some in enumerate(groups)
        for reward, value in zip(some, oracle(some), strict=True)
    ]
    random.shuffle(rows)
    got = group_relative_advantages([float(reward) for reward, _, _ in rows], [name for _, name, _ in rows])
    assert got == pytest.approx([value for _, _, value in rows], abs=1e-9)
    for name in range(len(groups)):
        assert sum(got[[n == name for _, n, _ in rows]]) == pytest.approx(0, abs=1e-9)


def test_leave_one_out_known_answer():
    """Rewards 1, 0, 0, 1 of one task: 1 - 1/3 and 0 - 2/3; 5, 2 of another: 3 and -3; one alone: 0."""
    got = group_relative_advantages([1, 5, 0, 2, 0, 1, 7], ["a", "b", "a", "b", "a", "a", "c"], "none")
    assert got == pytest.approx([2 / 3, 3, -2 / 3, -3, -2 / 3, 2 / 3, 0])


@settings(deadline=None)
@given(_rewards)
def test_leave_one_out_is_each_reward_less_the_mean_of_the_others(rewards):
    got = group_relative_advantages([float(one) for one in rewards], ["task"] * len(rewards), "none")
    others = [sum(rewards) - one for one in rewards]
    wanted = [
        float(one - rest / (len(rewards) - 1)) if len(rewards) > 1 else 0.0
        for one, rest in zip(rewards, others, strict=True)
    ]
    assert got == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    ("normalization", "wanted"), [("std", [2**-0.5, -(2**-0.5), -(2**-0.5), 2**-0.5]), ("none", [1, -1, -0.5, 0.5])]
)
def test_grpo_compares_the_episodes_of_one_start(normalization, wanted):
    """Two groups of one task, of different starts: each has its own mean."""
    rewards = [("", 1.0), ("", 0.0), ("t1@3", 0.5), ("t1@3", 1.0)]
    batch = [ScoredTrajectory("task", (0.0, reward), (2, 1), start=start) for start, reward in rewards]
    found = Grpo().advantages(batch, RlSettings(advantage_normalization=normalization))
    assert [[len(turn) for turn in one.advantages] for one in found] == [[2, 1]] * 4
    assert [one.advantages[1][0] for one in found] == pytest.approx(wanted, rel=1e-5)


def test_rewards_must_be_finite():
    with pytest.raises(TrainingError, match="reward of trajectory 1 is not finite"):
        group_relative_advantages([0.0, np.nan], ["a", "a"])
