"""Episodes that begin within a success, in a real browser: a parent's own screens, by its steps."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter

import pytest
import pytest_asyncio
from lamp_env import Scripted

from flywheel.agent.grammar import Grammar, format_response
from flywheel.agent.parsing.parser import action_fields
from flywheel.config import RlSettings, Settings
from flywheel.envs.registry import open_environments
from flywheel.envs.suites.oracle import demonstrate_task
from flywheel.envs.tasks.drawing import make_tasks
from flywheel.rewards.scorers.verifier import score_final_state
from flywheel.rollout.async_pool import AsyncRolloutPool, RolloutLog, RolloutPlan
from flywheel.rollout.episode import run_rollout
from flywheel.rollout.starts import KnownSuccess
from flywheel.training.rl.groups import GroupChooser

SETTINGS = Settings.model_validate({"synthesis": {"levels": [1, 2, 3]}, "sandbox": {"timeout_s": 60}})
WORLDS = ("tiles", "shop")
pytestmark = pytest.mark.asyncio(loop_scope="module")


class Expert(Scripted):
    """Gives each episode the same texts in turn."""

    weight_version = "expert"

    def __init__(self, texts):
        super().__init__(self._next)
        self.texts, self.turns = texts, Counter()

    def _next(self, context, sampling):
        turn = self.turns[sampling.session]
        self.turns[sampling.session] += 1
        return self.texts[turn]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def environments():
    tasks = make_tasks(SETTINGS, 1, "train")
    async with open_environments(SETTINGS, tasks) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=WORLDS)
async def solved(request, environments):
    """A task of the world, the texts that solve it, and the episode of a policy that gave them."""
    for task in (one for one in make_tasks(SETTINGS, 1, "train") if one.world == request.param):
        async with environments.env(task) as env:
            shown = await demonstrate_task(env, task, task.seed)
        if len(shown) > 2:
            break
    seen = shown[0][2].observation
    grammar = Grammar.of(SETTINGS.policy, (seen.width, seen.height))
    texts = [format_response(thought, action_fields(action, grammar)["action"]) for thought, action, _ in shown]
    expert = Expert(texts)
    playing = {"iteration": 1, "settings": SETTINGS, "temperature": 1.0}
    (episode,) = await run_rollout([task], 1, expert, environments, **playing)
    assert episode.trajectory.status == "completed"
    return task, texts, episode


def grade(task, episode):
    score = score_final_state(task, json.loads(episode.trajectory.final_state))
    return score, score >= task.threshold


@pytest.mark.parametrize("source", ["rollouts", "solver"])
async def test_restored_episodes_stand_where_their_parent_stood(environments, solved, tmp_path, source):
    task, texts, parent = solved
    depth = 2
    known = KnownSuccess(parent.id, "rollouts", task, parent.steps)
    rl = RlSettings(
        restored_start_fraction=1.0,
        true_start_tail=0.0,
        steps=1,
        tasks_per_step=1,
        group_size=3,
        start_sources=[source],
    )
    chooser = GroupChooser(rl, 0, successes=[known])
    chooser._depths[task.task_id].depth, chooser._turns[task.task_id] = depth, 0.0
    expert = Expert(texts[-depth:])

    class Source:
        def next(self):
            return task

        def record(self, *told):
            raise AssertionError("a restored start is no outcome of the task")

    log = RolloutLog(tmp_path, "key", Source(), {task.task_id: task}, RolloutPlan(3, 3, 1, 0, 1), 0, chooser)
    playing = {"grade": grade, "iteration": 1, "settings": SETTINGS, "temperature": 1.0, "where": "rl"}
    async with AsyncRolloutPool(log, expert, environments, **playing) as pool:
        batch = await asyncio.wait_for(pool.next_batch(), 120)
    assert not chooser.dropped
    assert [outcome.success for outcome in batch.outcomes] == [True] * 3
    for _, one in batch.episodes:
        assert one.trajectory.start_step == len(texts) - depth
        assert one.trajectory.parent_id == (parent.id if source == "rollouts" else None)
        assert [step.image_sha256 for step in one.steps] == [step.image_sha256 for step in parent.steps]
        assert [step.action for step in one.steps] == [step.action for step in parent.steps]
        assert one.trajectory.final_state == parent.trajectory.final_state
        assert {hashlib.sha256(png).hexdigest() for png in one.images.values()} == set(one.images)
        assert [bool(step.token_ids) for step in one.steps] == [
            n >= one.trajectory.start_step for n in range(len(texts))
        ]
