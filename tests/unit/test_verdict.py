"""V means one thing: from a score and the task's threshold to the end of an episode, the route, evaluation, RL."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routed_rows import route

from flywheel.config import SandboxSettings, Settings
from flywheel.envs.base import Verdict, decide_verdict, verdicts_from_rows
from flywheel.envs.browser.driver.page import SessionNotes
from flywheel.envs.browser.env import BrowserEnv
from flywheel.envs.suites import catalogue
from flywheel.envs.tasks.drawing import make_task, make_tasks
from flywheel.evaluation.evaluator import judge_episode
from flywheel.rewards.scorer import ScorerSet
from flywheel.rollout.episode import Episode
from flywheel.store.partitions import table_from_rows
from flywheel.store.schema import Trajectory, record_to_row
from flywheel.utils.errors import DataError

TASK = make_task(catalogue.get_world("snake"), next(iter(catalogue.get_world("snake").templates)), 1, 5, "train")

# score, the task's threshold -> V, the store
TABLE = [
    (1.0, 1.0, True, "sft"),
    (0.999, 1.0, False, "ct"),
    (0.5, 0.5, True, "sft"),
    (0.5, 0.51, False, "ct"),
    (0.0, 0.5, False, "ct"),
]


def ended(score: float) -> Trajectory:
    """An episode that the task's verifier (`state:score`) scores so."""
    state = json.dumps({"won": score == 1.0, "score": score})
    return Trajectory(
        "t1", TASK.task_id, "games", source="rollout", status="completed", reward=score, steps=3, final_state=state
    )


class Tab:
    """As much of a tab as a reset needs."""

    size = (8, 8)
    notes = SessionNotes()
    cast = SimpleNamespace(shown=lambda picture: None)  # nobody watches
    url = "http://page/"

    async def open(self, *_, **__):
        return {"elements": [], "game": {}}

    async def screenshot(self):
        return b"png"


def page(score: float) -> SimpleNamespace:
    session = SimpleNamespace(
        url=Tab.url,
        allowed=(Tab.url,),
        viewport=None,
        step_ms=None,
        prepare="",
        state_expression="",
        restorable=False,
        files=None,
        state=lambda seen: {"page": "x"},
        score=lambda state: score,
        close=lambda: None,
    )
    return SimpleNamespace(open=lambda task, seed: session)


@pytest.mark.parametrize(("score", "threshold", "v", "store"), TABLE)
async def test_one_table_from_score_to_route(score, threshold, v, store):
    task, trajectory = replace(TASK, threshold=threshold), ended(score)
    assert Verdict(score, threshold).v is v
    # Evaluation, and RL's success, which is judged by the same call.
    judged = judge_episode(task, Episode(trajectory, (), {}), ScorerSet(Settings()))
    assert (judged.result.score, judged.result.v) == (score, v)
    # The table `scores`, and the route that is read from it.
    rows = table_from_rows("scores", [one.row("t1") for one in judged.verdicts]).to_pylist()
    assert rows == [
        {
            "trajectory_id": "t1",
            "scorer": "verifier:state:score",
            "score": score,
            "threshold": threshold,
            "success": v,
            "detail": "",
            "version": "2",
            "abstained": False,
            "current": True,
        }
    ]
    (decision,) = route([record_to_row("trajectories", trajectory)], rows)
    assert (decision["destination"], decision["success"], decision["score"]) == (store, v, score)
    # The end of an episode.
    result = await BrowserEnv(Tab(), page(score), SandboxSettings()).reset(task, 1)
    assert result.terminated is v


_SAID = ((0.2, "a"), (None, "b"), (0.6, "c"), (1.0, "d"))
NO, UNKNOWN, YES, BETTER = (Verdict(score, 0.5, name) for score, name in _SAID)


