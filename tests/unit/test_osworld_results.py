"""Result folders of OSWorld's harnesses become trajectories; what a folder does not tell is not made up."""

from __future__ import annotations

import io
import json

import pytest
from PIL import Image

from flywheel.config import Settings
from flywheel.recordings.rows import demonstration_rows
from flywheel.store.images import image_digest
from flywheel.store.interop.demonstration import DEMONSTRATION_FILE, Demonstration, RefusedRecord, save_demonstration
from flywheel.store.interop.osworld import read_osworld
from flywheel.utils.errors import BadInput, DataError

BEFORE = "the screen before it was not kept"


def screen(number: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (1920, 1080), (number, 0, 0)).save(out, "png")
    return out.getvalue()


def write(root, *actions, first=True, result="1.0\n", task="t0", instruction="sort it", **more):
    """A folder as the harness writes it: the screen after each action, and `step_0.png` where `first`."""
    folder = root / "results" / "pyautogui" / "screenshot" / "gpt" / "os" / task
    folder.mkdir(parents=True)
    if first:
        (folder / "step_0.png").write_bytes(screen(0))
    with (folder / "traj.jsonl").open("a") as file:
        for number, action in enumerate(actions, 1):
            name = f"step_{number}_20250101@0000{number:02}.png"
            (folder / name).write_bytes(screen(number))
            line = {"step_num": number, "action_timestamp": f"20250101@0000{number:02}", "action": action,
                    "response": f"Thought: I do {number}.\nAction: it", "reward": 0, "done": False, "info": {},
                    "screenshot_file": name}  # fmt: skip
            file.write(json.dumps(line | more) + "\n")
    if result is not None:
        (folder / "result.txt").write_text(result)
    config = root / "tasks" / "os" / f"{task}.json"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(json.dumps({"id": task, "instruction": instruction, "config": []}))
    return folder


def read(root, **how):
    return list(read_osworld([root / "results"], root / "tasks", **how))


def told(root, *actions, **how):
    """The (action, fault) of each step."""
    write(root, *actions, **how)
    (one,) = read(root)
    assert isinstance(one, Demonstration), one
    return [(step.action, step.fault) for step in one.steps]


UI_TARS = (
    "import pyautogui\nimport time\n'''\nObservation:\nNone\n\nThought:\nI look.\n'''\n\n"
    "import pyperclip\npyperclip.copy('caf\u00e9')\npyautogui.hotkey('ctrl', 'v')\ntime.sleep(0.5)\n\n"
    "pyautogui.press('enter')"
)


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("pyautogui.click(960, 540)", "click(point='<point>0.5000 0.5000</point>')"),
        ("import pyautogui\npyautogui.moveTo(480, 270)\npyautogui.click(button='right')",
         "right_single(point='<point>0.2500 0.2500</point>')"),
        (UI_TARS, "type(content='caf\u00e9\\n')"),
        ("DONE", "finished()"),
        ("FAIL\n", "call_user()"),
        ("WAIT", "wait()"),
        ({"action_type": "DOUBLE_CLICK", "x": 960, "y": 540}, "left_double(point='<point>0.5000 0.5000</point>')"),
        ({"action_type": "CLICK", "parameters": {"x": 960, "y": 540, "num_clicks": 2}},
         "left_double(point='<point>0.5000 0.5000</point>')"),
        ({"action_type": "RIGHT_CLICK", "parameters": {"x": 1919, "y": 0}},
         "right_single(point='<point>0.9995 0.0000</point>')"),
        ({"action_type": "TYPING", "parameters": {"text": "it's\n"}}, "type(content='it\\'s\\n')"),
        ({"action_type": "HOTKEY", "parameters": {"keys": ["ctrl", "s"]}}, "hotkey(key='ctrl s')"),
        ({"action_type": "PRESS", "parameters": {"key": "enter"}}, "hotkey(key='enter')"),
        ({"action_type": "DONE"}, "finished()"),
        ({"action_space": "pyautogui", "action": "import pyautogui\npyautogui.hotkey('ctrl', 'l')", "call_id": "c"},
         "hotkey(key='ctrl l')"),
        ({"action_type": "tool_use", "command": "pyautogui.keyDown('ctrl')\npyautogui.keyDown('s')\n"
          "pyautogui.keyUp('s')\npyautogui.keyUp('ctrl')\n", "input": {"action": "key"}}, "hotkey(key='ctrl s')"),
        ("pyautogui.tripleClick(960, 540)", "left_triple(point='<point>0.5000 0.5000</point>')"),
    ],
)  # fmt: skip
def test_each_agents_form_of_an_action_is_read(tmp_path, action, text):
    assert told(tmp_path, action) == [(text, "")]


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ("pyautogui.click(2000, 2)", "2000 lies outside 0..1919"),
        ({"action_type": "SCROLL", "parameters": {"dx": 1, "dy": 1}}, "several actions"),
        ({"action_type": "MOUSE_DOWN", "parameters": {}}, "mouse_down"),
        ({"action_type": "CLICK", "parameters": {"x": 1, "y": 2, "clicks": 2, "mood": 1}}, "unknown parameter 'mood'"),
        ("import os\nos.system('rm x')", "unknown action"),
        ("pyautogui.click()", "click needs point"),
    ],
)
def test_what_is_no_action_is_kept_as_it_was_said(tmp_path, action, why):
    ((said, fault),) = told(tmp_path, action)
    assert why in fault
    assert said.startswith(("pyautogui.", "import os"))


