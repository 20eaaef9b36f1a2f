"""Worlds that others wrote: a manifest is all it takes, and what is wrong in one is told in a line."""

from __future__ import annotations

import textwrap
from pathlib import Path

import computers
import pytest

from flywheel.agent.actions import Finished, Terminal
from flywheel.config import Settings, parse_settings
from flywheel.envs import registry
from flywheel.envs.registry import draw_placeholders, fill_placeholders, open_environments
from flywheel.envs.tasks import drawing as synthesis
from flywheel.envs.tasks.drawing import make_tasks
from flywheel.utils.errors import BadInput

MONTHS = [f"month{number}" for number in range(60)]
MANIFEST = f"""
kind: terminal
world: reports
tasks:
  - name: pack
    instruction: Pack the folder {{folder}} into {{folder}}.zip.
    choose: {{folder: [{", ".join(MONTHS)}]}}
    max_steps: {{1: 8, 2: 8}}
    folder: start
    begin: {{files: {{"{{folder}}/note.txt": "one\\n"}}}}
    end: {{packed: {{"{{folder}}.zip": {{"{{folder}}/note.txt": "one\\n"}}}}}}
  - name: size
    instruction: How many lines has words.txt? Answer {{who}}.
    choose: {{who: [{", ".join(MONTHS)}]}}
    max_steps: {{1: 4}}
    folder: start
    end: {{answer: "3"}}
"""


@pytest.fixture
def workspace(tmp_path) -> Path:
    (tmp_path / "start" / "deep").mkdir(parents=True)
    (tmp_path / "start" / "words.txt").write_text("a\nb\nc\n")
    (tmp_path / "start" / "deep" / "data.bin").write_bytes(bytes(range(256)))
    (tmp_path / "mine.yaml").write_text(MANIFEST)
    yield tmp_path
    registry.find_backend("terminal").own.clear()


def chosen(*worlds: str, **more) -> Settings:
    block = {"domains": {"office": ["reports"]}, "worlds": list(worlds), "held_out": [], "levels": [1, 2]}
    merge = {"weights": {"office": 1.0}}
    return parse_settings({"synthesis": {**block, **more}, "merge": merge}, where="test")


def test_its_tasks_are_drawn_as_those_of_any_world(workspace):
    settings = chosen("mine.yaml", train_tasks=12)
    assert synthesis.check_task_settings(settings, 1, workspace) == {"terminal"}
    tasks = make_tasks(settings, 1, "train", workspace)
    assert {task.template for task in tasks} == {"pack", "size"}
    packs = [task for task in tasks if task.template == "pack"]
    assert {task.instruction for task in packs} <= {f"Pack the folder {one} into {one}.zip." for one in MONTHS}
    assert len({task.instruction for task in packs}) == len(packs)
    assert {"words.txt", "deep/data.bin"} == tasks[0].params["binary"].keys()
    assert registry.get_task_suite("reports").domain == "computer"
    before = registry.get_task_suite("reports").checksum
    (workspace / "start" / "words.txt").write_text("other\n")
    registry.load_external_suites(settings, workspace)
    assert registry.get_task_suite("reports").checksum != before


@computers.needed
async def test_it_is_played_and_judged(workspace):
    tasks = make_tasks(chosen("mine.yaml", train_tasks=12), 1, "train", workspace)
    by_name = {task.template: task for task in tasks}
    folder = next(iter(by_name["pack"].params["packed"])).removesuffix(".zip")
    plays = {
        "pack": [Terminal(f"python3 -m zipfile -c {folder}.zip {folder}")],
        "size": [Terminal("wc -l < words.txt"), Finished("3")],
    }
    settings = computers.settings("terminal")
    async with open_environments(settings, tasks) as environments, environments.env(tasks[0]) as env:
        for name, actions in plays.items():
            await env.reset(by_name[name], 1)
            results = [await env.step(action) for action in actions]
            assert results[-1].reward == 1.0, results[-1].info
        await env.reset(by_name["size"], 1)
        assert (await env.step(Finished("4"))).reward < 1.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("kind: terminal", "kind: dream"), "kind is 'dream'"),
        (("kind: terminal\n", ""), "kind is None"),
        (("world: reports", "world: shop"), "a world is called shop already"),
        (("name: size", "name: pack"), "two tasks have one name"),
        (("folder: start", "folder: nowhere"), "there is no folder nowhere beside the manifest"),
        (("folder: start", "folder: ../.."), r"there is no folder \.\./\.\. beside the manifest"),
        (('end: {answer: "3"}', "end: {}"), "end says nothing that must hold"),
        (('end: {answer: "3"}', 'end: {answers: "3"}'), r"tasks\.1\.end\.answers: Extra inputs"),
        (('end: {answer: "3"}', 'end: {served: {"80": x}}'), "begin.ports does not say what is asked at 80"),
        (('end: {answer: "3"}', "end: {printed: [x]}"), "a line for each command of begin.probe"),
        (('end: {answer: "3"}', 'choose: {x: []}\n    end: {answer: "3"}'), r"tasks\.1\.choose\.x: .*at least 1 item"),
        (("world: reports", f"world: r{'e' * 64}ports"), "the manifest's world: "),
        (("folder: start", f"folder: {'start' * 60}"), "a file that it names cannot be read: .*too long"),
        (("begin: {files", "begin: {file"), "begin has no file"),
        (("begin: {files", "begin: {setup: 3, files"), "begin.setup: Input should be a valid list"),
        (("tasks:", "tasks: ["), "the manifest is not YAML"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(workspace, change, said):
    (workspace / "mine.yaml").write_text(textwrap.dedent(MANIFEST).replace(*change))
    with pytest.raises(BadInput, match=said) as caught:
        synthesis.check_task_settings(chosen("mine.yaml"), 1, workspace)
    assert "mine.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_manifests_of_one_name_are_told(workspace):
    (workspace / "other.yaml").write_text((workspace / "mine.yaml").read_text())
    with pytest.raises(BadInput, match=r"the world reports is that of .*mine\.yaml too \(.*other\.yaml\)"):
        registry.load_external_suites(chosen("mine.yaml", "other.yaml"), workspace)
    registry.load_external_suites(chosen("mine.yaml", "mine.yaml"), workspace)


def test_a_manifest_that_is_not_there_is_told(workspace):
    with pytest.raises(BadInput, match="the manifest cannot be read"):
        synthesis.check_task_settings(chosen("theirs.yaml"), 1, workspace)
    (workspace / "list.yaml").write_text("[1, 2]")
    with pytest.raises(BadInput, match="the manifest is no mapping"):
        synthesis.check_task_settings(chosen("list.yaml"), 1, workspace)


def test_placeholders_are_filled_in_wherever_they_stand():
    import random

    values = draw_placeholders({"one": ["x"], "two": [{"a": "1", "b": "2"}]}, random.Random(1))
    assert values == {"one": "x", "a": "1", "b": "2"}
    given = {"{one}.txt": ["{a} {b}", {"deep": "{one}"}], "number": 3, "none": None, "other": "{unknown}"}
    assert fill_placeholders(given, values) == {
        "x.txt": ["1 2", {"deep": "x"}], "number": 3, "none": None, "other": "{unknown}",
    }  # fmt: skip
