"""Task synthesis: seeded, even, and with nothing shared between training and evaluation."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from flywheel.errors import BadInput
from flywheel.reward import verifiers
from flywheel.settings import Settings, Synthesis, parse
from flywheel.store.partitions import from_rows
from flywheel.synthesis.tasks import content, from_row, make_task, make_tasks, to_row
from flywheel.worlds import catalogue

FORTY = Synthesis(train_tasks=40, eval_tasks=40, levels=[1, 2])


def test_the_same_settings_give_the_same_tasks():
    assert make_tasks(Settings(), 3, "train") == make_tasks(Settings(), 3, "train")
    assert make_tasks(Settings(), 0, "eval") == make_tasks(Settings(), 9, "eval")


@hypothesis_settings(max_examples=5, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 50))
def test_no_train_task_is_an_eval_task_and_iterations_differ(seed, iteration):
    settings = Settings(seed=seed, synthesis=FORTY)
    held_out = make_tasks(settings, iteration, "eval")
    train = make_tasks(settings, iteration, "train")
    later = make_tasks(settings, iteration + 1, "train")
    assert not {content(task) for task in train} & {content(task) for task in held_out}
    assert not {task.seed for task in train} & {task.seed for task in held_out}
    assert not {task.task_id for task in train} & {task.task_id for task in later}
    for tasks in (held_out, train):
        assert len({task.task_id for task in tasks}) == len({content(task) for task in tasks}) == len(tasks) == 40


def test_tasks_spread_evenly():
    tasks = make_tasks(Settings(synthesis=FORTY), 0, "train")
    assert Counter(task.domain for task in tasks) == {"games": 20, "sites": 20}
    worlds = Counter(task.world for task in tasks)
    assert worlds["shop"] == worlds["settings"] == 10
    assert sorted(worlds[name] for name in ("tiles", "shapes", "merge")) == [6, 7, 7]
    for world in worlds:
        levels = Counter(task.level for task in tasks if task.world == world)
        assert abs(levels[1] - levels[2]) <= 1
    assert {task.template for task in tasks if task.world == "shop"} >= {"open", "add", "remove", "search", "buy"}


def test_a_task_survives_its_row():
    task = make_tasks(Settings(), 0, "train")[1]
    row = from_rows("tasks", [to_row(task)]).to_pylist()[0]
    assert from_row({**row, "iteration": "000"}) == task


def test_every_slot_of_every_world_makes_a_sound_task():
    for name in catalogue.names():
        world = catalogue.get(name)
        for template, spec in world.templates.items():
            for level, budget in spec.max_steps.items():
                task = make_task(world, template, level, 11, "train")
                assert "{" not in task.instruction
                assert callable(verifiers.find(task))
                assert task.max_steps == budget
                assert task.checksum == world.checksum


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        ({"levels": [9]}, "no level of"),
        ({"domains": {"games": ["nowhere"], "sites": ["shop"]}}, "'nowhere'"),
        ({"domains": {"games": ["shop"], "sites": ["shop"]}}, "of domain sites"),
    ],
)
def test_impossible_settings_are_refused_by_name(raw, part):
    with pytest.raises(BadInput, match=part):
        make_tasks(parse({"synthesis": raw}, where="test"), 0, "train")


def test_an_unknown_split_is_refused():
    with pytest.raises(BadInput, match="'test'"):
        make_tasks(Settings(), 0, "test")
