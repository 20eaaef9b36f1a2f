"""What is written in another tool's format comes back equal, but for what the format is said not to hold."""

from __future__ import annotations

import ast
import base64
import json
import struct
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import stored_traces as stored
from hypothesis import given
from hypothesis import strategies as st

from flywheel.agent import actions as act
from flywheel.agent.actions import Point
from flywheel.agent.parsing.parser import parse_demonstrated_action
from flywheel.agent.prompt import screenshot_size
from flywheel.store.images import image_digest
from flywheel.store.interop import atif, browser_use, inspect_logs, osworld, verifiers_traces
from flywheel.store.interop.demonstration import DEMONSTRATION_GRAMMAR, Demonstration, RefusedRecord
from flywheel.store.interop.traces import Trace
from flywheel.utils.errors import BadInput

CLICK = stored.step(act.Click(Point(0.25, 0.5)), 0, "the button", result="opened")
TYPE = stored.step(act.Type("caf\u00e9 'x'\n"), 3)
DONE = stored.step(act.Finished(), 3)


def there_and_back(form: str, trace: Trace, folder: Path) -> Demonstration:
    (one,) = read(form, write(form, trace, folder))
    assert isinstance(one, Demonstration), one
    return one


def write(form: str, trace: Trace, folder: Path) -> Path:
    out = folder / form
    if form == "inspect":
        inspect_logs.write_inspect([trace], out, "sft")
        return out / inspect_logs.FILE
    writers = {
        "osworld": osworld.write_osworld, "atif": atif.write_atif, "verifiers": verifiers_traces.write_verifiers,
    }  # fmt: skip
    writers[form]([trace], out)
    return out


def read(form: str, path: Path) -> list[Demonstration | RefusedRecord]:
    readers = {
        "osworld": osworld.read_osworld,
        "atif": atif.read_atif,
        "inspect": inspect_logs.read_inspect,
        "verifiers": verifiers_traces.read_verifiers,
    }
    return list(readers[form]([path]))


def points(action: act.Action) -> list[Point]:
    return [value for value in vars(action).values() if isinstance(value, Point)]


def assert_same(before: Demonstration, after: Demonstration, *lost: str) -> None:
    """All but the fields `lost` is equal; of points, up to half a pixel and the 4 decimals of the grammar, or a whole
    one at the far edge, where no pixel begins."""
    for name in ("instruction", "completed", "facts", "screens"):
        assert getattr(after, name) == getattr(before, name)
    first = next(iter(before.screens.values()), None)
    for was, now in zip(before.steps, after.steps, strict=True):
        same = {name: getattr(now, name) for name in lost}
        if was.fault:
            assert replace(was, **same) == now
            continue
        told, found = (parse_demonstrated_action(one.action, DEMONSTRATION_GRAMMAR) for one in (was, now))
        size = screenshot_size(before.screens.get(was.screen) or first)
        for one, two in zip(points(told), points(found), strict=True):
            for at, back, pixels in ((one.x, two.x, size[0]), (one.y, two.y, size[1])):
                most = 0.5 if at * pixels < pixels - 1 else 1
                assert abs(at - back) <= most / pixels + 1e-4
        unplaced = [
            replace(one, **{name: Point(0, 0) for name, value in vars(one).items() if isinstance(value, Point)})
            for one in (told, found)
        ]
        assert unplaced[0] == unplaced[1]
        assert replace(was, action="", **same) == replace(now, action="")


@given(
    steps=st.lists(
        st.one_of(stored.learnt(stored.MORE, result=stored.texts, slip=st.booleans()), stored.unlearnt()),
        min_size=1, max_size=4,
    ),
    instruction=stored.texts,
    score=st.one_of(st.none(), st.floats(0, 1)),
    form=st.sampled_from(["atif", "inspect", "verifiers"]),
    read_first=st.none() | stored.texts,
)  # fmt: skip
def test_tool_calls_come_back(tmp_path_factory, steps, instruction, score, form, read_first):
    steps = [replace(steps[0], observation=read_first if steps[0].screen else steps[0].observation), *steps[1:]]
    trace = stored.trace(*steps, instruction=instruction, score=score)
    once = there_and_back(form, trace, tmp_path_factory.mktemp("once"))
    assert_same(trace.demonstration, once)
    again = there_and_back(form, Trace(replace(once, id="t1"), score=score), tmp_path_factory.mktemp("again"))
    assert again.steps == once.steps  # on the pixels, nothing moves any more


