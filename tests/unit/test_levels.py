"""Levels that open with success: what is counted, what is drawn, and what a stage leaves for the next iteration."""

from __future__ import annotations

import pytest
import synthetic

from flywheel.config import Settings, parse_settings
from flywheel.envs.suites import catalogue
from flywheel.envs.tasks import open_levels
from flywheel.envs.tasks.drawing import make_task, make_tasks
from flywheel.pipeline.stages import ingest
from flywheel.recordings.session import load_session_meta
from flywheel.store import manifest
from flywheel.utils.errors import DataError

TASK = {level: make_task(catalogue.get_world("merge"), "reach", level, level, "train") for level in (1, 2, 3)}


def chosen(**synthesis) -> Settings:
    return parse_settings(
        {"synthesis": {"levels": [1, 2, 3], "level_unlock_success": 0.5, "train_tasks": 60, **synthesis}}, where="test"
    )


@pytest.mark.parametrize(
    ("before", "outcomes", "after"),
    [
        ({}, {1: "1100"}, 2),
        ({}, {1: "1000"}, 1),
        ({}, {1: "111"}, 1),  # too few to tell
        ({"merge": 2}, {1: "0000", 2: "0111"}, 3),  # the highest open one counts
        ({"merge": 2}, {1: "1111", 2: "0001"}, 2),
        ({"merge": 2}, {1: "0000"}, 2),  # what is open stays so
        ({"merge": 3}, {3: "1111"}, 3),
    ],
)
def test_the_next_level_opens_with_success_on_the_highest(before, outcomes, after):
    judged = [(TASK[level], verdict == "1") for level, verdicts in outcomes.items() for verdict in verdicts]
    assert open_levels.raise_open_levels(chosen(), before, judged) == {"merge": after}


def test_where_all_levels_are_open_the_record_says_so():
    assert open_levels.raise_open_levels(chosen(level_unlock_success=0), {}, [(TASK[1], False)] * 4) == {"merge": 3}


def test_a_level_that_is_not_asked_for_never_opens():
    judged = [(TASK[1], True)] * 8
    assert open_levels.raise_open_levels(chosen(levels=[1, 3]), {}, judged) == {"merge": 3}
    assert open_levels.raise_open_levels(chosen(levels=[1]), {}, judged) == {"merge": 1}


def test_a_world_that_was_not_played_keeps_its_level():
    assert open_levels.raise_open_levels(chosen(), {"tiles": 2}, [(TASK[1], False)] * 4) == {"merge": 1, "tiles": 2}


def drawn(opened, iteration=1, **synthesis) -> dict[str, list[tuple[str, int]]]:
    found: dict[str, list[tuple[str, int]]] = {}
    for task in make_tasks(chosen(**synthesis), iteration, "train", None, opened):
        found.setdefault(task.world, []).append((task.template, task.level))
    return found


def test_tasks_are_made_of_the_open_levels():
    first, later = drawn({}), drawn({"merge": 3, "shop": 2})
    assert {level for slots in first.values() for _, level in slots} == {1}
    assert {world: max(level for _, level in slots) for world, slots in later.items()} == {
        world: {"merge": 3, "shop": 2}.get(world, 1) for world in later
    }
    half = len(first["shop"]) // 2
    assert first["shop"][:half] == later["shop"][:half]  # the same in every iteration, to be compared


def test_by_default_all_levels_are_open_from_the_first_iteration():
    assert drawn({}, level_unlock_success=0) == drawn({"merge": 3}, level_unlock_success=0)
    assert {level for slots in drawn({}, level_unlock_success=0).values() for _, level in slots} == {1, 2, 3}


def test_what_is_above_the_open_levels():
    def above(opened, **synthesis):
        return [open_levels.is_above_open_level(chosen(**synthesis), opened, TASK[level]) for level in (1, 2, 3)]

    assert above({}) == [False, True, True]
    assert above({"merge": 2}) == [False, False, True]
    assert above({}, level_unlock_success=0) == [False] * 3
    assert above({}, levels=[2, 3]) == [False, False, True]
    assert above({}, levels=[9]) == [False, True, True]  # none of them is the world's own


def test_recordings_of_levels_that_are_not_open_come_later(tmp_path, project):
    ws, _ = synthetic.workspace(tmp_path / "ws")
    open_levels.write_open_levels(ws, 1, {"shop": 2})
    shop, merge = (
        next(folder for folder in sorted((project / "recordings").glob(f"*-{world}-*")) if _level(folder) == 2)
        for world in ("shop", "merge")
    )
    later = ingest.deferral_rule(ws, chosen(), 2)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    assert [later(folder) for folder in (shop, merge, damaged)] == [False, True, False]
    assert ingest.deferral_rule(ws, chosen(level_unlock_success=0), 2) is None


def _level(folder):
    return load_session_meta(folder)[1].level


def test_evaluation_has_all_levels():
    evaluated = make_tasks(chosen(), 1, "eval", None, {})
    assert {task.level for task in evaluated} == {1, 2, 3}


def test_a_workspace_made_before_levels_were_kept_begins_with_the_lowest(tmp_path):
    ws, _ = synthetic.workspace(tmp_path / "ws")
    ws.levels(0).unlink(missing_ok=True)
    manifest.init_manifests(ws)
    assert open_levels.read_open_levels(ws, 0) == {}
    open_levels.write_open_levels(ws, 1, {"shop": 2})
    assert open_levels.read_open_levels(ws, 1) == {"shop": 2}


@pytest.mark.parametrize("text", ["", "[]", '{"open": {"shop": "two"}}'])
def test_a_damaged_record_is_named(tmp_path, text):
    ws, _ = synthetic.workspace(tmp_path / "ws")
    ws.levels(1).parent.mkdir(parents=True, exist_ok=True)
    ws.levels(1).write_text(text)
    with pytest.raises(DataError, match=r"iterations/001/levels\.json"):
        open_levels.read_open_levels(ws, 1)
