"""What `benchmarks/corrections_at.py` tells of its arms, and the least sure step that it looks for."""

from __future__ import annotations

import corrections_at
import flywheel_run
import pytest

from flywheel.rollout.corrections import find_least_sure_step
from flywheel.rollout.episode import Episode
from flywheel.store.schema import Step, Trajectory


def episode(*logprobs: tuple[float, ...], start: int | None = None) -> Episode:
    steps = tuple(Step("t", number, "model", "", logprobs=one) for number, one in enumerate(logprobs))
    return Episode(Trajectory("t", "task", "games", start_step=start), steps, {})


@pytest.mark.parametrize(
    ("logprobs", "step"),
    [
        ([(-0.1,), (-0.5, -0.5), (-0.9, -0.05, -0.05)], 1),  # the mean counts, not the lowest token or the sum
        ([(-0.2,), (-0.1, -0.3), (-0.2,)], 0),  # of equal ones the first
        ([(), (-0.1,), ()], 1),
        ([(), ()], None),
        ([], None),
    ],
)
def test_the_least_sure_step(logprobs, step):
    assert find_least_sure_step(episode(*logprobs)) == step


def test_where_corrections_begin_is_told():
    failed = [episode((-0.1,), (-0.9,)), episode((-0.9,), (-0.1,)), episode()]
    solved = {"a": episode((), (), (), start=2), "b": episode((), start=0)}
    told = corrections_at._places(failed, solved)
    assert told == {"at_first_step": 1, "mean_start": 1, "solver_steps": 2, "least_sure_at_first_step": 1}


def test_an_arm_is_told_beside_first_mistakes():
    outcomes = {"first_mistake": {1: [0, 1, 0, 0], 2: [0, 1, 0, 1]}, "least_sure": {1: [1, 1, 0, 0], 2: [0, 1, 1, 1]}}
    beside = {**outcomes, "demonstrations": outcomes["first_mistake"]}
    groups = {"all": [0, 1, 2, 3], "games": [2, 3]}
    plain = corrections_at._summary("first_mistake", beside, groups)
    assert plain == {"by_seed": [0.25, 0.5], "mean": 0.375, "by_group": {"all": 0.375, "games": 0.25}}
    told = corrections_at._summary("least_sure", beside, groups)
    assert (told["mean"], told["beside_first_mistake"], told["by_group"]["games"]) == (0.625, 0.25, 0.5)
    low, high = told["over_seeds"]
    assert low == high == 0.25


def test_the_arms_without_recordings_differ_in_where_corrections_begin_alone():
    plain, least_sure = flywheel_run.BY_ITSELF["by-itself"], flywheel_run.BY_ITSELF["by-itself-least-sure"]
    assert least_sure == {**plain, "rollout.corrections_at": "least_sure"}
    assert set(flywheel_run.BY_ITSELF) <= set(flywheel_run.ARMS)