@pytest.mark.parametrize(
    ("verdicts", "speaks", "v"),
    [
        ([YES], YES, True),
        ([BETTER, YES], YES, True),
        ([BETTER, NO], NO, False),
        ([NO, Verdict(0.1, 0.5, "e")], Verdict(0.1, 0.5, "e"), False),
        ([UNKNOWN, NO], NO, False),  # what one refuses need not be judged by the others
        ([BETTER, UNKNOWN], UNKNOWN, None),
        ([Verdict(0.4, 0.3), Verdict(0.9, 0.95)], Verdict(0.9, 0.95), False),  # each against its own threshold
    ],
)
def test_several_scorers(verdicts, speaks, v):
    for order in itertools.permutations(verdicts):
        assert (decide_verdict(order), decide_verdict(order).v) == (speaks, v)


def test_nobody_who_judges_is_no_verdict():
    assert (decide_verdict([]).v, decide_verdict([]).detail) == (None, "no score")


@pytest.mark.parametrize("score", [None, math.nan, math.inf, -0.1, 1.1])
def test_what_is_no_score_is_no_verdict(score):
    assert Verdict(score, 0.5).v is None
    assert Verdict(1.0, None).v is None


verdicts = st.builds(Verdict, st.none() | st.floats(0, 1), st.floats(0.01, 1), st.sampled_from("ab"))


@given(st.lists(verdicts, max_size=6), verdicts)
def test_another_scorer_never_turns_a_no_into_a_yes(some, more):
    before, after = decide_verdict(some).v, decide_verdict([*some, more]).v
    assert not (before is False and after is not False)
    assert not (after and some and before is not True)


@given(st.lists(st.tuples(st.sampled_from(["t1", "t2"]), verdicts), max_size=8))
def test_rows_and_back(given):
    rows = table_from_rows("scores", [verdict.row(name) for name, verdict in given]).to_pylist()
    assert verdicts_from_rows(rows) == {
        name: decide_verdict(v for n, v in given if n == name) for name in {n for n, _ in given}
    }


def test_rows_of_an_older_version_are_read():
    row = {"trajectory_id": "t", "scorer": "verifier:x", "score": 0.5, "threshold": 0.5, "success": True, "detail": ""}
    assert verdicts_from_rows([row])["t"] == Verdict(0.5, 0.5, "verifier:x")


def test_a_crash_is_no_verdict_and_a_failure_of_the_model_that_is_measured():
    crashed = Trajectory("t1", TASK.task_id, "games", status="crashed", error="the page died")
    judged = judge_episode(TASK, Episode(crashed, (), {}), ScorerSet(Settings()))
    (row,) = (one.row("t1") for one in judged.verdicts)
    assert (row["score"], row["success"], row["detail"]) == (None, None, "crashed: the page died")
    assert (judged.result.score, judged.result.v) == (0.0, False)


def test_a_scorer_that_fails_ends_an_evaluation():
    blind = replace(ended(1.0), final_state='{"score": 1}')
    with pytest.raises(DataError, match=r"no verdict by verifier:state:score: .*KeyError 'won'.*trajectory t1"):
        judge_episode(TASK, Episode(blind, (), {}), ScorerSet(Settings()))


def test_a_task_that_names_no_threshold_is_given_that_of_the_settings(monkeypatch):
    small = {"train_tasks": 4, "eval_tasks": 4}
    chosen = Settings.model_validate({"routing": {"threshold": 0.25}, "synthesis": small})
    default = Settings.model_validate({"synthesis": small})
    for split in ("train", "eval"):
        lower, usual = make_tasks(chosen, 1, split), make_tasks(default, 1, split)
        assert {task.threshold for task in lower} == {0.25}
        assert [replace(task, threshold=1.0) for task in lower] == usual
    world = catalogue.get_world("tiles")
    name, template = next(iter(world.templates.items()))
    strict = world.model_copy(update={"templates": {name: template.model_copy(update={"threshold": 0.75})}})
    assert make_task(strict, name, 1, 5, "train", 0.25).threshold == 0.75
