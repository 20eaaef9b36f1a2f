"""AgentNetBench's tasks have the right actions, and are kept from training."""

from __future__ import annotations

import io
import json

import pytest
from PIL import Image

from flywheel.config import Settings
from flywheel.recordings.rows import demonstration_rows
from flywheel.store.interop.agentnet_bench import read_agentnet_bench
from flywheel.store.interop.demonstration import Demonstration, RefusedRecord, save_demonstration
from flywheel.utils.errors import BadInput


def step(number: int, *right: tuple[str, dict], **more) -> dict:
    truth = [{"type": kind, "params": params, "metadata": {"bboxes": []}} for kind, params in right]
    return {"step_num": number, "image": f"t_{number}.png", "ground_truth_actions": truth, **more}


AT = {"position": {"x": 0.25, "y": 0.5}}
STEPS = [
    step(1, ("click", AT), inner_monologue={"thought": "I click."}, alternative_options=[]),
    step(2, ("moveTo", AT), ("dragTo", {"position": {"x": 0.5, "y": 0.75}})),
    step(3, ("write", {"text": "mug\n"}), action="pyautogui.write(message='mug')\npyautogui.press(keys=['enter'])"),
    step(5, ("moveTo", AT), ("scroll", {**AT, "amount": -54})),
    step(6, ("hotkey", {"keys": ["ctrl", "F"]}), action="pyautogui.hotkey(keys=['ctrl', 'g'])"),
    step(7, ("doubleClick", AT)),
    step(8, ("terminate", {"status": "success"})),
]


def read(tmp_path, *records):
    for number, record in enumerate(records):
        (tmp_path / f"{number}.json").write_text(json.dumps(record))
    for number in range(9):
        out = io.BytesIO()
        Image.new("RGB", (40, 20), (number, 0, 0)).save(out, "png")
        (tmp_path / f"t_{number}.png").write_bytes(out.getvalue())
    return list(read_agentnet_bench([tmp_path], tmp_path))


def record(**more) -> dict:
    return {"task_id": "t", "high_level_task_description": "sort it", "steps": STEPS, **more}


def test_right_actions_become_steps_of_an_evaluation_task(tmp_path):
    (one,) = read(tmp_path, record())
    assert (one.split, one.instruction, one.facts["missing_steps"]) == ("eval", "sort it", [4])
    assert one.facts["other_actions"] == {"6": "pyautogui.hotkey(keys=['ctrl', 'g'])"}
    assert save_demonstration(one, tmp_path / "recordings")
    made = demonstration_rows(tmp_path / "recordings" / one.name, Settings(), 1)
    kinds = ["click", "drag", "type", "scroll", "hotkey", "left_double", "finished"]
    assert [one.action_type for one in made.steps] == kinds
    assert (made.steps[1].x, made.steps[1].y, made.steps[1].x2, made.steps[1].y2) == (0.25, 0.5, 0.5, 0.75)
    assert made.steps[2].action == "type(content='mug\\n')"
    assert "direction='down'" in made.steps[3].action
    assert made.steps[4].action == "hotkey(key='ctrl f')"
    assert made.steps[0].thought == "I click."
    assert made.task_row["split"] == "eval"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"task_id": 5}, "task_id: Input should be a valid string"),
        ({"steps": []}, "steps: "),
        ({"steps": [step(1)]}, "steps.0.ground_truth_actions: "),
        ({"steps": [step(1, ("click", {"position": {"x": "0.1", "y": 0.1}}))]}, "x: Input should be a valid number"),
        ({"steps": [step(1, ("click", AT)), step(1, ("click", AT))]}, "step 1 comes twice"),
        ({"steps": [step(40, ("click", AT))]}, "its screen t_40.png is not there"),
        ({"steps": [step(1, ("x')", AT))]}, "steps.0.ground_truth_actions.0.type"),
    ],
)
def test_a_bad_field_refuses_its_file_and_no_other(tmp_path, change, why):
    bad, good = read(tmp_path, record(**change), record(task_id="u"))
    assert isinstance(bad, RefusedRecord)
    assert bad.where == "0.json"
    assert why in bad.why
    assert isinstance(good, Demonstration)


@pytest.mark.parametrize("names", [[], ["."], ["none.json"]])
def test_without_a_file_of_tasks_it_is_bad_input(tmp_path, names):
    with pytest.raises(BadInput, match="no such JSON file"):
        list(read_agentnet_bench([tmp_path / name for name in names], tmp_path))