def test_a_click_without_a_place_is_where_the_pointer_is(tmp_path):
    steps = told(
        tmp_path,
        {"action_type": "MOVE_TO", "parameters": {"x": 960, "y": 540}},
        {"action_type": "CLICK", "parameters": {}},
        {"action_type": "DRAG_TO", "parameters": {"x": 480, "y": 270}},
        {"action_type": "SCROLL", "parameters": {"dx": 0, "dy": -3}},
        "pyautogui.moveRel(5, 5)",
        "pyautogui.click()",
    )
    assert [action for action, _ in steps[:4]] == [
        "hover(point='<point>0.5000 0.5000</point>')",
        "click(point='<point>0.5000 0.5000</point>')",
        "drag(start_point='<point>0.5000 0.5000</point>', end_point='<point>0.2500 0.2500</point>')",
        "scroll(point='<point>0.2500 0.2500</point>', direction='down')",
    ]
    assert "click needs point" in steps[5][1]  # the pointer went where it is not known


def test_what_is_done_with_a_key_held_by_an_earlier_action_is_not_learnt(tmp_path):
    steps = told(
        tmp_path,
        {"action_type": "KEY_DOWN", "parameters": {"key": "ctrl"}},
        "pyautogui.click(960, 540)",
        {"action_type": "KEY_UP", "parameters": {"key": "ctrl"}},
        "pyautogui.click(960, 540)",
    )
    assert [bool(fault) for _, fault in steps] == [False, True, False, False]
    assert steps[1][1] == "it is done with ctrl held down"


def test_the_screen_of_an_action_is_the_one_before_it(tmp_path):
    write(tmp_path, *["pyautogui.click(960, 540)"] * 3)
    (one,) = read(tmp_path)
    assert [step.screen for step in one.steps] == [image_digest(screen(k)) for k in range(3)]
    assert [step.thought for step in one.steps] == ["I do 1.", "I do 2.", "I do 3."]
    assert (one.completed, one.split, one.instruction) == (True, "eval", "sort it")
    assert one.facts == {"author": "model", "agent": "gpt", "result": 1.0}
    assert save_demonstration(one, tmp_path / "recordings")
    assert not save_demonstration(one, tmp_path / "recordings")
    made = demonstration_rows(tmp_path / "recordings" / one.name, Settings(), 1)
    assert (made.trajectory.author, made.trajectory.policy_version, made.trajectory.status) == (
        *("model", "gpt", "completed"),
    )
    assert [step.action_type for step in made.steps] == ["click"] * 3


def test_without_its_screen_the_first_action_is_shown_and_not_learnt(tmp_path):
    write(tmp_path, *["pyautogui.click(960, 540)"] * 2, first=False)
    (one,) = read(tmp_path)
    assert [(step.fault, bool(step.screen)) for step in one.steps] == [(BEFORE, False), ("", True)]
    save_demonstration(one, tmp_path / "recordings")
    made = demonstration_rows(tmp_path / "recordings" / one.name, Settings(), 1)
    assert made.trajectory.status == "completed"
    assert [step.parse_error for step in made.steps] == [BEFORE, None]


def test_a_damaged_one_in_its_place_is_told(tmp_path):
    write(tmp_path, "pyautogui.click(960, 540)")
    (one,) = read(tmp_path)
    save_demonstration(one, tmp_path / "recordings")
    (tmp_path / "recordings" / one.name / DEMONSTRATION_FILE).write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="is there already, and is damaged"):
        save_demonstration(one, tmp_path / "recordings")


