"""Which steps the arms of `benchmarks/annotate_claim.py` learn from, and the differences that it tells."""

from __future__ import annotations

import annotate_claim
import corrections
import pytest
from lamp_env import task

from flywheel.policy.protocol import Completion


def played(number: int, right: tuple[bool, ...], logprobs: tuple[float, ...]) -> corrections.Played:
    one = corrections.Played(task(number), solved=all(right))
    one.steps = [((), f"text {number} {place}", so) for place, so in enumerate(right)]
    one.own = [Completion("", (1,), (value,), 9, "w", True) for value in logprobs]
    return one


LABELLED = [
    played(0, (True, True), (-0.1, -0.2)),
    played(1, (True, False, False), (-0.1, -3.0, -0.4)),
    played(2, (False,), (-0.5,)),
    played(3, (False, True), (-2.0, -0.01)),
]
POOLS = {"labelled": LABELLED, "demonstrations": [played(9, (True, True, True), ())] * 2}


def chosen(arm: str, count: int, seed: int = 1) -> list[tuple[int, int]]:
    return [(one.task.seed, number) for one, number in annotate_claim.choose_steps(arm, POOLS, count, seed)]


def test_each_arm_takes_its_steps():
    assert sorted(chosen("first", 9)) == [(1, 1), (2, 0), (3, 0)]
    assert chosen("first_dpo", 2) == chosen("first", 9)[:2] == chosen("dagger", 2)
    assert chosen("demonstrations", 4) == [(9, 0), (9, 1), (9, 2), (9, 0)]
    assert len(set(chosen("random", 3))) == 3
    steps = {(one.task.seed, n): one.own[n].logprobs[0] for one in LABELLED for n in range(len(one.steps))}
    found = [steps[at] for at in chosen("uncertain", 3)]
    assert found == sorted(found)
    assert chosen("uncertain_dpo", 3) == chosen("uncertain", 3)


def test_seeds_differ():
    assert len({tuple(chosen("first", 2, seed)) for seed in range(9)}) > 1


def test_differences_are_paired_by_task():
    outcomes = {"demonstrations": {1: [1, 0, 0, 1], 2: [1, 0, 0, 0]}, "first": {1: [1, 1, 0, 1], 2: [1, 0, 1, 0]}}
    told = annotate_claim.summarize("first", outcomes)
    assert told["by_seed"] == [0.75, 0.5]
    assert told["beside_demonstrations"] == 0.25  # 0, 1/2, 1/2, 0 by task
    half = 1.96 * (1 / 12) ** 0.5 / 2
    assert told["over_tasks"] == pytest.approx([0.25 - half, 0.25 + half], abs=1e-4)
    assert annotate_claim.summarize("demonstrations", outcomes) == {"by_seed": [0.5, 0.25], "mean": 0.375}