@given(
    steps=st.lists(stored.learnt(stored.COMMON), min_size=1, max_size=4),
    instruction=stored.texts.filter(bool),
    score=st.one_of(st.none(), st.floats(0, 1)),
)
def test_osworlds_code_comes_back(tmp_path_factory, steps, instruction, score):
    trace = stored.trace(*steps, instruction=instruction, score=score)
    folder = tmp_path_factory.mktemp("once")
    once = there_and_back("osworld", trace, folder)
    assert_same(trace.demonstration, once)
    for line in next(folder.rglob("traj.jsonl")).read_bytes().splitlines():
        code = json.loads(line)["action"]
        if code.startswith("pyautogui") and "\0" not in code:
            ast.parse(code)


@pytest.mark.parametrize("lost", [{"observation": "read"}, {"result": "returned"}, {"slip": True}])
def test_what_osworld_does_not_hold_is_lost_and_nothing_beside(tmp_path, lost):
    trace = stored.trace(replace(CLICK, result=""), replace(TYPE, **lost))
    assert_same(trace.demonstration, there_and_back("osworld", trace, tmp_path), *lost)


def test_actions_that_osworld_has_in_no_one_call_are_code_that_it_runs(tmp_path):
    trace = stored.trace(stored.step(act.TypeAt(Point(0.25, 0.5), "x", True)), stored.step(act.Finished("42"), 1))
    one = there_and_back("osworld", trace, tmp_path)
    assert one.steps[0].action.splitlines() == [
        "pyautogui.click(250, 250)",
        "pyautogui.hotkey('ctrl', 'a')",
        "pyautogui.press('delete')",
        "pyautogui.write('x')",
    ]
    assert "several actions" in one.steps[0].fault
    assert one.steps[1].action == "finished()"


@given(text=stored.texts.map(lambda text: text.replace("\0", "")))  # no source holds one
def test_texts_of_osworlds_code_are_pythons(text):
    code = osworld.format_pyautogui(act.Type(text), (10, 10))
    assert ast.literal_eval(code.removeprefix("pyautogui.write(").removesuffix(")")) == text


@pytest.mark.parametrize("form", ["atif", "inspect", "verifiers"])
def test_a_step_without_a_screen_counts_in_the_newest_before_it(tmp_path, form):
    blind = replace(stored.step(act.Click(Point(0.25, 0.75)), 0), screen="", observation="a page")
    wide, small = (stored.step(act.Click(Point(0.25, 0.5)), number) for number in (0, 3))
    trace = stored.trace(blind, wide, blind, small, blind)
    assert [trace.size(place) for place in range(5)] == [(1000, 1000), *[(1000, 500)] * 2, *[(64, 48)] * 2]
    assert there_and_back(form, trace, tmp_path).steps == trace.demonstration.steps


def test_osworlds_folders_have_its_names(tmp_path):
    out = write("osworld", stored.trace(CLICK, TYPE, DONE), tmp_path)
    task = out / "pyautogui" / "screenshot" / "p0" / "games" / "t1"
    assert sorted(path.name for path in task.iterdir()) == [
        "result.txt", "step_0.png", "step_1.png", "step_2.png", "traj.jsonl",
    ]  # fmt: skip
    lines = [json.loads(line) for line in (task / "traj.jsonl").read_text().splitlines()]
    assert [line["action"] for line in lines] == [
        "pyautogui.click(250, 250)",
        "pyautogui.write('café \\'x\\'\\n')",
        "DONE",
    ]
    assert [line.get("screenshot_file") for line in lines] == ["step_1.png", "step_2.png", None]
    assert [(line["step_num"], line["done"]) for line in lines] == [(1, False), (2, False), (3, True)]
    assert lines[0]["response"].startswith("Thought: the button\nAction: click(")
    assert (task / "result.txt").read_text() == "1.0\n"
    assert (task / "step_0.png").read_bytes() == stored.picture(0)


