"""What code must not rely on, since the libraries do otherwise than their words say (docs/libraries.md)."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from prefect import Task
from prefect.cache_policies import NO_CACHE

from flywheel.agent.actions import CallUser, Click, Point, Type, Wait
from flywheel.agent.grammar import Grammar, pixel_space
from flywheel.agent.parsing.parser import parse_response
from tasks import shards

PROJECT = Path(__file__).resolve().parent.parent.parent


def calls(folder: str) -> set[str]:
    """The name of each function and method that the code below `folder` calls."""
    found = set()
    for path in (PROJECT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                found.add(ast.unparse(node.func))
    return found


def test_no_prefect_task_takes_a_result_of_another_that_has_the_same_inputs():
    tasks = [one for one in vars(shards).values() if isinstance(one, Task)]
    assert len(tasks) > 3
    assert {one.name for one in tasks if one.cache_policy != NO_CACHE} == set()
    assert "task" not in calls("flows"), "Prefect's tasks are those of tasks/"


def test_a_shard_that_failed_beside_others_fails_the_stage(monkeypatch):
    """Prefect calls a flow completed that returns a failed future among other values."""
    asked = []

    class Future:
        def __init__(self, shard: str) -> None:
            self.shard = shard

        def result(self) -> str:
            if self.shard == "b":
                raise ValueError(f"{self.shard} is lost")
            return self.shard

    class Several:
        runs_concurrently = True

    def submit(ctx: object, shard: str, workers: object) -> Future:
        asked.append(shard)
        return Future(shard)

    monkeypatch.setattr(shards.do_shard, "submit", submit)
    assert shards.do_shards(None, ["a", "c"], Several()) == {"a": "a", "c": "c"}
    with pytest.raises(ValueError, match="b is lost"):
        shards.do_shards(None, ["a", "b", "c"], Several())
    assert asked == ["a", "c", "a", "b", "c"]


def test_no_call_on_ray_is_cancelled_and_no_actor_is_asynchronous():
    """A cancelled call of an actor runs in full all the same, and calls of an asynchronous one change their order."""
    assert "ray.kill" in calls("flywheel/cluster")
    assert "ray.cancel" not in calls("flywheel/cluster")
    for name in ("nodes", "env_nodes"):
        tree = ast.parse((PROJECT / f"flywheel/cluster/{name}.py").read_text(encoding="utf-8"))
        actors = [
            one for one in ast.walk(tree) if isinstance(one, ast.ClassDef) and "actor" in (ast.get_docstring(one) or "")
        ]
        assert actors
        assert not [one for actor in actors for one in actor.body if isinstance(one, ast.AsyncFunctionDef)]


def test_fastapi_is_one_that_prefect_works_with():
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (fastapi,) = (one for one in map(Requirement, project["dependencies"]) if one.name == "fastapi")
    assert fastapi.specifier.contains("0.150.0")
    assert not fastapi.specifier.contains("0.151.0")


def test_what_ui_tars_own_parser_stumbles_over_is_read():
    grammar = Grammar("ui_tars_1_5", pixel_space(1932, 1092))
    written = {
        "type(content='one\ntwo')": Type("one\ntwo"),  # a real line break
        r"type(content='one\n')": Type("one\n"),
        "wait()": Wait(),
        "call_user()": CallUser(),
        "click(start_box='(966,546)')": Click(Point(0.5, 0.5)),
    }
    found = {text: parse_response(f"Thought: I do it.\nAction: {text}", grammar).action for text in written}
    assert found == written


def test_each_row_of_the_page_of_libraries_says_what_holds_it():
    rows = [line for line in (PROJECT / "docs/libraries.md").read_text().splitlines() if re.match(r"\| [a-zA-Z]", line)]
    assert len(rows) > 15
    for row in rows[1:]:
        files = re.findall(r"\]\(\.\./([^)#]+)\)", row.split(" | ")[2])
        assert files, row
    listed = {Path(name).name for row in rows for name in re.findall(r"\(\.\./(findings/[^)]+)\)", row)}
    assert listed == {path.name for path in (PROJECT / "findings").glob("*.sh")}
