"""Failed episodes that a world's solver goes on with, from the state before a mistake."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
import small_rollout
from pages import Experts, task_of

from flywheel.agent.actions import Click, Finished, Point, Type
from flywheel.agent.grammar import Grammar, format_response
from flywheel.agent.parsing.parser import action_fields
from flywheel.config import SandboxSettings, Settings, parse_settings
from flywheel.config.workspace import Workspace
from flywheel.envs.browser.pages.manifest import load_page_manifests
from flywheel.envs.browser.pool import open_browser_pool
from flywheel.envs.tasks.page_tasks import make_page_task
from flywheel.pipeline import dag, iterations, stage
from flywheel.policy.protocol import Completion
from flywheel.rollout import corrections
from flywheel.rollout.episode import run_episode
from flywheel.rollout.solvers import TaskSolvers, load_solvers
from flywheel.store import manifest
from flywheel.store.catalog import database
from flywheel.training.data import load_weighted_steps
from flywheel.utils.errors import BadInput, DataError, EnvError

PLAYED = pytest.mark.asyncio(loop_scope="module")
SETTINGS = Settings(sandbox=SandboxSettings(timeout_s=60))
NOWHERE = Click(Point(0.995, 0.995))


class Told:
    """A policy that gives the texts that it was told to, at most with their log-probabilities; by default all alike."""

    weight_version = "told"

    def __init__(self, texts, logprobs=()):
        self._texts, self._logprobs = iter(texts), iter(logprobs)

    async def complete(self, context, sampling):
        return Completion(next(self._texts), (1,), next(self._logprobs, (-0.1,)), 9, "told", True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    async with open_browser_pool(SETTINGS) as opened:
        yield opened


def texts_of(demonstration, task):
    grammar = Grammar.of(SETTINGS.policy, (224, 224))
    return [format_response(thought, action_fields(action, grammar)["action"]) for thought, action, _ in demonstration]


async def play(pool, task, texts, logprobs=()):
    async with pool.env() as env:
        policy = Told(texts, logprobs)
        return await run_episode(env, policy, task, 0, iteration=1, settings=SETTINGS, temperature=0.5)


async def correct(pool, task, failed, **more):
    async with pool.env() as env:
        solver = TaskSolvers().find(task, 3)
        return await corrections.correct_episode(env, task, failed, SETTINGS.policy, solver, iteration=1, **more)


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
    shown = {step.image_sha256 for step in corrected.steps[right:]}
    assert shown | {one.final_image_sha256} == corrected.images.keys()
    assert one.final_image_sha256 not in shown
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
    solvers = TaskSolvers()
    assert [one.id for one in corrections.choose_failures(tasks, every, 9, solvers)] == [failed.id, "zz2"]
    assert [one.id for one in corrections.choose_failures(tasks, every, 1, solvers)] == [failed.id]
    elsewhere = dataclasses.replace(task, world="a page of others")
    assert corrections.choose_failures({task.task_id: elsewhere}, every, 9, solvers) == []


@PLAYED
async def test_the_solver_is_not_asked_about_the_steps_before_the_least_sure_one(pool):
    """A click beside everything, a text without an action and one more click come first; the solver has to find on."""
    task = task_of("settings", "two", level=2)
    failed = await play(pool, task, [WRONG, "no action at all", WRONG, GIVE_UP])
    result = await correct(pool, task, failed, first=2)
    one, steps = result.episode.trajectory, result.episode.steps
    assert (one.start_step, one.parent_id, one.reward) == (2, failed.id, 1.0)
    assert [step.author for step in steps[:3]] == ["model", "model", "solver"]
    assert (result.solver_calls, result.env_steps) == (len(steps) - 2, len(steps) - 1)  # one step had no action
    assert [dataclasses.replace(step, trajectory_id=failed.id) for step in steps[:2]] == list(failed.steps[:2])
    assert one.trajectory_id != (await correct(pool, task, failed)).episode.id


@PLAYED
async def test_where_the_solver_would_do_the_same_the_next_mistake_counts(pool):
    task = task_of("settings", "two", level=2)
    known = texts_of(await Experts(pool).demonstrate(task), task)
    failed = await play(pool, task, ["no action at all", known[0], GIVE_UP])
    result = await correct(pool, task, failed, first=1)
    assert (result.episode.trajectory.start_step, result.episode.trajectory.reward) == (2, 1.0)
    solved = await play(pool, task, ["no action at all", *known])
    assert (await correct(pool, task, solved, first=1)).reason == corrections.NO_MISTAKE


def at(where):
    return SETTINGS.model_copy(
        update={"rollout": SETTINGS.rollout.model_copy(update={"corrections_at": where, "corrections_per_task": 1})}
    )


class Lending:
    def __init__(self, pool):
        self._pool = pool

    def env(self, task):
        return self._pool.env()


@pytest.mark.parametrize(
    ("where", "least_sure", "starts"),
    [
        ("first_mistake", 2, [0]),
        ("least_sure", 2, [2]),
        ("both", 2, [0, 2]),
        ("both", 0, [0]),
        ("least_sure", None, []),
        ("both", None, [0]),
    ],
)
@PLAYED
async def test_each_kind_of_correction_begins_where_it_says(pool, where, least_sure, starts):
    task = task_of("settings", "two", level=2)
    sure = [() if least_sure is None else (-0.1, -0.1 - (number == least_sure)) for number in range(4)]
    failed = await play(pool, task, [WRONG, WRONG, WRONG, GIVE_UP], sure)
    assert corrections.find_least_sure_step(failed) == least_sure
    made, stats = await corrections.correct_failures(
        {task.task_id: task}, [failed], Lending(pool), at(where), TaskSolvers(), iteration=1, seed=3
    )
    assert sorted(one.trajectory.start_step for one in made) == starts
    assert len({one.id for one in made}) == len(starts)
    assert {one.trajectory.reward for one in made} <= {1.0}
    assert stats.corrected == len(starts)
    assert stats.solver_calls == sum(len(one.own_steps) for one in made)
    assert stats.env_steps == sum(len(one.steps) for one in made)
    assert stats.without == ({corrections.NO_LOGPROBS: 1} if least_sure is None else {})


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
        {task.task_id: task, "lost": lost}, [failed, other], Lent(), SETTINGS, TaskSolvers(), iteration=1, seed=3
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
    assert not corrections.does_the_same(Click(Point(0.53, 0.5)), Click(Point(0.5, 0.5)), elements, 0.02)
    assert not corrections.does_the_same(Finished(), at, elements)


# A page whose button counts how it was pressed, and its tasks: one with a solution, one that asks for an answer alone.
PRESSED = """<!doctype html><button style="width:100px;height:100px">One</button>
<button style="width:100px;height:100px">Two</button><input style="width:90px"><script>let said = "";
for (const one of document.querySelectorAll("button")) one.onclick = () => { said += one.textContent; };</script>"""
ORDER = {
    "instruction": "Press One, enter maple, then press Two.",
    "reward": "Number(said === 'OneTwo' && document.querySelector('input').value === 'maple')",
    "proof": {
        "actions": [
            "click(point='<point>0.2 0.2</point>')",
            "type_at(point='<point>0.2 0.55</point>', content='maple')",
            "click(point='<point>0.7 0.2</point>')",
        ],
        "thoughts": ["I press One.", "I enter maple.", "I press Two."],
    },
}


@pytest.fixture
def page(tmp_path):
    """Settings with the page, and its tasks: `order` and `asked`."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text(PRESSED)
    known = {"instruction": "What is the first button called?", "answer": "One"}
    fields = {
        "name": "pressed", "title": "Pressed", "domain": "sites", "folder": "site", "start": "index.html",
        "viewport": [224, 224], "success": 1, "max_steps": 9, "seeded": False, "splits": ["train"],
        "tasks": {"order": ORDER, "asked": known},
    }  # fmt: skip
    (tmp_path / "pressed.yaml").write_text(json.dumps(fields))
    synthesis = SETTINGS.synthesis.model_copy(update={"manifests": [str(tmp_path / "pressed.yaml")]})
    (manifest,) = load_page_manifests(synthesis.manifests, tmp_path).values()
    tasks = [make_page_task(manifest, name, 0, "train") for name in ("order", "asked")]
    return SETTINGS.model_copy(update={"synthesis": synthesis}), tasks