def test_inspects_log_is_a_zip_of_its_names(tmp_path):
    with zipfile.ZipFile(write("inspect", stored.trace(CLICK, DONE), tmp_path)) as log:
        assert log.namelist() == ["samples/t1_epoch_1.json", "header.json", "summaries.json"]
        header, sample = (json.loads(log.read(name)) for name in ("header.json", "samples/t1_epoch_1.json"))
    assert (header["version"], header["status"], header["eval"]["model"]) == (2, "success", "flywheel/p0")
    assert header["results"]["scores"][0]["metrics"]["mean"]["value"] == 1.0
    assert sample["scores"] == {"flywheel": {"value": 1.0}}
    user, assistant, tool, last, _ = sample["messages"]
    digest = image_digest(stored.picture(0))
    assert user["content"] == [
        {"type": "text", "text": "sort it"},
        {"type": "image", "image": f"attachment://{digest}", "detail": "auto"},
    ]
    assert sample["attachments"][digest] == f"data:image/png;base64,{base64.b64encode(stored.picture(0)).decode()}"
    assert assistant["content"] == [{"type": "reasoning", "reasoning": "the button"}]
    assert assistant["tool_calls"] == [
        {"id": "call_0", "function": "computer_use", "arguments": {"action": "left_click", "coordinate": [250, 250]}}
    ]
    assert (tool["tool_call_id"], tool["content"][0]) == ("call_0", {"type": "text", "text": "opened"})
    assert last["tool_calls"][0]["arguments"] == {"action": "terminate", "status": "success"}


def test_atif_is_harbors_trial(tmp_path):
    trial = write("atif", stored.trace(CLICK, stored.step(act.Finished(), 1)), tmp_path) / "t1"
    told = json.loads((trial / "agent" / "trajectory.json").read_text())
    assert (trial / "verifier" / "reward.txt").read_text() == "1.0\n"
    assert (told["schema_version"], told["agent"]) == (
        *("ATIF-v1.6", {"name": "flywheel", "version": "p0", "model_name": "p0"}),
    )
    assert [(step["step_id"], step["source"]) for step in told["steps"]] == [(1, "user"), (2, "agent"), (3, "agent")]
    user, click, _ = told["steps"]
    assert user["message"][1] == {"type": "image", "source": {"media_type": "image/png", "path": "images/0.png"}}
    assert click["reasoning_content"] == "the button"
    assert click["tool_calls"][0]["arguments"] == {"action": "left_click", "coordinate": [250, 250]}
    assert click["observation"]["results"] == [
        {
            "content": [
                {"type": "text", "text": "opened"},
                {"type": "image", "source": {"media_type": "image/jpeg", "path": "images/1.jpg"}},
            ],
            "source_call_id": "call_0",
        }
    ]
    assert (trial / "agent" / "images" / "1.jpg").read_bytes() == stored.picture(1)


# -- others' files ----------------------------------------------------------------------------------------------


def uri(number: int) -> str:
    return "data:image/png;base64," + base64.b64encode(stored.picture(number)).decode()


