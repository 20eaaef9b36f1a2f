"""Demonstrations of our own experts on computers: made in real machines, taken in as those of other data sets."""

from __future__ import annotations

from pathlib import Path

import computers
import pytest
from ingesting import ingest_sessions

from flywheel.cli.scaffold import list_missing_data
from flywheel.config import Settings, dump_commented_settings
from flywheel.config.workspace import Workspace
from flywheel.envs.registry import open_environments
from flywheel.envs.suites.chores.world import CHORES
from flywheel.envs.tasks.drawing import make_task, make_tasks, task_content, task_to_row
from flywheel.policy.encoding import Encoder
from flywheel.recordings.rows import demonstration_rows
from flywheel.recordings.synthetic.demonstrations import DATASET, demonstration_tasks, record_demonstration
from flywheel.store.dedup.near_duplicates import find_tasks_near_evaluation
from flywheel.store.interop.demonstration import (
    DemonstratedStep,
    Demonstration,
    demonstration_folder_name,
    save_demonstration,
)
from flywheel.training.data import build_agent_examples
from flywheel.utils.errors import FlywheelError


def ingested(one: Demonstration, folder: Path):
    assert save_demonstration(one, folder)
    return demonstration_rows(folder / one.name, Settings(), 3)


@computers.needed
async def test_what_an_expert_does_in_a_terminal_is_learnt_as_a_persons(tmp_path):
    settings = Settings.model_validate({"policy": {"functions": True}, "synthesis": {"levels": [1]}})
    (task,) = (one for one in demonstration_tasks(CHORES, settings, 34) if one.template == "find")
    async with open_environments(settings, [task]) as environments, environments.env(task) as env:
        one = await record_demonstration(env, task, CHORES)
    rows = ingested(one, tmp_path)
    assert (rows.trajectory.status, rows.trajectory.reward, rows.trajectory.error) == ("completed", 1.0, None)
    assert [step.action_type for step in rows.steps] == ["terminal", "finished"]
    assert [step.image_sha256 for step in rows.steps] == [None, None]
    assert rows.steps[0].observation == "~$"
    assert rows.steps[0].tool_result.strip() == task.params["answer"]
    encoder = Encoder.from_folder(Path(__file__).parents[2] / "models" / "base")
    first, last = build_agent_examples([rows.trajectory], rows.steps, {}, encoder, settings.policy)
    assert f"Result: {task.params['answer']}" in encoder.tokenizer.decode(last.context.input_ids)
    assert encoder.tokenizer.decode(first.response).startswith("Thought: I search all files.\nAction: terminal(")


def test_three_clicks_and_a_text_at_its_point_are_learnt_whole(tmp_path):
    """In the words of the default run's model, though its prompt offers neither."""
    told = (
        "pyautogui.click(x=0.5, y=0.25, clicks=3)",
        '{"action": "type", "coordinate": [0.5, 0.25], "text": "mug", "delete_existing_text": true}',
        '{"name": "type_text_at", "args": {"x": 0.5, "y": 0.25, "text": "mug", "press_enter": true,'
        ' "clear_before_typing": false}}',
    )
    steps = tuple(DemonstratedStep(one, "", "I act.", observation="a field") for one in told)
    one = Demonstration("some", "x", "", "Write mug.", "some", "write", "train", True, steps)
    rows = ingested(one, tmp_path)
    assert [(step.action_type, step.x, step.y) for step in rows.steps] == [
        ("left_triple", 0.5, 0.25),
        ("type_at", 0.5, 0.25),
        ("type_at", 0.5, 0.25),
    ]
    encoder = Encoder.from_folder(Path(__file__).parents[2] / "models" / "base")
    learnt = build_agent_examples([rows.trajectory], rows.steps, {}, encoder, Settings().policy)
    point = "point='<point>50 25</point>'"
    for example, action in zip(
        learnt,
        (
            f"left_triple({point})",
            f"type_at({point}, content='mug', clear='true')",
            f"type_at({point}, content='mug\\n')",
        ),
        strict=True,
    ):
        assert encoder.tokenizer.decode(example.response).startswith(f"Thought: I act.\nAction: {action}")


