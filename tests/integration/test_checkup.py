"""A check-up of the newest model: fresh tasks, played once, by whichever model is the newest."""

from __future__ import annotations

import contextlib
import json
import shutil
from types import SimpleNamespace

import minimal_iterations
import pytest
from made_workspaces import flywheel

from flywheel.config import Settings, dump_settings
from flywheel.config.workspace import Workspace
from flywheel.envs.tasks import page_tasks
from flywheel.envs.tasks.drawing import fresh_tasks, is_reserved, make_tasks, task_content
from flywheel.maintenance import checkup
from flywheel.store.catalog import database
from flywheel.store.versioning import git_tags
from flywheel.utils.errors import FlywheelError
from flywheel.utils.files import write_json, write_text


def small(tasks: int) -> Settings:
    few = {"train_tasks": 4, "eval_tasks": 4, "num_grounding_examples": 0}
    return Settings.model_validate(
        {"synthesis": few, "operations": {"checkup_tasks": tasks}, "versioning": {"git": True}}
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> Workspace:
    """A workspace of its own whose base model has played three fresh tasks, in a real browser."""
    ws = minimal_iterations.created(tmp_path_factory.mktemp("checkup") / "night")
    write_text(ws.params, dump_settings(small(3)))
    git_tags.commit_to_git(ws.root, "Few tasks", ("params.yaml",))
    code, said = flywheel(ws, "model", "eval")
    assert code == 0, said
    assert "the model of iteration 000 on fresh tasks: all " in said
    return ws


@pytest.fixture
def ws(played, tmp_path) -> Workspace:
    """A copy."""
    return Workspace(shutil.copytree(played.root, tmp_path / "copy", symlinks=True))


@pytest.fixture
def plays(monkeypatch) -> list[str]:
    """Nothing is opened, each task is solved; ids of those that were played."""
    seen: list[str] = []

    async def evaluate(policy, tasks, environments, **given):
        seen.extend(task.task_id for task in tasks)
        trajectory = SimpleNamespace(sample=0, status="finished")
        result = SimpleNamespace(score=1.0, v=True)
        return [
            SimpleNamespace(task=one, episode=SimpleNamespace(trajectory=trajectory), result=result) for one in tasks
        ]

    async def close() -> None:
        pass

    @contextlib.asynccontextmanager
    async def opened(*given):
        yield SimpleNamespace(env=None)

    async def instruct(tasks, lease):
        return list(tasks)

    monkeypatch.setattr(checkup, "evaluate_policy", evaluate)
    monkeypatch.setattr(checkup, "open_policy", lambda *given: SimpleNamespace(close=close))
    monkeypatch.setattr(checkup, "open_environments", opened)
    monkeypatch.setattr(page_tasks, "fetch_page_instructions", instruct)
    return seen


def test_its_episodes_are_kept_in_git_and_asked_for_in_sql(played):
    rows = database.query_catalog(played, "from fresh_evaluations").to_pylist()
    assert len(rows) == 3
    assert {row["domain"] for row in rows} == {"games", "sites", "control"}
    assert {(row["iteration"], row["model"]) for row in rows} == {(0, "models/base")}
    assert all(row["success"] in (True, False) and 0 <= row["score"] <= 1 for row in rows)
    assert git_tags.is_tracked_by_git(played.root, "iterations/000/checkup.json")
    assert not (played.state / checkup.CHECKUP).exists()


def test_without_one_the_view_is_empty(tmp_path):
    assert database.query_catalog(Workspace(tmp_path), "from fresh_evaluations").num_rows == 0


def test_what_was_looked_at_in_the_same_way_is_not_looked_at_again(ws, plays):
    code, said = flywheel(ws, "model", "eval")
    assert (code, plays) == (0, [])
    assert "as was known before" in said
    assert not checkup.run_checkup(ws, small(4)).before  # more tasks
    assert len(plays) == 4


def test_the_iteration_that_made_the_newest_model(tmp_path):
    ws = Workspace(tmp_path)
    for k, name in enumerate(("base", "first", "first", "second")):
        write_json(ws.promotion(k), {"model": name, "digest": name})
    assert [checkup.find_origin_iteration(ws, k) for k in (0, 1, 2, 3)] == [0, 1, 1, 3]


@pytest.mark.exhaustive
def test_one_that_was_killed_goes_on(ws, plays, monkeypatch):
    monkeypatch.setattr(checkup, "_AT_ONCE", 1)
    play = checkup.evaluate_policy

    async def killed(policy, tasks, environments, **given):
        if len(plays) == 2:
            raise FlywheelError("the browser is gone")
        return await play(policy, tasks, environments, **given)

    monkeypatch.setattr(checkup, "evaluate_policy", killed)
    with pytest.raises(FlywheelError, match="the browser is gone"):
        checkup.run_checkup(ws, small(4))
    assert len(json.loads(ws.checkup(0).read_text())["rows"]) == 3  # what was known is kept until then
    monkeypatch.setattr(checkup, "evaluate_policy", play)
    found = checkup.run_checkup(ws, small(4))
    assert len(plays) == len(set(plays)) == 4
    assert found.shares()["all"] == (4, 4)
    assert str(found).startswith("the model of iteration 000 on fresh tasks: all 4 of 4, ")


def test_fresh_tasks_had_no_part_in_making_or_choosing_the_model():
    settings = Settings.model_validate({"synthesis": {"eval_tasks": 12}, "promotion": {"tasks": 24}})
    fresh = {task_content(task): task for task in fresh_tasks(settings, 2, 24)}
    assert len(fresh) == 24
    for split in ("train", "eval", "gate"):
        assert not fresh.keys() & {task_content(task) for task in make_tasks(settings, 2, split)}
    assert all(is_reserved(task) and task.split == "eval" for task in fresh.values())
    assert fresh.keys() != {task_content(task) for task in fresh_tasks(settings, 3, 24)}