def inspect_log(folder: Path, **sample) -> Path:
    """A log as Inspect writes it of its own tool `computer`, two calls in one turn, the last a text alone."""
    calls = [
        {"id": "a", "function": "computer", "type": "function", "arguments": {"action": "key", "text": "ctrl+s"}},
        {"id": "b", "function": "computer", "type": "function",
         "arguments": {"action": "left_click", "coordinate": [16, 12]}},
    ]  # fmt: skip
    messages = [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": "attachment://0", "source": "input"},
        {"role": "assistant", "content": [{"type": "text", "text": "I save."}], "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "image", "image": uri(3), "detail": "auto"}]},
        {"role": "tool", "tool_call_id": "b", "content": "clicked", "function": "computer"},
        {"role": "assistant", "content": "It is saved."},
    ]
    made = {"id": 7, "epoch": 2, "input": "x", "target": "", "messages": messages,
            "attachments": {"0": "save it"}, "scores": {"match": {"value": "C", "answer": "yes"}}} | sample  # fmt: skip
    log = {"version": 2, "status": "success", "samples": [made], "eval": {"eval_id": "e", "task": "t", "model": "m/x"}}
    (folder / "log.json").write_text(json.dumps(log))
    return folder / "log.json"


def test_inspects_computer_is_read(tmp_path):
    (one,) = read("inspect", inspect_log(tmp_path))
    assert (one.instruction, one.id, one.completed, one.split) == ("save it", "e/7/2", True, "eval")
    assert one.facts == {"author": "model", "agent": "m/x", "result": 1.0}
    first, second, last = one.steps
    assert (first.thought, first.fault) == ("I save.", "the screen before it was not kept")
    assert second.action == "click(point='<point>0.2500 0.2500</point>')"
    assert (second.screen, second.result, second.thought) == (image_digest(stored.picture(3)), "clicked", "")
    assert last.action == "It is saved."


def test_samples_of_two_logs_are_two(tmp_path):
    names = []
    for number, spec in enumerate(({"eval_id": "e1", "task_id": "t"}, {"task_id": "t2"}, {"task_id": "t3"})):
        (tmp_path / str(number)).mkdir()
        path = inspect_log(tmp_path / str(number))
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eval": {"task": "a", "model": "m"} | spec}))
        names += [one.id for one in read("inspect", path)]
    assert names == ["e1/7/2", "t2/7/2", "t3/7/2"]


def test_the_screen_after_the_last_action_is_not_kept(tmp_path):
    call = {"id": "a", "function": "computer", "arguments": {"action": "wait"}}
    shown = [{"type": "image", "image": uri(number)} for number in (0, 3)]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "do"}, shown[0]]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": [shown[1]]},
    ]
    (one,) = read("inspect", inspect_log(tmp_path, messages=messages))
    assert list(one.screens) == [image_digest(stored.picture(0))]


@pytest.mark.parametrize(
    ("value", "score"), [("I", 0.0), ("P", 0.5), (True, 1.0), (0.25, 0.25), ("good", None), ({"a": 1}, None)]
)
def test_grades_of_inspect_are_scores(tmp_path, value, score):
    (one,) = read("inspect", inspect_log(tmp_path, scores={"s": {"value": value}}))
    assert one.facts.get("result") == score


def atif_trial(folder: Path, path: str = "images/a.png", reward: str | None = "0\n", **step) -> Path:
    """A trial as Harbor writes it of an agent in a terminal."""
    agent = folder / "jobs" / "trial" / "agent"
    (agent / "images").mkdir(parents=True)
    (agent / "images" / "a.png").write_bytes(stored.picture(0))
    image = {"type": "image", "source": {"media_type": "image/png", "path": path}}
    call = {"tool_call_id": "c", "function_name": "bash_command", "arguments": {"keystrokes": "ls\n"}}
    steps = [
        {"step_id": 1, "source": "system", "message": "You are an agent."},
        {"step_id": 2, "source": "user", "message": "list it"},
        {"step_id": 3, "source": "agent", "message": "I list.", "tool_calls": [call],
         "observation": {"results": [{"source_call_id": "c", "content": "a.txt"}, {"content": [image]}]}} | step,
        {"step_id": 4, "source": "agent", "message": "", "tool_calls": [
            {"tool_call_id": "d", "function_name": "computer",
             "arguments": {"action": "left_click", "coordinate": [9, 5]}}
        ]},
    ]  # fmt: skip
    told = {"schema_version": "ATIF-v1.7", "session_id": "s", "agent": {"name": "terminus-2", "version": "2"}}
    (agent / "trajectory.json").write_text(json.dumps(told | {"steps": steps}))
    if reward is not None:
        (folder / "jobs" / "trial" / "verifier").mkdir()
        (folder / "jobs" / "trial" / "verifier" / "reward.txt").write_text(reward)
    return folder / "jobs"