def test_a_step_without_anything_to_see_or_to_read_is_told(tmp_path):
    steps = (DemonstratedStep("terminal(command='ls')", ""),)
    one = Demonstration("flywheel", "x", "", "List it.", "chores", "find", "train", True, steps)
    assert "step 0 has no screen" in ingested(one, tmp_path).trajectory.error


def test_a_new_workspace_says_how_many_are_not_there(tmp_path):
    def told(imports: int) -> list[str]:
        own = {"iterations": 2, "recording": {"sessions_per_iteration": 0, "imports_per_iteration": imports}}
        domain = {"synthesis": {"domains": {"computer": ["chores"]}}, "merge": {"weights": {"computer": 1.0}}}
        settings = Settings.model_validate(own | domain)
        (tmp_path / "params.yaml").write_text(dump_commented_settings(settings))
        return list_missing_data(Workspace(tmp_path))

    (tmp_path / "recordings" / "s0001").mkdir(parents=True)
    assert told(0) == []
    assert "up to 4 demonstrations of chores; make them before" in told(2)[0]
    for task in demonstration_tasks(CHORES, Settings(), 3):
        (tmp_path / "recordings" / demonstration_folder_name(DATASET, task.task_id)).mkdir()
    assert "up to 4 demonstrations of chores, and 3 are there; make the others before" in told(2)[0]
    assert told(1) == []


@pytest.mark.exhaustive
def test_they_need_no_recognizer_and_keep_their_places_among_those_that_do(tmp_path):
    chosen = Settings.model_validate({"recording": {"recognizer": "whisper", "whisper_model": "/nowhere.pt"}})
    step = (DemonstratedStep("list_files(path='.')", "", observation="~$"),)
    folders = []
    for name in ("a", "b"):
        one = Demonstration("flywheel", name, "", f"List {name}.", "chores", "find", "train", True, step)
        assert save_demonstration(one, tmp_path)
        folders.append(tmp_path / one.name)
    assert [one.trajectory.status for one in ingest_sessions(folders, chosen, 1)] == ["completed"] * 2
    (broken := tmp_path / "broken").mkdir()
    with pytest.raises(FlywheelError, match="nowhere"):
        ingest_sessions([*folders, broken], chosen, 1)
    spoken = ingest_sessions([folders[0], broken, folders[1]], Settings(), 1)
    assert [one.session for one in spoken] == [folders[0].name, "broken", folders[1].name]
    assert [one.trajectory.status for one in spoken] == ["completed", "invalid", "completed"]


def test_experts_are_shown_no_task_of_an_evaluation():
    given = {"domains": {"computer": ["chores"]}, "held_out": ["chores/move"], "levels": [1], "eval_tasks": 30}
    settings = Settings.model_validate({"synthesis": given, "merge": {"weights": {"computer": 1.0}}})
    shown = demonstration_tasks(CHORES, settings, 80)
    assert len({task_content(task) for task in shown}) == 80
    assert not {task_content(task) for task in shown} & {task_content(task) for task in make_tasks(settings, 0, "eval")}
    assert {task.template for task in shown} == CHORES.templates.keys() - {"move"}


def test_of_one_instruction_the_task_of_an_evaluation_alone_is_refused(tmp_path):
    """Each task of `sort` says the same, and another data set's would be near it by that alone."""
    held = make_task(CHORES, "sort", 1, 5, "eval")
    step = (DemonstratedStep("list_files(path='.')", "", observation="~$"),)
    one = Demonstration("flywheel", "a", "", held.instruction, "chores", "sort", "train", True, step, seed=2**31)
    row = ingested(one, tmp_path).task_row
    assert not find_tasks_near_evaluation([row], [task_to_row(held)])
    assert find_tasks_near_evaluation([{**row, "seed": None}], [task_to_row(held)])
    assert find_tasks_near_evaluation([{**row, "seed": held.seed}], [task_to_row(held)])
