"""Choosing one of several samples of a task: the known answers of votes, of best-of-N and of the gap."""

import math
import sys
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import inference

from flywheel.evaluation.headroom import pass_at_k


def sample(solved, end, logprob=-1.0, orm=math.nan):
    return inference.Sample(solved, end, logprob, orm)


def test_a_vote_takes_the_end_that_most_agree_on_and_then_the_likelier():
    group = [sample(False, "a", -0.1), sample(True, "b", -2.0), sample(True, "b", -1.0)]
    assert inference.choose_by_vote(group) is group[2]
    assert inference.choose_by_vote([sample(False, "a", -0.5), sample(True, "b", -0.4)]).end == "b"


def test_the_reward_model_takes_what_it_finds_likeliest():
    group = [sample(False, "a", orm=0.2), sample(True, "a", orm=0.9), sample(False, "b", orm=0.9)]
    assert inference.choose_by_orm(group) is group[1]
    assert inference.choose_by_orm_vote(group) is group[1]  # 1.1 of the end a, 0.9 of the end b
    assert inference.choose_by_orm_vote([*group, sample(False, "b", orm=0.3)]) is group[2]


def test_of_the_way_to_the_best_of_n_choosing_goes_a_share():
    groups = {
        "found": [sample(True, "x"), sample(True, "x"), sample(False, "y"), sample(False, "z")],
        "missed": [sample(False, "x"), sample(False, "x"), sample(True, "y"), sample(False, "z")],
        "never": [sample(False, "x")] * 4,
    }
    cases = {case.case: case for case in inference.sample_cases(groups, {})}
    assert cases["best_of_1"].ours == pytest.approx((0.5 + 0.25 + 0) / 3)
    assert cases["best_of_4"].ours == pytest.approx(2 / 3)
    assert cases["gap_closed_vote_4"].ours == pytest.approx((1 - 0.75) / (2 - 0.75))
    assert "gap_closed_orm_4" not in cases  # there was none to ask
    assert not cases["gap_closed_vote_4"].met


def test_where_all_samples_are_alike_there_is_no_way_to_go():
    assert math.isnan(inference.gap_closed([(1.0, 1.0, 1.0)]))


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_success(outcomes, data):
    k = data.draw(st.integers(1, len(outcomes)))
    draws = [any(draw) for draw in combinations(outcomes, k)]
    assert pass_at_k(sum(outcomes), len(outcomes), k) == pytest.approx(sum(draws) / len(draws))