def test_a_trial_of_harbor_is_read(tmp_path):
    (one,) = read("atif", atif_trial(tmp_path))
    assert (one.instruction, one.id, one.completed, one.world) == ("list it", "s", False, "terminus-2")
    listed, clicked = one.steps
    assert (listed.thought, listed.result) == ("I list.", "a.txt")
    assert (listed.fault, listed.observation) == ("", "")  # an agent without a screen reads what was returned
    assert listed.action == "call_tool(tool='bash_command', arguments='{\"keystrokes\":\"ls\\\\n\"}')"
    assert clicked.action == "click(point='<point>0.0090 0.0100</point>')"
    assert clicked.screen == image_digest(stored.picture(0))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"path": "../../../../etc/passwd"}, "no file below its folder"),
        ({"path": "/etc/passwd"}, "no file below its folder"),
        ({"path": "https://example.org/a.png"}, "no file below its folder"),
        ({"path": "images/b.png"}, "its screen images/b.png is not there"),
        ({"path": "trajectory.json"}, "the screen is not an image"),
        ({"path": "images/a.png\0"}, "no file below its folder"),
        ({"reward": "good"}, "could not convert string to float"),
        ({"reward": "nan"}, "not a score from 0 to 1"),
        ({"source": "robot"}, "steps.2.source"),
        ({"message": 5}, "steps.2.message"),
        ({"tool_calls": {"a": 1}}, "steps.2.tool_calls"),
        ({"message": "x" * 30_000}, "a text of 30000 characters"),
    ],
)
def test_a_bad_trial_is_refused_with_its_reason(tmp_path, change, why):
    (one,) = read("atif", atif_trial(tmp_path, **change))
    assert isinstance(one, RefusedRecord)
    assert why in one.why
    assert "\n" not in one.why


def browser_history(folder: Path, *items: tuple[dict, dict], path: str = "/home/a/shots/step_1.png") -> Path:
    """A history as browser-use saves it, an (action, result) a step."""
    (folder / "screenshots").mkdir()
    (folder / "screenshots" / "step_1.png").write_bytes(stored.picture(0))
    history = [
        {"model_output": {"evaluation_previous_goal": "", "memory": "", "next_goal": "the goal", "action": [action]},
         "result": [{"is_done": False} | result], "state": {"url": "", "title": "", "tabs": [], "screenshot_path": path,
         "interacted_element": [None]}, "metadata": None, "state_message": None}
        for action, result in items
    ]  # fmt: skip
    (folder / "h.json").write_text(json.dumps({"history": history}))
    return folder / "h.json"


@pytest.mark.parametrize(
    ("action", "metadata", "scale", "text"),
    [
        ({"click": {"index": 4}}, {"click_x": 250.0, "click_y": 125}, 1, "click(point='<point>0.2500 0.2500</point>')"),
        ({"click": {"index": 4}}, {"click_x": 250, "click_y": 125}, 2, "click(point='<point>0.5000 0.5000</point>')"),
        ({"click": {"coordinate_x": 500, "coordinate_y": 250}}, {}, 1, "click(point='<point>0.5000 0.5000</point>')"),
        ({"input": {"index": 4, "text": "x", "clear": False}}, {"input_x": 500, "input_y": 250}, 1,
         "type_at(point='<point>0.5000 0.5000</point>', content='x')"),
        ({"send_keys": {"keys": "Control+o"}}, None, 1, "hotkey(key='control o')"),
        ({"send_keys": {"keys": "Enter"}}, None, 1, "hotkey(key='enter')"),
        ({"send_keys": {"keys": "good morning"}}, None, 1, "type(content='good morning')"),
        ({"scroll": {"down": False, "pages": 1.0}}, None, 1,
         "scroll(point='<point>0.5000 0.5000</point>', direction='up')"),
        ({"navigate": {"url": "http://a", "new_tab": False}}, None, 1, "navigate(content='http://a')"),
        ({"go_back": {}}, None, 1, "navigate_back()"),
        ({"wait": {"seconds": 3}}, None, 1, "wait()"),
        ({"done": {"text": "42", "success": True}}, None, 1, "finished(content='42')"),
    ],
)  # fmt: skip
def test_browser_uses_actions_are_read(tmp_path, action, metadata, scale, text):
    path = browser_history(tmp_path, (action, {"metadata": metadata, "extracted_content": "done"}))
    (one,) = browser_use.read_browser_use([path], "find it", scale=scale)
    ((step,), digest) = one.steps, image_digest(stored.picture(0))
    assert (step.action, step.fault, step.thought, step.result) == (text, "", "the goal", "done")
    assert (step.screen, one.instruction, one.completed) == (digest, "find it", None)


