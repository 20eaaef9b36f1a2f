"""What people are asked to record: all worlds evenly, all templates of a world before one comes again."""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict
from itertools import islice

import pytest

from flywheel.config import Settings, parse_settings
from flywheel.envs.suites import catalogue
from flywheel.envs.tasks.drawing import make_tasks, task_content
from flywheel.envs.tasks.held_out import held_out_templates
from flywheel.recordings.synthetic.sessions import make_sessions, recorded_tasks, sessions_match_settings
from flywheel.utils.errors import BadInput


@pytest.fixture(scope="module")
def tasks():
    return list(islice(recorded_tasks(Settings()), 168))


def test_domains_have_as_many_each(tasks):
    assert Counter(task.domain for task in tasks) == {"games": 56, "sites": 56, "control": 56}


def test_every_template_comes_before_one_comes_again(tasks):
    """Control pages come several times in a round of the worlds: they must not show one template each time."""
    seen: dict[str, list[str]] = defaultdict(list)
    for task in tasks:
        seen[task.world].append(task.template)
    for world, templates in seen.items():
        apart = held_out_templates(Settings(), catalogue.get_world(world))
        levels = Settings().synthesis.levels
        learnt = {
            name
            for name, spec in catalogue.get_world(world).templates.items()
            if name not in apart and not spec.max_steps.keys().isdisjoint(levels)
        }
        first = templates[: len(learnt)]
        assert set(first) == learnt if len(templates) >= len(learnt) else len(set(first)) == len(first), world


def test_a_template_that_comes_again_is_at_its_next_level(tasks):
    levels: dict[tuple[str, str], list[int]] = defaultdict(list)
    for task in tasks:
        levels[task.world, task.template].append(task.level)
    for (world, template), played in levels.items():
        has = [n for n in Settings().synthesis.levels if n in catalogue.get_world(world).templates[template].max_steps]
        assert set(played[: len(has)]) == set(has) or len(played) < len(has), (world, template)


def test_none_has_the_content_of_an_evaluation_task(tasks):
    evaluated = {task_content(task) for task in make_tasks(Settings(), 0, "eval")}
    assert not evaluated & {task_content(task) for task in tasks}
    assert len({task.task_id for task in tasks}) == len(tasks)


def test_other_worlds_are_asked_for_by_settings():
    chosen = parse_settings(
        {
            "synthesis": {"domains": {"sites": ["mail", "forum"], "control": ["control"]}, "levels": [2]},
            "merge": {"weights": {"sites": 0.5, "control": 0.5}},
        },
        where="test",
    )
    assert {(task.world, task.level) for task in islice(recorded_tasks(chosen), 12)} == {
        ("mail", 2),
        ("forum", 2),
        ("control", 2),
    }


def test_where_levels_open_one_by_one_lower_ones_come_more_often():
    world = {"synthesis": {"domains": {"games": ["merge"]}, "levels": [1, 2, 3], "level_unlock_success": 0.5}}
    chosen = parse_settings(world | {"merge": {"weights": {"games": 1.0}}}, where="test")
    levels = [task.level for task in islice(recorded_tasks(chosen), 12) if task.template == "reach"]
    assert levels[:6] == [1, 1, 2, 1, 2, 3]


@pytest.mark.exhaustive
async def test_more_are_added_to_those_that_are_there(tmp_path):
    await make_sessions(tmp_path, 1, Settings())
    (first,) = tmp_path.glob("000-*")
    before = {path: path.read_bytes() for path in first.iterdir()}
    await make_sessions(tmp_path, 2, Settings(), first=1)
    assert {path: path.read_bytes() for path in first.iterdir()} == before
    folders = sorted(tmp_path.glob("0*"))
    assert sorted(json.loads((tmp_path / "truth.json").read_text())) == [path.name for path in folders]
    shown = [json.loads((path / "session.json").read_text())["task"]["task_id"] for path in folders]
    assert shown == [task.task_id for task in islice(recorded_tasks(Settings()), 2)]
    assert sessions_match_settings(tmp_path, Settings())
    shutil.rmtree(first)
    with pytest.raises(BadInput, match="session 000 is missing"):
        await make_sessions(tmp_path, 3, Settings(), first=2)
    with pytest.raises(BadInput, match=r"no truth\.json"):
        await make_sessions(tmp_path / "none", 3, Settings(), first=2)
    with pytest.raises(BadInput, match="of 1 sessions in all none is left"):
        await make_sessions(tmp_path, 1, Settings(), first=2)


async def test_those_of_other_settings_make_room(tmp_path):
    (tmp_path / "a-persons-own").mkdir()
    await make_sessions(tmp_path, 1, Settings())
    chosen = parse_settings(
        {"synthesis": {"domains": {"control": ["control"]}}, "merge": {"weights": {"control": 1.0}}}, where="t"
    )
    assert not sessions_match_settings(tmp_path, chosen)
    await make_sessions(tmp_path, 1, chosen)
    assert sessions_match_settings(tmp_path, chosen)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000-control-anna", "a-persons-own", "truth.json"]
