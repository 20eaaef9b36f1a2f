"""What is exported is read by the formats' own libraries, and what these write of it is imported as the same.

They pin other versions of libraries than flywheel, so each is the Python of an environment of its own:
FLYWHEEL_INSPECT (`pip install inspect_ai`), FLYWHEEL_HARBOR (`pip install harbor`), FLYWHEEL_BROWSER_USE
(`pip install browser-use`), FLYWHEEL_VERIFIERS (`pip install verifiers`), FLYWHEEL_VERIFIERS_0_1 (`pip install
'verifiers<0.2'`).
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import stored_traces as stored

from flywheel.agent import actions as act
from flywheel.agent.actions import Point
from flywheel.store.interop import atif, browser_use, inspect_logs, verifiers_traces

STEPS = (
    stored.step(act.Click(Point(0.25, 0.5)), 0, "the button", result="opened", observation="a page"),
    stored.step(act.Type("café 'x'\n"), 1, "I type", slip=True),
    stored.step(act.Terminal("ls -l"), 2, result="total 0"),
    stored.step(act.Finished("42"), 5),
)
READ_INSPECT = """
import json, sys
from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries, write_eval_log
log = read_eval_log(sys.argv[1])
(sample,) = read_eval_log(sys.argv[1], resolve_attachments=True).samples
(summary,) = read_eval_log_sample_summaries(sys.argv[1])
write_eval_log(log, sys.argv[2])
write_eval_log(log, sys.argv[3])
calls = [call.arguments for one in sample.messages if one.role == "assistant" for call in one.tool_calls]
images = [part.image for one in sample.messages if not isinstance(one.content, str)
          for part in one.content if part.type == "image"]
print(json.dumps([log.status, sample.scores["flywheel"].value, summary.scores["flywheel"].value, calls, images]))
"""
READ_ATIF = """
import json, sys
from pathlib import Path
from harbor.models.trajectories import Trajectory
from harbor.utils.trajectory_validator import TrajectoryValidator
path = Path(sys.argv[1])
checker = TrajectoryValidator()
assert checker.validate(path), checker.get_errors()
made = Trajectory.model_validate_json(path.read_text())
path.write_text(json.dumps(made.to_json_dict()))
print(json.dumps([made.has_multimodal_content(), [one.source for one in made.steps]]))
"""
READ_VERIFIERS = """
import json, sys
from pathlib import Path
from verifiers.v1.trace import WireTrace
from verifiers.v1.utils.trace_store import read_episodes, write_episode
(episode,) = read_episodes(Path(sys.argv[1]), WireTrace)
(trace,) = episode.traces
write_episode(Path(sys.argv[2]), episode)
Path(sys.argv[3], "traces.jsonl").write_text(json.dumps(trace.to_record()))
calls = [json.loads(call.arguments) for one in trace.assistant_messages for call in one.tool_calls]
images = [part.image_url.url for one in trace.messages if isinstance(one.content, list) for part in one.content]
print(json.dumps([episode.ok, trace.reward, trace.num_turns, trace.num_branches, calls, images]))
"""
WRITE_RESULTS = """
import json, sys
from pathlib import Path
from verifiers.types import State
from verifiers.utils.save_utils import load_outputs, save_outputs, state_to_output
told = json.loads(Path(sys.argv[1], "traces.jsonl").read_text())["traces"][0]
messages = [node["message"] for node in told["nodes"]]
state = State(example_id=3, prompt=messages[:2], completion=messages[2:], reward=0.25, timing={}, is_completed=True)
save_outputs([state_to_output(state)], Path(sys.argv[2]))
print(json.dumps([len(load_outputs(Path(sys.argv[2])))]))
"""

WRITE_HISTORY = """
import sys
from browser_use.agent.views import ActionResult, AgentHistory, AgentHistoryList, AgentOutput
from browser_use.browser.views import BrowserStateHistory
from browser_use.tools.service import Tools
Action = Tools().registry.create_action_model()
Output = AgentOutput.type_with_custom_actions(Action)
def item(action, **result):
    output = Output(thinking="I see", evaluation_previous_goal="", memory="", next_goal="", action=[Action(**action)])
    state = BrowserStateHistory("http://a", "t", [], [None], "/home/a/screenshots/step_1.png")
    return AgentHistory(model_output=output, result=[ActionResult(**result)], state=state)