@pytest.mark.parametrize(
    ("action", "metadata"),
    [
        ({"click": {"index": 4}}, None),
        ({"click": {"index": 4}}, {"click_x": 5000, "click_y": 1}),
        ({"click": {"index": 4}}, {"click_x": "1", "click_y": 1}),
        ({"scroll": {"down": True, "index": 3}}, None),
    ],
)
def test_a_click_whose_place_is_not_told_is_not_learnt(tmp_path, action, metadata):
    (one,) = browser_use.read_browser_use([browser_history(tmp_path, (action, {"metadata": metadata}))], "find it")
    assert one.steps[0].fault == "where on the screen the element is was not kept"


def test_the_verdict_of_a_judgement_is_the_score(tmp_path):
    done = {"done": {"text": "42", "success": True}}
    path = browser_history(tmp_path, (done, {"success": True, "is_done": True, "judgement": {"verdict": False}}))
    path.with_suffix(".txt").write_text("from beside")
    (one,) = browser_use.read_browser_use([path], "find it")
    assert (one.completed, one.instruction) == (False, "from beside")
    assert one.id == f"{tmp_path.parent.name}/{tmp_path.name}/h.json"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"path": "../../../etc/passwd"}, "its screen passwd is not there"),
        ({"path": "C:\\shots\\none.png"}, "its screen none.png is not there"),
        ({"action": {"click": 5}}, "not an object of one action"),
        ({"action": {"click": {}, "done": {}}}, "not an object of one action"),
        ({"result": {"extracted_content": 5}}, "history.0.result.0.extracted_content"),
        ({"task": ""}, "write it to h.txt, or give --instruction"),
    ],
)
def test_a_bad_history_is_refused_with_its_reason(tmp_path, change, why):
    step = change.get("action", {"wait": {}}), change.get("result", {})
    path = browser_history(tmp_path, step, **({"path": change["path"]} if "path" in change else {}))
    (one,) = browser_use.read_browser_use([path], change.get("task", "find it"))
    assert why in one.why


TEXT = {"type": "text", "text": "do"}


def large_picture() -> bytes:
    """The header of a PNG of 20000 x 10000 pixels, and no pixels."""
    whole = stored.picture(0)
    head = whole[12:16] + struct.pack(">2I", 20_000, 10_000) + whole[24:29]
    return whole[:12] + head + struct.pack(">I", zlib.crc32(head)) + whole[33:]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": "none"}, "messages: Input should be a valid list"),
        ({"messages": [{"role": "user", "content": "do"}]}, "it has no actions"),
        ({"messages": [{"role": "assistant", "content": "do"}], "input": []}, "its instruction is missing"),
        ({"attachments": {"0": "x" * 20_001}}, "its instruction is missing, or longer"),
        ({"scores": {"s": {"value": 7}}}, "not a score from 0 to 1: 7.0"),
        *(
            ({"messages": [{"role": "user", "content": [TEXT, {"type": "image", "image": image}]}]}, why)
            for image, why in (
                ("file:///etc/passwd", "no data URI of an image"),
                ("data:image/png;base64,!!", "a screen is not base64"),
                ("data:image/png;base64,AAAA", "the screen is not an image"),
                ("data:image/png;base64," + base64.b64encode(large_picture()).decode(), "the screen is too large"),
            )
        ),
    ],
)  # fmt: skip
def test_a_bad_sample_is_refused_with_its_reason(tmp_path, change, why):
    (one,) = read("inspect", inspect_log(tmp_path, **change))
    assert isinstance(one, RefusedRecord)
    assert why in one.why


