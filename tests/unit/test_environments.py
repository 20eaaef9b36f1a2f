"""Environments of any kind: one that is registered and nothing more is checked, drawn from, played, scored, trained on.

The kind is that of `text_env.py`: text alone, no checkpoints. No browser is to be had in these tests.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_env import FakeEnv
from lamp_env import Lamps, Scripted
from text_env import STORE, Shelf, ShelfSettings, Shelves

from flywheel.agent.actions import Click, Point, Type
from flywheel.agent.prompt import Image
from flywheel.cli.tasks import attack_command, list_attacked_suites
from flywheel.config import Settings, dump_settings, is_settings_parameter, load_settings, parse_settings
from flywheel.envs import backends, registry
from flywheel.envs.base import Checkpointable
from flywheel.envs.conformance import CLAUSES, ConformanceCase, check_env
from flywheel.envs.registry import BACKENDS, EnvRouter, open_environments
from flywheel.envs.tasks import drawing as synthesis
from flywheel.envs.tasks.drawing import make_task, make_tasks, task_content, task_from_row, task_to_row
from flywheel.rewards.scorers import verifier
from flywheel.rollout.episode import RolloutStats, read_episode, run_rollout, write_episode
from flywheel.store.partitions import table_from_rows
from flywheel.store.schema import record_from_row, record_to_row
from flywheel.utils.errors import BadInput, EnvError, EnvTimeout

MOVES = (Type("set cup 3"), Click(Point(0.5, 0.5)), Type("set pen"), Type("set map 7"))
ON = "Thought: I turn it.\nAction: type(content='set lamp on')"
OFF = "Thought: I turn it.\nAction: type(content='set lamp off')"


@pytest.fixture
def shelves(monkeypatch) -> Shelves:
    """All that is done to add the kind."""
    made = Shelves()
    monkeypatch.setitem(BACKENDS, "shelves", made)
    return made


def chosen(**blocks) -> Settings:
    """Without a browser; tasks of the store alone."""
    block = {
        "sandbox": {"executable": "no-such-browser", "kinds": blocks.pop("kinds", {})},
        "synthesis": {"domains": {"stores": ["store"]}, "held_out": [], "train_tasks": 12, "eval_tasks": 8},
        "merge": {"weights": {"stores": 1.0}},
        "promotion": {"tasks": 20},
        "policy": {"max_new_tokens": 24, "timeout_s": 30},
    }
    return parse_settings({**block, **blocks}, where="test")


def store_task(template: str = "on", seed: int = 1, **changes):
    return replace(make_task(STORE, template, 1, seed, "train"), **changes)


def play(tasks, answer, settings, **more):
    async def run():
        async with open_environments(settings, tasks) as environments:
            arguments = {"iteration": 0, "settings": settings, "temperature": 1.0} | more
            return await run_rollout(tasks, 1, Scripted(answer), environments, **arguments)

    return asyncio.run(run())


# -- the contract -----------------------------------------------------------------------------------------------------
async def test_an_environment_without_pictures_and_checkpoints_passes_the_suite(shelves):
    async with open_environments(chosen(), [store_task()]) as environments:
        await check_env(lambda: environments.env(store_task()), store_task(), moves=MOVES)


async def test_what_it_does_not_see_the_same_twice_is_caught():
    class Unsteady(Shelf):
        turn = 0

        def _result(self, note, said_done):
            Unsteady.turn += 1
            result = super()._result(note, said_done)
            return replace(result, observation=replace(result.observation, text=f"{Unsteady.turn}"))

    @asynccontextmanager
    async def env():
        yield Unsteady(ShelfSettings())

    with pytest.raises(EnvError, match=r"gave another result .*observation"):
        await CLAUSES["determinism"](ConformanceCase(env, store_task(), moves=MOVES))


def test_a_suite_without_an_expert_is_not_attacked(shelves):
    assert "store" not in list_attacked_suites()
    assert {"desk", "chores", "errands", "phone", "tiles", "shop"} <= set(list_attacked_suites())
    told = CliRunner().invoke(attack_command, ["--world", "store"])
    assert isinstance(told.exception, BadInput)
    assert "the suite store, of the kind shelves, has no expert" in str(told.exception)


def test_checkpoints_are_a_protocol_of_their_own():
    assert isinstance(FakeEnv(), Checkpointable)
    assert not isinstance(Shelf(None), Checkpointable)


# -- the registry -----------------------------------------------------------------------------------------------------
def test_a_kind_is_found_by_its_name(shelves):
    assert {"browser", "shelves"} <= {*registry.list_backends()}
    assert registry.get_task_suite("store") is STORE
    assert "store" in registry.list_task_suites()
    assert registry.get_task_suite("tiles").environment == "browser"
    with pytest.raises(BadInput, match=r"no kind of environment is called 'shelfs'.*did you mean shelves"):
        registry.find_backend("shelfs")


def test_a_kind_is_one_file(tmp_path, monkeypatch):
    source = (Path(__file__).parents[1] / "support" / "text_env.py").read_text()
    registered = "from flywheel.envs.registry import BACKENDS\nBACKENDS['cupboards'] = Shelves('cupboards')\n"
    (tmp_path / "cupboards.py").write_text(source + registered)
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    try:
        assert {"browser", "cupboards"} <= {*registry.list_backends()}
        assert registry.find_backend("cupboards").limits(chosen()).places == 8
        assert registry.get_task_suite("store").levels == [1, 2]
    finally:
        BACKENDS.pop("cupboards", None)
        sys.modules.pop(f"{backends.__name__}.cupboards", None)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("x = 1", "it registers no back-end"),
        (
            "from flywheel.envs.registry import BACKENDS\n"
            "class Half:\n    def suites(self): return []\nBACKENDS['broken'] = Half()",
            "its back-end has no method suite, verifier, limits, identity, check, diagnose, open",
        ),
    ],
)
def test_a_file_that_is_no_kind_is_refused_by_name(source, what, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text(source)
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    try:
        with pytest.raises(BadInput, match=what) as told:
            registry.find_backend("broken")
        assert "broken.py" in str(told.value)
    finally:
        assert BACKENDS.pop("broken", None) is None
        sys.modules.pop(f"{backends.__name__}.broken", None)


def test_a_world_is_of_one_kind(shelves, monkeypatch):
    monkeypatch.setitem(BACKENDS, "other", Shelves("other"))
    with pytest.raises(BadInput, match="other and shelves have a world store"):
        registry.list_task_suites()


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ({"shelves": {"places": 0}}, r"sandbox\.kinds\.shelves\.places: must be greater than or equal to 1"),
        ({"shelves": {"largets": 3}}, r"sandbox\.kinds\.shelves\.largets: .*did you mean largest"),
        ({"shelfs": {}}, r"no kind of environment is called 'shelfs' \(sandbox\.kinds\); did you mean shelves"),
        ({"computer": {"machine": {"walls": "lxc"}}}, r"sandbox\.kinds\.computer\.machine\.walls: "),
        ({"terminal": {"run_s": 20}}, r"run_s is 20.*sandbox\.kinds\.terminal.*raise timeout_s"),
        ({"phone": {"widht": 400}}, r"sandbox\.kinds\.phone\.widht: "),
        ({"browser": {"width": 400}}, r"a browser's settings are those of sandbox \(sandbox\.kinds\.browser\)"),
        ({"android": {"settle_ms": -1}}, r"sandbox\.kinds\.android\.settle_ms: "),
    ],
)
@pytest.mark.parametrize("used", [(), ["shelves"]])
def test_wrong_settings_of_a_kind_are_named_where_it_is_used_and_where_not(shelves, used, kinds, said):
    with pytest.raises(BadInput, match=said):
        registry.check_backends(chosen(kinds=kinds), used)


def test_settings_of_a_kind_can_be_typed(shelves, tmp_path):
    (tmp_path / "params.yaml").write_text("seed: 3\n")
    typed = load_settings(tmp_path / "params.yaml", {"sandbox.kinds.shelves.places": 2})
    assert shelves.limits(typed).places == 2
    assert is_settings_parameter("sandbox.kinds.shelves.places")
    (tmp_path / "frozen.yaml").write_text(dump_settings(typed))
    assert load_settings(tmp_path / "frozen.yaml") == typed


def test_only_the_kinds_that_are_played_must_be_there(shelves, tmp_path):
    settings = chosen()
    assert synthesis.check_task_settings(settings, 1, tmp_path) == {"shelves"}
    registry.check_backends(settings, {"shelves"})
    with pytest.raises(BadInput, match="no-such-browser"):
        registry.check_backends(settings, {"shelves", "browser"})


# -- tasks ------------------------------------------------------------------------------------------------------------
def test_its_tasks_are_drawn_as_all_others(shelves):
    settings = chosen()
    train, held = (make_tasks(settings, 1, split) for split in ("train", "eval"))
    assert {(task.environment, task.domain, task.world) for task in train} == {("shelves", "stores", "store")}
    assert len({task_content(task) for task in train}) == 12
    assert not {task_content(task) for task in train} & {task_content(task) for task in held}
    assert {task.instruction for task in train} == {"Turn the lamp on.", "Turn the lamp off."}


def test_the_kind_stands_in_the_table(shelves):
    task = store_task()
    (row,) = table_from_rows("tasks", [task_to_row(task)]).to_pylist()
    assert task_from_row(row) == task


# -- rollouts ---------------------------------------------------------------------------------------------------------
def test_an_episode_without_a_screen(shelves, tmp_path):
    policy_saw = []

    def answer(context, sampling):
        policy_saw.append(context)
        return ON if len(policy_saw) > 1 else "Thought: no.\nAction: click(point='<point>1 1</point>')"

    (episode,) = play([store_task()], answer, chosen())
    first, second = episode.steps
    shown = "\n".join(f"{key}={value}" for key, value in sorted(store_task().params["store"].items()))
    assert policy_saw[0][-1].parts == (f"Observation: {shown}\n", "Turn the lamp on.")
    assert not [part for context in policy_saw for message in context for part in message.parts if type(part) is Image]
    assert (first.image_sha256, first.observation, episode.images) == (None, shown, {})
    assert first.tool_result == "there is a keyboard and nothing else"
    assert second.terminated
    assert second.reward == 1.0
    assert episode.last_screen is None
    assert episode.last_observation == shown.replace("lamp=off", "lamp=on")
    (row,) = table_from_rows("steps", [record_to_row("steps", first)]).to_pylist()
    assert record_from_row("steps", type(first), row).observation == shown
    write_episode(tmp_path / "one.zip", episode, {})
    assert read_episode(tmp_path / "one.zip") == episode


def test_what_an_agent_writes_cannot_reach_its_verdict(shelves):
    """Keys that are named as what decides stay keys."""
    words = iter(("terminated true", "score 1", "won true", "threshold 0", "verifier turned_off", "lamp off"))
    answers = (f"Thought: x\nAction: type(content='set {said}')" for said in words)
    (episode,) = play([store_task(max_steps=6)], lambda c, s: next(answers), chosen())
    assert episode.trajectory.status == "truncated"
    assert episode.trajectory.reward == 0
    assert verifier.score_final_state(store_task(), json.loads(episode.trajectory.final_state)) == 0


def test_halves_of_surrogate_pairs_are_kept_as_they_were_shown(shelves):
    task = store_task(params={"store": {"lamp": "off", "cup": "\ud800"}})
    seen = []
    (episode,) = play([task], lambda c, s: seen.append(c) or ON, chosen())
    assert episode.steps[0].observation == "cup=?\nlamp=off"
    assert seen[0][-1].parts[0] == "Observation: cup=?\nlamp=off\n"


def test_each_kind_has_its_own_places_and_only_those_played_are_opened(monkeypatch):
    few, many, idle = (Shelves(name) for name in ("few", "many", "idle"))
    for one in (few, many, idle):
        monkeypatch.setitem(BACKENDS, one.name, one)
    kinds = {"few": {"places": 1}, "many": {"places": 3}}
    tasks = [store_task(seed=n, environment=("few", "many")[n % 2], task_id=f"k{n}") for n in range(16)]
    episodes = play(tasks, lambda c, s: ON, chosen(kinds=kinds))
    assert len(episodes) == 16
    assert [(one.opened[0].most, one.opened[0].lent) for one in (few, many)] == [(1, 8), (3, 8)]
    assert idle.opened == []


def test_all_kinds_together_are_no_more_than_max_concurrent(monkeypatch):
    both = [Shelves(name) for name in ("one", "two")]
    together = [0, 0]

    class Counted(Shelf):
        async def step(self, action):
            together[1] = max(together[1], sum(one.opened[0].running for one in both))
            return await super().step(action)

    for one in both:
        one._make = Counted
        monkeypatch.setitem(BACKENDS, one.name, one)
    tasks = [store_task(seed=n, environment=("one", "two")[n % 2], task_id=f"k{n}") for n in range(12)]
    play(tasks, lambda c, s: ON, chosen(rollout={"max_concurrent": 3}))
    assert together[1] == 3


def test_events_of_all_kinds_are_counted(monkeypatch):
    for name in ("one", "two"):
        monkeypatch.setitem(BACKENDS, name, Shelves(name))

    class Telling(Scripted):
        async def complete(self, context, sampling):
            for name in ("one", "two"):
                BACKENDS[name].opened[0].events.counts["Stepped"] += 1
            return await super().complete(context, sampling)

    async def run():
        tasks = [store_task(environment=name, task_id=name) for name in ("one", "two")]
        stats = RolloutStats()
        async with open_environments(chosen(), tasks) as environments:
            arguments = {"iteration": 0, "settings": chosen(), "temperature": 1.0, "stats": stats}
            await run_rollout(tasks, 1, Telling(lambda c, s: ON), environments, **arguments)
        return stats

    assert asyncio.run(run()).answers == 4


# -- deadlines --------------------------------------------------------------------------------------------------------
def test_an_environment_that_hangs_meets_its_kinds_deadline(monkeypatch):
    class Hung(Shelf):
        async def step(self, action):
            await asyncio.Event().wait()

    monkeypatch.setitem(BACKENDS, "shelves", Shelves(make=Hung))
    settings = chosen(kinds={"shelves": {"timeout_s": 0.01}}, rollout={"retries": 0})
    (episode,) = play([store_task()], lambda c, s: ON, settings)
    assert episode.trajectory.status == "crashed"
    assert "the environment did not answer in 0.02 s" in episode.trajectory.error


@pytest.mark.parametrize("when", ["open", "close"])
def test_a_kind_that_hangs_is_named(monkeypatch, when):
    class Stuck(Shelves):
        @asynccontextmanager
        async def open(self, settings, root):
            if when == "open":
                await asyncio.Event().wait()
            async with super().open(settings, root) as lender:
                yield lender
            await asyncio.Event().wait()

    monkeypatch.setitem(BACKENDS, "shelves", Stuck())
    with pytest.raises(EnvTimeout, match=rf"environments of the kind shelves did not {when} in 0.01 s"):
        play([store_task()], lambda c, s: ON, chosen(kinds={"shelves": {"open_s": 0.01}}))


async def test_a_kind_that_is_not_open_is_named(shelves):
    with pytest.raises(EnvError, match=r"no environment of the kind shelves is open .*open are browser"):
        EnvRouter({"browser": Lamps()}).env(store_task())
