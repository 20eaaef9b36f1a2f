"""The bench of streaming: lengths have the tail it speaks of, its world repeats itself, its cases say what is met."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from flywheel.agent.actions import Click, Point
from flywheel.rewards.scorers.verifier import score_final_state
from flywheel.utils.errors import BadInput

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import streaming
import streaming_world

OPTIONS = argparse.Namespace(tasks=400, median=2, tail=8.5, steps=2, environments=4, batch=4, latency=0.0, staleness=8)


def side(rate: float, utilisation: float, final: float) -> streaming.Side:
    return streaming.Side(round(rate * 10), 10.0, utilisation, 0.5, (0.5, 0.75), (0.0, 1.0), 0.1, final)


def test_lengths_have_a_long_tail_and_are_the_same_for_every_seed():
    lengths = [[task.max_steps for task in streaming_world.tasks(400, 2, 8.5, seed)] for seed in (0, 1)]
    p50, p99 = np.quantile(lengths[0], (0.5, 0.99))
    assert p99 / p50 >= 8
    assert Counter(lengths[0]) == Counter(lengths[1])
    assert lengths[0] != lengths[1]


async def test_the_world_repeats_itself_and_scores_by_the_projects_own_verifier():
    task = next(task for task in streaming_world.tasks(400, 2, 8.5, 3) if task.max_steps == 4)

    async def play(wrong: int):
        async with streaming_world.Line(0.0).env(task) as env:
            results = [await env.reset(task, task.seed)]
            for number in range(4):
                left = (task.params["side"] == "left") == (number >= wrong)
                results.append(await env.step(Click(Point(0.25 if left else 0.75, 0.5))))
        return results

    right, again, one_wrong = await play(0), await play(0), await play(1)
    assert [r.observation.screenshot for r in right] == [r.observation.screenshot for r in again]
    assert [r.terminated for r in right] == [False] * 4 + [True]
    assert score_final_state(task, right[-1].info["state"]) == 1
    assert score_final_state(task, one_wrong[-1].info["state"]) == 0.75


@pytest.mark.parametrize(
    ("stream", "batch", "met"),
    [
        (side(25, 0.9, 0.8), side(10, 0.4, 0.8), [True, True, True]),
        (side(24, 0.89, 0.8), side(10, 0.4, 0.82), [False, False, False]),
    ],
)
def test_cases(stream, batch, met, capsys):
    found = streaming.cases([stream] * 3, [batch] * 3, OPTIONS, before=0.7)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["case"] for line in lines] == ["samples_per_second", "utilisation", "final_reward"]
    assert [line["met"] for line in lines] == met == [case.met for case in found]
    assert lines[0]["ratio"] == pytest.approx(stream.samples / batch.samples)
    assert lines[0]["p99_over_p50"] >= 8
    assert lines[2]["interval"] == [pytest.approx(stream.final - batch.final)] * 2  # the same in all three
    assert lines[2]["peer_curve"] == [0.5, 0.75]


def test_seeds_are_one_or_more():
    with pytest.raises(BadInput, match="--seeds 0"):
        streaming.main(["--seeds", "0"])
