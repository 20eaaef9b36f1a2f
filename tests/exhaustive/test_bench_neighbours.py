"""Neighbouring tasks of `flywheel bench worlds`: the same start, another end."""

from __future__ import annotations

import importlib

import pytest

from flywheel.cli import bench
from flywheel.envs.base import Task
from flywheel.envs.suites import catalogue
from flywheel.envs.suites.catalogue import BrowserWorld
from flywheel.envs.tasks.drawing import make_task

SITES = ("board", "shop", "shop_zh", "settings")


@pytest.fixture
def neighbours(monkeypatch):
    monkeypatch.syspath_prepend(str(bench.BENCHMARKS_FOLDER))
    return importlib.import_module("worlds_neighbours").neighbours


def tasks_of(world: BrowserWorld, seed: int) -> list[Task]:
    return [make_task(world, template, min(spec.max_steps), seed, "eval") for template, spec in world.templates.items()]


@pytest.mark.parametrize("name", SITES)
def test_neighbours_start_from_the_same_screen_and_ask_for_something_else(neighbours, name):
    world, counts = catalogue.get_world(name), []
    for task in tasks_of(world, 3):
        others = neighbours(world, task)
        counts.append(len(others))
        for other in others:
            assert world.play.start(other.params) == world.play.start(task.params)
            assert other.instruction != task.instruction
            assert other.max_steps == world.budget(other.template, other.level)
            assert other.task_id != task.task_id
        assert len({other.task_id for other in others}) == len(others)
        if "task" in task.params and len(others) == 2:
            assert [other.template == task.template for other in others] == [True, False]
    assert sum(count > 0 for count in counts) >= 0.9 * len(counts)


def test_they_are_the_same_each_time(neighbours):
    world = catalogue.get_world("board")
    task = make_task(world, "assign", 2, 5, "eval")
    assert [one.task_id for one in neighbours(world, task)] == [one.task_id for one in neighbours(world, task)]


def test_a_page_is_no_neighbour_of_one_that_says_more(monkeypatch):
    monkeypatch.syspath_prepend(str(bench.BENCHMARKS_FOLDER))
    apart = importlib.import_module("worlds_neighbours")._apart
    assert not apart("list", {"sort": "due"}, "list", {"sort": "due", "show": "done"})
    assert not apart("list", {"sort": "due", "show": "done"}, "list", {"sort": "due"})
    assert apart("list", {"sort": "due"}, "list", {"sort": "title"})
    assert apart("list", {}, "board", {})
