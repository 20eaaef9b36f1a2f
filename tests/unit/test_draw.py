"""Supervised training draws first: the mix holds its shares, each step its weight."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flywheel.config import SupervisedSettings
from flywheel.training.data import ExampleRef, WeightedSteps, draw_mixture, merge_weighted_steps

NOTHING = WeightedSteps([], np.zeros(0, int), np.zeros(0))


def pool(kind: str, steps: list[int], weight: float | list[float] = 1.0) -> WeightedSteps:
    names = [f"{kind}{number}" for number in range(len(steps))]
    return WeightedSteps(names, np.array(steps), np.broadcast_to(weight, len(steps)).astype(float))


def general(n: int) -> WeightedSteps:
    return pool("general", [1] * n)


def as_steps(pool: WeightedSteps) -> dict[tuple[str, int], float]:
    """Each step and its weight, one by one."""
    lines = zip(pool.names, pool.steps.tolist(), pool.weights.tolist(), strict=True)
    return {(name, number): weight for name, steps, weight in lines for number in range(steps)}


@given(
    trajectories=st.lists(st.tuples(st.integers(1, 20), st.sampled_from([0.02, 0.5, 1.0])), min_size=1, max_size=30),
    of_general=st.integers(1, 30),
    n=st.integers(1, 100),
    fraction=st.floats(0, 1),
    repeats=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_mix_holds_its_proportion_and_each_step_its_weight(trajectories, of_general, n, fraction, repeats, seed):
    block = SupervisedSettings(num_examples=n, agent_fraction=fraction, max_repeats=repeats)
    agent = pool("agent", [steps for steps, _ in trajectories], [weight for _, weight in trajectories])
    chosen = draw_mixture(agent, general(of_general), block, seed)
    assert chosen == draw_mixture(agent, general(of_general), block, seed)
    of_agent = min(round(n * fraction), repeats * sum(steps for steps, _ in trajectories))
    assert (sum(not one.general for one in chosen), len(chosen)) == (of_agent, n)
    times = Counter((one.name, one.number) for one in chosen)
    for source, size in ((agent, of_agent), (general(of_general), n - of_agent)):
        every = as_steps(source)
        total = sum(every.values())
        for step, weight in every.items():
            assert abs(times.pop(step, 0) - size * weight / total) < 1 + 1e-6
    assert not times  # no step that is not there


def test_over_many_seeds_steps_come_as_often_as_drawing_one_by_one_has_them():
    """300 samples a seed of 41 steps; a step's mean over 200 seeds against 200 plain weighted draws."""
    agent = pool("agent", [1, 20, 7, 13], [1.0, 0.02, 0.5, 0.02])
    block = SupervisedSettings(num_examples=30, agent_fraction=1.0)
    times = Counter(
        (one.name, one.number) for seed in range(200) for one in draw_mixture(agent, general(1), block, seed)
    )
    every = as_steps(agent)
    rng, total = np.random.default_rng(0), sum(every.values())
    plain = rng.multinomial(30 * 200, [weight / total for weight in every.values()])
    ours = np.array([times[step] for step in every])
    assert sum(times.values()) == 30 * 200
    assert np.abs(ours - plain).max() < 6 * np.sqrt(plain.max())


def test_mix_of_one_source_is_filled_by_it_and_said(caplog):
    block = SupervisedSettings(num_examples=10, agent_fraction=0.8)
    assert all(one.general for one in draw_mixture(NOTHING, general(3), block, 0))
    assert "there are no agent samples" in caplog.text
    alone = draw_mixture(pool("agent", [2, 1]), NOTHING, block, 0)
    assert {one[:2] for one in alone} == {("agent0", 0), ("agent0", 1), ("agent1", 0)}
    assert len(alone) == 10
    assert draw_mixture(NOTHING, NOTHING, block, 0) == []


def test_what_has_no_step_to_learn_from_is_never_drawn():
    agent = pool("agent", [0, 1, 0])
    assert set(draw_mixture(agent, NOTHING, SupervisedSettings(num_examples=9, agent_fraction=1.0), 4)) == {
        ExampleRef("agent1", 0, False)
    }


@given(own=st.integers(1, 30), people=st.integers(1, 30), share=st.floats(0, 0.95))
def test_demonstrations_have_their_share_whatever_their_number(own, people, share):
    both = merge_weighted_steps(pool("own", [3] * own), pool("people", [2] * people, 0.3), share)
    every = as_steps(both)
    of_people = sum(weight for (name, _), weight in every.items() if name.startswith("people"))
    assert of_people == pytest.approx(share * sum(every.values()))
    assert len(every) == 3 * own + 2 * people


def test_either_alone_is_all_there_is():
    one = pool("own", [2, 5])
    assert merge_weighted_steps(one, NOTHING, 0.5) is one
    assert merge_weighted_steps(NOTHING, one, 0.5) is one