@pytest.mark.parametrize(("right", "screen"), [(0, "the same"), (1, "the same"), (1, "another"), (2, "the same")])
async def test_the_known_solution_of_a_pages_task_goes_on_before_the_first_mistake(page, tmp_path, right, screen):
    settings, (task, asked) = page
    solvers = load_solvers([task, asked], settings, tmp_path)
    assert (solvers.has(task), solvers.has(asked)) == (True, False)
    grammar = Grammar.of(SETTINGS.policy, (224, 224))
    steps = [Click(Point(0.2, 0.2)), Click(Point(0.2, 0.55)), Type("maple"), Click(Point(0.7, 0.2))]
    texts = [format_response("", action_fields(step, grammar)["action"]) for step in steps]
    async with open_browser_pool(settings, tmp_path) as opened:
        failed = await play(opened, task, [*texts[:right], WRONG, *[GIVE_UP] * 9])
        if screen == "another":
            other = dataclasses.replace(failed.steps[0], image_sha256="0" * 64)
            failed = dataclasses.replace(failed, steps=(other, *failed.steps[1:]))
        assert corrections.choose_failures({task.task_id: task}, [failed], 1, solvers) == [failed]
        made, stats = await corrections.correct_failures(
            {task.task_id: task}, [failed], Lending(opened), at("both"), solvers, iteration=1, seed=3
        )
    (one,) = made
    assert one.trajectory.start_step == (0 if screen == "another" else right)
    assert (one.trajectory.reward, one.trajectory.status) == (1.0, "completed")
    assert [step.action for step in one.steps] == [text.partition("Action: ")[2] for text in texts]
    thoughts = ["I press One.", "I enter maple.", "I enter maple.", "I press Two."]
    first = one.trajectory.start_step
    assert [step.thought for step in one.steps[first:]] == thoughts[first:]
    assert stats.without == {}


