"""Failed episodes that a world's solver goes on with, from the state before their first mistake."""

from __future__ import annotations

import dataclasses
import json
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
import small_rollout
from pages import Experts, task_of

from flywheel.agent.actions import Click, Finished, Point
from flywheel.agent.grammar import Grammar, format_response
from flywheel.agent.parsing.parser import action_fields
from flywheel.config import SandboxSettings, Settings
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.pipeline import dag, stage
from flywheel.policy.protocol import Completion
from flywheel.rollout import corrections
from flywheel.rollout.episode import run_episode
from flywheel.store import manifest
from flywheel.store.catalog import database
from flywheel.training.data import load_weighted_steps
from flywheel.utils.errors import EnvError

PLAYED = pytest.mark.asyncio(loop_scope="module")
SETTINGS = Settings(sandbox=SandboxSettings(timeout_s=60))
NOWHERE = Click(Point(0.995, 0.995))


class Told:
    """A policy that gives the texts that it was told to."""

    weight_version = "told"

    def __init__(self, texts):
        self._texts = iter(texts)

    async def complete(self, context, sampling):
        return Completion(next(self._texts), (1,), (-0.1,), 9, "told", True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    async with open_browser_pool(SETTINGS) as opened:
        yield opened


def texts_of(demonstration, task):
    grammar = Grammar.of(SETTINGS.policy, (224, 224))
    return [format_response(thought, action_fields(action, grammar)["action"]) for thought, action, _ in demonstration]


async def play(pool, task, texts):
    async with pool.env() as env:
        return await run_episode(env, Told(texts), task, 0, iteration=1, settings=SETTINGS, temperature=0.5)


async def correct(pool, task, failed):
    async with pool.env() as env:
        return await corrections.correct_episode(env, task, failed, SETTINGS.policy, iteration=1, seed=3)


GIVE_UP = "Action: finished()"
WRONG = format_response("", action_fields(NOWHERE, Grammar.of(SETTINGS.policy, (224, 224)))["action"])


@pytest.mark.parametrize("right", [0, 1])
@pytest.mark.parametrize("mistake", [GIVE_UP, WRONG, "no action at all"])
@PLAYED
async def test_the_solver_goes_on_before_the_first_mistake(pool, right, mistake):
    task = task_of("settings", "two", level=2)
    known = texts_of(await Experts(pool).demonstrate(task), task)
    assert len(known) == 2
    failed = await play(pool, task, [*known[:right], mistake, *[GIVE_UP] * 9])
    assert failed.trajectory.reward < 1
    result = await correct(pool, task, failed)
    corrected = result.episode
    assert (result.reason, result.solver_calls, result.env_steps) == ("", len(corrected.steps), len(corrected.steps))
    assert [step.author for step in corrected.steps[:right]] == ["model"] * right
    assert (corrected.trajectory.start_step, corrected.own_steps) == (right, corrected.steps[right:])
    assert {step.author for step in corrected.own_steps} == {"solver"}
    assert [step.step for step in corrected.steps] == [*range(len(corrected.steps))]
    one = corrected.trajectory
    assert (one.source, one.author, one.parent_id) == ("correction", "solver", failed.id)
    assert (one.reward, one.status, one.steps) == (1.0, "completed", len(corrected.steps))
    assert one.trajectory_id != failed.id
    assert {step.trajectory_id for step in corrected.steps} == {one.trajectory_id}
    # What is learnt is what the solver does from that state on, on the screens that it shows.
    assert {step.image_sha256 for step in corrected.steps[right:]} == corrected.images.keys()
    assert failed.steps[right].image_sha256 == corrected.steps[right].image_sha256
    assert [step.action for step in corrected.steps] == [text.partition("Action: ")[2] for text in known]


@PLAYED
async def test_no_correction_without_a_mistake_or_on_another_screen(pool):
    task = task_of("settings", "two", level=2)
    known = texts_of(await Experts(pool).demonstrate(task), task)
    solved = await play(pool, task, known)
    assert (await correct(pool, task, solved)).reason == "no mistake"
    failed = await play(pool, task, [known[0], GIVE_UP])
    other = dataclasses.replace(failed.steps[0], image_sha256="0" * 64)
    changed = dataclasses.replace(failed, steps=(other, *failed.steps[1:]))
    result = await correct(pool, task, changed)
    assert (result.episode, result.reason) == (None, "its replay shows another screen")


@PLAYED
async def test_only_failures_of_worlds_with_a_solver_are_chosen_each_once(pool):
    task = task_of("settings", "two", level=2)
    known = texts_of(await Experts(pool).demonstrate(task), task)
    solved, failed = await play(pool, task, known), await play(pool, task, [GIVE_UP])
    again, other = (
        dataclasses.replace(one, trajectory=dataclasses.replace(one.trajectory, trajectory_id=name))
        for one, name in ((failed, "zz1"), (await play(pool, task, [known[0], GIVE_UP]), "zz2"))
    )
    crashed = dataclasses.replace(
        failed, trajectory=dataclasses.replace(failed.trajectory, trajectory_id="zz3", status="crashed")
    )
    every, tasks = [solved, failed, again, other, crashed], {task.task_id: task}
    assert [one.id for one in corrections.choose_failures(tasks, every, 9)] == [failed.id, "zz2"]
    assert [one.id for one in corrections.choose_failures(tasks, every, 1)] == [failed.id]
    elsewhere = dataclasses.replace(task, world="a page of others")
    assert corrections.choose_failures({task.task_id: elsewhere}, every, 9) == []


class _Crashing:
    """An environment that is lost at its first step."""

    def __init__(self, env):
        self._env = env
        self.reset = env.reset

    async def step(self, action):
        raise EnvError("the page crashed")


@PLAYED
async def test_a_failing_environment_costs_its_own_correction_alone(pool):
    task = task_of("settings", "two", level=2)
    failed = await play(pool, task, [GIVE_UP])
    lost = dataclasses.replace(task, task_id="lost")
    other = dataclasses.replace(failed, trajectory=dataclasses.replace(failed.trajectory, task_id="lost"))

    class Lent:
        @asynccontextmanager
        async def env(self, asked):
            async with pool.env() as env:
                yield _Crashing(env) if asked is lost else env

    made, stats = await corrections.correct_failures(
        {task.task_id: task, "lost": lost}, [failed, other], Lent(), SETTINGS.policy, iteration=1, seed=3
    )
    assert [one.trajectory.parent_id for one in made] == [failed.id]
    assert (stats.tried, stats.corrected, stats.without) == (2, 1, {"its environment failed": 1})
    assert json.loads(made[0].trajectory.final_state)


@PLAYED
async def test_the_same_action_is_the_same_element_or_near():
    elements = [{"x": 0.1, "y": 0.1, "w": 0.2, "h": 0.1}, {"x": 0.12, "y": 0.12, "w": 0.05, "h": 0.05}]
    at = Click(Point(0.14, 0.14))
    assert corrections.does_the_same(Click(Point(0.121, 0.165)), at, elements)
    assert not corrections.does_the_same(Click(Point(0.25, 0.14)), at, elements)  # the larger one around it
    assert corrections.does_the_same(Click(Point(0.53, 0.5)), Click(Point(0.5, 0.5)), elements)
    assert not corrections.does_the_same(Click(Point(0.6, 0.5)), Click(Point(0.5, 0.5)), elements)
    assert not corrections.does_the_same(Finished(), at, elements)


@pytest.fixture(scope="module")
def routed(tmp_path_factory):
    """An iteration whose rollout corrects one failed trajectory of each task, routed."""
    ws = small_rollout.synthesized(tmp_path_factory.mktemp("ws"), {}, {"rollout.corrections_per_task": 1})
    for name in ("ingest", "rollout", "score", "route"):
        stage.run_stage(dag.find_stage(name), stage.StageContext.open(ws, 1, name))
    return ws


def test_corrections_are_scored_routed_and_learnt_as_demonstrations_are(routed):
    def query(sql):
        return database.query_catalog(routed, sql).to_pylist()

    made = query("FROM trajectory_outcomes WHERE source = 'correction' ORDER BY trajectory_id")
    parents = {row["trajectory_id"]: row for row in query("FROM trajectory_outcomes WHERE source = 'rollout'")}
    failed = [row for row in parents.values() if not row["success"]]
    assert made
    assert len(made) == len({row["task_id"] for row in failed})
    for row in made:
        parent = parents[row["parent_id"]]
        assert (parent["task_id"], parent["success"]) == (row["task_id"], False)
        assert (row["success"], row["destination"]) == (True, "ct"), row
    (iteration,) = query("FROM iterations")
    assert iteration["conserved"]
    assert iteration["corrections"] == len(made)
    assert iteration["trajectories"] == small_rollout.TASKS  # the model's own alone, as in its success
    assert query("SELECT scored FROM p_v1 WHERE domain = 'all'") == [{"scored": small_rollout.TASKS}]
    spent = {row["name"]: row["value"] for row in query("FROM metrics WHERE name LIKE 'corrections_%'")}
    assert spent["corrections_tried"] == spent["corrections_corrected"] == len(made)
    assert (
        spent["corrections_solver_calls"]
        == query("SELECT sum(steps) n FROM trajectories WHERE parent_id <> ''")[0]["n"]
    )
    learnt = load_weighted_steps(routed, manifest.read_manifest(routed, 1), "ct", {"rollout": 0.0})
    own = query("""
        SELECT trajectory_id, count(*) AS n FROM steps SEMI JOIN (FROM trajectories WHERE source = 'correction')
        USING (trajectory_id) WHERE author = 'solver' GROUP BY ALL""")
    found = dict(zip(learnt.names, learnt.steps.tolist(), strict=True))
    assert found == {row["trajectory_id"]: row["n"] for row in own}
    assert set(learnt.weights) == {1.0}
