from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flywheel.config import PolicySettings, RlSettings, Settings
from flywheel.rewards.shaping import length_penalty, reward_as_earned, reward_at_end, shape_rewards


def penalties(**changed) -> Settings:
    rl = {"format_penalty": 0.1, "length_buffer": 8, "length_penalty": 0.4} | changed
    return Settings(policy=PolicySettings(max_new_tokens=48), rl=RlSettings(**rl))


RULES = penalties()


@pytest.mark.parametrize(("length", "penalty"), [(1, 0), (40, 0), (42, -0.1), (44, -0.2), (48, -0.4)])
def test_length_penalty_rises_over_the_buffer(length, penalty):
    assert length_penalty(length, RULES) == pytest.approx(penalty)


def test_no_buffer_no_penalty():
    assert length_penalty(48, penalties(length_buffer=0, length_penalty=1.0)) == 0


def test_outcome_comes_last_and_each_broken_step_pays():
    rewards = shape_rewards(reward_at_end(1.0, 3), [10, 10, 44], [True, False, True], RULES)
    assert rewards == pytest.approx((-0.1, 0.0, 1.0 - 0.2 - 0.1))
    assert shape_rewards(reward_at_end(1.0, 0), [], [], RULES) == ()


def test_a_step_earns_what_it_adds_to_the_score():
    # Of nine tiles three are cleared by the third step, none after it; of the last step's state nothing is known.
    assert reward_as_earned(1 / 3, [0.0, 0.0, 0.0, 1 / 3, None]) == pytest.approx((0, 0, 1 / 3, 0, 0))
    assert reward_as_earned(0.0, [0.0, 0.5]) == pytest.approx((0.5, -0.5))  # what is undone is taken back
    assert reward_as_earned(0.7, [None, None]) == reward_at_end(0.7, 2)  # nothing is known before the end
    assert reward_as_earned(1.0, []) == ()


@given(st.lists(st.none() | st.floats(0, 1), min_size=1), st.floats(0, 1))
def test_all_steps_earn_the_outcome_less_where_they_began(scores, outcome):
    earned = reward_as_earned(outcome, scores)
    assert len(earned) == len(scores)
    assert sum(earned) == pytest.approx(outcome - (scores[0] or 0.0))


def test_steps_cost_their_share_of_the_budget():
    rules = penalties(step_penalty=0.2)
    assert shape_rewards(reward_at_end(1.0, 2), [10, 10], [False, False], rules, budget=4) == pytest.approx(
        (-0.05, 0.95)
    )
    assert sum(shape_rewards(reward_at_end(0.0, 4), [10] * 4, [False] * 4, rules, budget=4)) == pytest.approx(-0.2)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 48), st.booleans()), min_size=1), st.floats(0, 1))
def test_shaping_never_adds(steps, outcome):
    lengths, broken = zip(*steps, strict=True)
    rewards = shape_rewards(reward_at_end(outcome, len(steps)), lengths, broken, RULES)
    assert len(rewards) == len(steps)
    assert sum(rewards) <= outcome + 1e-9
    assert sum(rewards) >= outcome - len(steps) * (RULES.rl.format_penalty + RULES.rl.length_penalty) - 1e-9