def test_a_screen_that_a_later_action_overwrote_is_not_taken_for_an_earlier_one(tmp_path):
    folder = write(tmp_path, *["pyautogui.click(960, 540)"] * 3)
    lines = [json.loads(line) for line in (folder / "traj.jsonl").read_text().splitlines()]
    lines[1] |= {"step_num": 1, "screenshot_file": lines[0]["screenshot_file"]}  # two actions in one second
    lines[2]["step_num"] = 2
    (folder / "traj.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (one,) = read(tmp_path)
    assert [step.fault for step in one.steps] == ["", BEFORE, ""]
    assert one.steps[2].screen == image_digest(screen(1))
    assert [step.thought for step in one.steps] == ["I do 1.", "", "I do 3."]  # a response is the first action's


@pytest.mark.parametrize(
    ("text", "completed", "result"), [("0\n", False, 0), ("0.25", False, 0.25), (None, None, None)]
)
def test_done_is_what_the_result_says(tmp_path, text, completed, result):
    write(tmp_path, "DONE", result=text)
    (one,) = read(tmp_path, split="train")
    assert (one.completed, one.facts.get("result"), one.split) == (completed, result, "train")


def test_a_run_that_an_error_ended_keeps_it(tmp_path):
    folder = write(tmp_path, "pyautogui.click(1, 2)", result=None)
    with (folder / "traj.jsonl").open("a") as file:
        file.write('{"Error": "Time limit exceeded in os/t0"}\n')
    (one,) = read(tmp_path)
    assert (one.facts["error"], len(one.steps), one.completed) == ("Time limit exceeded in os/t0", 1, None)


def change_line(folder, number, **change):
    lines = (folder / "traj.jsonl").read_text().splitlines()
    line = json.loads(lines[number - 1])
    lines[number - 1] = json.dumps({name: value for name, value in (line | change).items() if value != "gone"})
    (folder / "traj.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"action": 5}, "line 2: action"),
        ({"action": "gone"}, "line 2: action: it has none"),
        ({"action": {"parameters": {}}}, "action: an object without an action_type"),
        ({"step_num": "2"}, "line 2: step_num: Input should be a valid integer"),
        ({"step_num": 0}, "two runs in one file: step 0 comes after step 1"),
        ({"step_num": 7}, "no line has step 2, and its screen is there"),
        ({"screenshot_file": "../t0/step_0.png"}, "line 2: screenshot_file: not the name of a file of its folder"),
        ({"screenshot_file": "none.png"}, "its screen none.png is not there"),
        ({"Error": "broke"}, "line 3: lines follow"),
    ],
)
def test_a_bad_line_refuses_its_folder_and_no_other(tmp_path, change, why):
    folder = write(tmp_path, *["pyautogui.click(960, 540)"] * 3)
    write(tmp_path, "DONE", task="t1")
    change_line(folder, 2, **change)
    bad, good = read(tmp_path)
    assert isinstance(bad, RefusedRecord)
    assert why in bad.why
    assert bad.where == "results/pyautogui/screenshot/gpt/os/t0"
    assert isinstance(good, Demonstration)


def test_files_beside_it_are_held_against_what_they_must_be(tmp_path):
    write(tmp_path, "DONE", result="good", task="t0")
    write(tmp_path, "DONE", task="t1")
    write(tmp_path, "DONE", task="t2")
    write(tmp_path, "DONE", task="t3")
    (tmp_path / "tasks" / "os" / "t1.json").unlink()
    (tmp_path / "tasks" / "os" / "t2.json").write_text('{"instruction": 5}')
    (tmp_path / "results/pyautogui/screenshot/gpt/os/t3/step_0.png").write_bytes(b"none")
    told = read(tmp_path)
    for one, why in zip(told, ("result.txt", "--tasks", "t2.json: instruction", "step_0.png"), strict=True):
        assert why in one.why


def test_a_response_without_an_action_is_no_lost_line(tmp_path):
    folder = write(tmp_path, *["pyautogui.click(960, 540)"] * 2)
    change_line(folder, 2, step_num=4)
    (folder / "step_2_20250101@000002.png").rename(folder / "step_4_20250101@000004.png")
    change_line(folder, 2, screenshot_file="step_4_20250101@000004.png")
    (one,) = read(tmp_path)
    assert (one.facts["idle_steps"], len(one.steps)) == ([2, 3], 2)


def test_of_several_task_configs_the_one_of_the_domain_is_meant_or_none(tmp_path):
    write(tmp_path, "DONE")
    write(tmp_path, "DONE", task="t1")
    for domain, task in (("web", "t0"), ("office", "t1"), ("web", "t1")):
        (tmp_path / "tasks" / domain).mkdir(exist_ok=True)
        (tmp_path / "tasks" / domain / f"{task}.json").write_text('{"instruction": "another"}')
    (tmp_path / "tasks" / "os" / "t1.json").unlink()
    good, bad = read(tmp_path)
    assert good.instruction == "sort it"
    assert "its task config may be" in bad.why


def test_an_instruction_beside_the_results_needs_no_task_configs(tmp_path):
    folder = write(tmp_path, "DONE")
    (folder / "instruction.txt").write_text("from beside")
    (one,) = read_osworld([folder])
    assert one.instruction == "from beside"


@pytest.mark.parametrize(("folder", "tasks"), [("none", None), (".", "none")])
def test_a_folder_without_results_or_configs_is_bad_input(tmp_path, folder, tasks):
    write(tmp_path, "DONE")
    folders = [tmp_path / folder / "none" if folder == "none" else tmp_path]
    with pytest.raises(BadInput):
        list(read_osworld(folders, tmp_path / tasks if tasks else None))