@pytest.mark.parametrize(("least_sure", "without"), [(0, {}), (1, {corrections.FROM_THE_RESET: 1})])
async def test_a_known_solution_goes_on_from_no_other_state(page, tmp_path, least_sure, without):
    settings, (task, asked) = page
    solvers = load_solvers([task, asked], settings, tmp_path)
    sure = [(-0.1 - (number == least_sure),) for number in range(9)]
    async with open_browser_pool(settings, tmp_path) as opened:
        failed = await play(opened, task, [WRONG, GIVE_UP], sure)
        made, stats = await corrections.correct_failures(
            {task.task_id: task}, [failed], Lending(opened), at("least_sure"), solvers, iteration=1, seed=3
        )
    assert (len(made), stats.without) == (0 if without else 1, without)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"proofs": {"g1": {}}}', '{"proofs": {"g1": {"actions": [["Jump", {}]]}}}']
)
def test_damaged_solutions_of_an_application_are_named(tmp_path, text):
    (tmp_path / "editor").mkdir()
    (tmp_path / "editor" / "details.json").write_text(text)
    settings = parse_settings({"synthesis": {"worlds": [str(tmp_path / "editor.yaml")]}}, where="test")
    with pytest.raises(
        DataError, match=r"solutions cannot be read.*editor/details.json.*explore the application again"
    ):
        load_solvers([], settings, tmp_path)


def test_a_known_solution_that_cannot_be_read_is_refused_before_an_iteration_begins(page, tmp_path, project):
    path = tmp_path / "pressed.yaml"
    path.write_text(path.read_text().replace("click(point='<point>0.7 0.2</point>')", "jump(high)"))
    domains = {"games": ["tiles"], "sites": ["shop", "pressed"], "control": ["control"]}
    held = {"held_out": [], "manifests": [str(path)], "domains": domains}
    chosen = {"synthesis": held, "rollout": {"corrections_per_task": 1}}
    with pytest.raises(BadInput, match=r"no action: 'jump\(high\)'.*synthesis.manifests"):
        iterations.run_preflight(Workspace(project), parse_settings(chosen, where="test"))