AgentHistoryList(history=[
    item({"click": {"index": 4}}, metadata={"click_x": 250.0, "click_y": 125.0}),
    item({"input": {"index": 5, "text": "blue"}}, metadata={"input_x": 500.0, "input_y": 250.0}),
    item({"done": {"text": "9 to 5", "success": True}}, is_done=True, success=True, extracted_content="9 to 5"),
]).save_to_file(sys.argv[1])
print("[]")
"""


def asked(variable: str, code: str, *words: Path) -> list:
    python = Path(os.environ.get(variable, "none"))
    if not python.is_file():
        pytest.skip(f"{variable} is not the path of a Python")
    done = subprocess.run([python, "-c", code, *words], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("score", [1.0, 0.25])
def test_inspect_reads_our_logs_and_we_read_its(tmp_path, score):
    trace = stored.trace(*STEPS, score=score)
    inspect_logs.write_inspect([trace], tmp_path / "out", "sft")
    own = tmp_path / "out" / inspect_logs.FILE
    written = [tmp_path / "again.json", tmp_path / "again.eval"]
    status, value, summed, calls, images = asked("FLYWHEEL_INSPECT", READ_INSPECT, own, *written)
    assert (status, value, summed) == ("success", score, score)
    assert calls[0] == {"action": "left_click", "coordinate": [250, 250]}
    assert calls[1:3] == [{"action": "type", "text": "café 'x'\n"}, {"command": "ls -l"}]
    assert len(images) == 4
    assert all(one.startswith("data:image/") for one in images)
    ours, *theirs = [list(inspect_logs.read_inspect([path])) for path in (own, *written)]
    assert ours[0].steps == trace.demonstration.steps
    assert theirs == [ours, ours]


def test_harbor_takes_our_trajectories_and_we_take_its(tmp_path):
    trace = stored.trace(*STEPS)
    atif.write_atif([trace], tmp_path / "out")
    ours = list(atif.read_atif([tmp_path / "out"]))
    path = tmp_path / "out" / "t1" / "agent" / "trajectory.json"
    assert asked("FLYWHEEL_HARBOR", READ_ATIF, path) == [True, ["user", "user", *["agent"] * 4]]
    assert list(atif.read_atif([tmp_path / "out"])) == ours
    assert ours[0].steps == trace.demonstration.steps


def test_verifiers_reads_our_episodes_and_we_read_its(tmp_path):
    trace = stored.trace(*STEPS, score=0.25)
    verifiers_traces.write_verifiers([trace], tmp_path / "out")
    for name in ("episode", "record"):
        (tmp_path / name).mkdir()
    folders = [tmp_path / name for name in ("out", "episode", "record")]
    ok, reward, turns, branches, calls, images = asked("FLYWHEEL_VERIFIERS", READ_VERIFIERS, *folders)
    assert (ok, reward, turns, branches) == (True, 0.25, len(STEPS), 1)
    assert calls[0] == {"action": "left_click", "coordinate": [250, 250]}
    assert calls[1:3] == [{"action": "type", "text": "café 'x'\n"}, {"command": "ls -l"}]
    assert len(images) == 4
    ours, *theirs = [list(verifiers_traces.read_verifiers([folder])) for folder in folders]
    assert ours[0].steps == trace.demonstration.steps
    assert theirs[0] == ours
    assert [replace(one, world=ours[0].world) for one in theirs[1]] == ours  # a trace alone does not name its env


def test_results_that_verifiers_0_1_saves_are_read(tmp_path):
    trace = stored.trace(*STEPS)
    verifiers_traces.write_verifiers([trace], tmp_path / "out")
    assert asked("FLYWHEEL_VERIFIERS_0_1", WRITE_RESULTS, tmp_path / "out", tmp_path / "run") == [1]
    (one,) = verifiers_traces.read_verifiers([tmp_path / "run"])
    assert one.facts["result"] == 0.25
    assert [replace(step, slip=False) for step in trace.demonstration.steps] == list(one.steps)
    assert one.screens == trace.demonstration.screens


def test_a_history_that_browser_use_saves_is_read(tmp_path):
    (tmp_path / "screenshots").mkdir()
    (tmp_path / "screenshots" / "step_1.png").write_bytes(stored.picture(0))
    asked("FLYWHEEL_BROWSER_USE", WRITE_HISTORY, tmp_path / "h.json")
    (one,) = browser_use.read_browser_use([tmp_path / "h.json"], "find it")
    assert [(step.action, step.fault, step.thought) for step in one.steps] == [
        ("click(point='<point>0.2500 0.2500</point>')", "", "I see"),
        ("type_at(point='<point>0.5000 0.5000</point>', content='blue', clear='true')", "", "I see"),
        ("finished(content='9 to 5')", "", "I see"),
    ]