def test_a_cut_log_or_one_of_another_kind_is_bad_input(tmp_path):
    path = write("inspect", stored.trace(CLICK, DONE), tmp_path)
    path.write_bytes(path.read_bytes()[:-200])
    for wrong, content in ((path, None), (tmp_path / "a.json", "[]"), (tmp_path / "b.json", '{"eval": 3}')):
        if content:
            wrong.write_text(content)
        with pytest.raises(BadInput, match="not a log of Inspect"):
            read("inspect", wrong)
    with pytest.raises(BadInput, match="there is no such file"):
        read("inspect", tmp_path / "none.eval")


@pytest.mark.parametrize("place", [b"PK\x03\x04", b"PK\x01\x02"])
def test_a_damaged_sample_refuses_only_itself(tmp_path, place):
    """Bytes of the compressed sample are changed, or what the zip's directory says of it."""
    path = write("inspect", stored.trace(CLICK, DONE), tmp_path)
    content = bytearray(path.read_bytes())
    at = content.index(place)
    content[at + 16 : at + 20] = b"\1\2\3\4"
    content[at + 60 : at + 70] = bytes(10) if place.endswith(b"\x04") else content[at + 60 : at + 70]
    path.write_bytes(content)
    (one,) = read("inspect", path)
    assert isinstance(one, RefusedRecord)
    assert one.where == "traces.eval samples/t1_epoch_1.json"


def test_a_member_that_says_to_be_huge_is_not_read(tmp_path, monkeypatch):
    path = write("inspect", stored.trace(CLICK, DONE), tmp_path)
    monkeypatch.setattr(inspect_logs, "MAX_TRACE_BYTES", 2_000)
    (one,) = read("inspect", path)
    assert "is larger than" in one.why


def test_a_screen_that_is_too_large_on_disk_is_not_read(tmp_path):
    jobs = atif_trial(tmp_path)
    with (jobs / "trial" / "agent" / "images" / "a.png").open("r+b") as file:
        file.truncate(500 * 2**20)
    (one,) = read("atif", jobs)
    assert "is larger than 64 MiB" in one.why


def test_nothing_half_made_stays_where_writing_fails(tmp_path):
    def traces():
        yield stored.trace(CLICK, DONE)
        raise BadInput("the store is damaged")

    for form, call in (
        ("inspect", lambda out: inspect_logs.write_inspect(traces(), out, "sft")),
        ("atif", lambda out: atif.write_atif(traces(), out)),
        ("osworld", lambda out: osworld.write_osworld(traces(), out)),
        ("verifiers", lambda out: verifiers_traces.write_verifiers(traces(), out)),
    ):
        with pytest.raises(BadInput):
            call(tmp_path / form)
    assert list(tmp_path.iterdir()) == []


def test_a_second_trajectory_of_the_same_name_is_refused_and_the_first_is_not_lost(tmp_path):
    two = [stored.trace(CLICK, DONE), stored.trace(TYPE, DONE)]
    for form, call in (
        ("osworld", osworld.write_osworld),
        ("atif", atif.write_atif),
        ("inspect", lambda traces, out: inspect_logs.write_inspect(traces, out, "sft")),
    ):
        with pytest.raises(BadInput, match=rf"two trajectories are called t1 \(.*{form}\); give each an id"):
            call(two, tmp_path / form)
    assert list(tmp_path.iterdir()) == []
    other = replace(two[1].demonstration, facts={"agent": "p1"})
    assert osworld.write_osworld([two[0], replace(two[1], demonstration=other)], tmp_path / "agents") == 4
    assert len(read("osworld", tmp_path / "agents")) == 2


def test_names_of_folders_do_not_lead_out(tmp_path):
    trace = stored.trace(CLICK, DONE)
    bad = replace(trace.demonstration, id="../../x", template="..", facts={"agent": "a/../../b"})
    for form in ("osworld", "atif"):
        out = write(form, Trace(bad, score=1.0), tmp_path / "deep" / "er")
        assert all(path.resolve().is_relative_to(out) for path in out.rglob("*"))
        assert len(read(form, out)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