CORRECTED = {"rollout.corrections_per_task": 1, "rollout.corrections_at": "both"}


@pytest.fixture(scope="module")
def routed(tmp_path_factory):
    """An iteration whose rollout corrects one failed trajectory of each task, routed."""
    ws = small_rollout.synthesized(tmp_path_factory.mktemp("ws"), {}, CORRECTED)
    for name in ("ingest", "rollout", "score", "route"):
        stage.run_stage(dag.find_stage(name), stage.StageContext.open(ws, 1, name))
    return ws


# The second shard's process is killed within a correction: in the first screen that is compared of its first one.
_KILLED = """
import os, signal, sys
from pathlib import Path

from flywheel.config.workspace import Workspace
from flywheel.pipeline import dag, iterations, stage
from flywheel.rollout import corrections

real, shards = corrections.correct_failures, []

async def correct_failures(*given, **named):
    shards.append(1)
    if len(shards) == 2:
        corrections._is_same_screen = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    return await real(*given, **named)

corrections.correct_failures = correct_failures
rollout = dag.find_stage("rollout")
sys.modules[rollout.work.__module__].correct_failures = correct_failures
stage.run_stage(rollout, stage.StageContext.open(Workspace(Path(sys.argv[1])), 1, "rollout"))
"""


def test_a_kill_within_a_correction_loses_nothing_and_repeats_nothing(routed, tmp_path, monkeypatch):
    ws = small_rollout.synthesized(tmp_path / "ws", {}, CORRECTED)
    killed = subprocess.run([sys.executable, "-c", _KILLED, ws.root], stderr=subprocess.PIPE, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    rollout, again = dag.find_stage("rollout"), []
    module = sys.modules[rollout.work.__module__]
    real = module.run_rollout

    def run_rollout(tasks, *given, **named):
        again.extend(task.task_id for task in tasks)
        return real(tasks, *given, **named)

    monkeypatch.setattr(module, "run_rollout", run_rollout)
    stage.run_stage(rollout, stage.StageContext.open(ws, 1, "rollout"))
    assert len(again) == 2  # of the shard that was killed; the first one's two are not played again
    assert small_rollout.played(ws) == small_rollout.played(routed)
    spent = "SELECT name, value FROM metrics WHERE name LIKE 'corrections_%' ORDER BY name"
    assert database.query_catalog(ws, spent).to_pylist() == database.query_catalog(routed, spent).to_pylist()


def test_corrections_are_scored_routed_and_learnt_as_demonstrations_are(routed):
    def query(sql):
        return database.query_catalog(routed, sql).to_pylist()

    made = query("FROM trajectory_outcomes WHERE source = 'correction' ORDER BY trajectory_id")
    parents = {row["trajectory_id"]: row for row in query("FROM trajectory_outcomes WHERE source = 'rollout'")}
    failed = [row for row in parents.values() if not row["success"]]
    starts = {(row["parent_id"], row["start_step"]) for row in made}
    assert {name for name, _ in starts} == {row["trajectory_id"] for row in failed}
    assert len(starts) == len(made) > 0
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
    (played,) = query("SELECT sum(steps) AS n, sum(steps - start_step) AS own FROM trajectories WHERE parent_id <> ''")
    assert played["own"] <= spent["corrections_solver_calls"] <= played["n"]
    learnt = load_weighted_steps(routed, manifest.read_manifest(routed, 1), "ct", {"rollout": 0.0})
    own = query("""
        SELECT trajectory_id, count(*) AS n FROM steps SEMI JOIN (FROM trajectories WHERE source = 'correction')
        USING (trajectory_id) WHERE author = 'solver' GROUP BY ALL""")
    found = dict(zip(learnt.names, learnt.steps.tolist(), strict=True))
    assert found == {row["trajectory_id"]: row["n"] for row in own}
    assert set(learnt.weights) == {1.0}
