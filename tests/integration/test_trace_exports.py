"""A training store goes out as traces, by the command, and comes in again with its steps, screens and scores."""

from __future__ import annotations

import json

import pytest
import synthetic
from click.testing import CliRunner

from flywheel.agent.actions import Point
from flywheel.agent.parsing.parser import parse_demonstrated_action
from flywheel.cli import main
from flywheel.config import Settings
from flywheel.recordings.ingest import ingest_session
from flywheel.store.interop import exports, inspect_logs, traces
from flywheel.store.interop.demonstration import DEMONSTRATION_GRAMMAR, FORMATS, RefusedRecord


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    ws, settings = synthetic.workspace(tmp_path_factory.mktemp("ws"))
    synthetic.incoming(ws, settings, 1, tasks=3, samples=4)
    synthetic.routed(ws, settings, 1)
    return ws


def run(*words) -> str:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("form", ["osworld", "inspect", "atif", "verifiers"])
def test_a_store_goes_out_and_comes_in(built, tmp_path, form):
    out = tmp_path / "out"
    said = run("data", "export", form, "--store", "ct", "-o", out, "-w", built.root)
    steps = list(exports.read_store_steps(built, "ct", 1))
    assert f"wrote {len(steps)} steps of the ct store of iteration" in said
    assert "final_state" in said
    (tmp_path / "params.yaml").write_text("seed: 7\n")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    source = out / inspect_logs.FILE if form == "inspect" else out
    names = {one.step["trajectory_id"] for one in steps}
    said = run("data", "import", form, source, "--split", "train", "-w", tmp_path)
    assert f"imported {len(names)} trajectories to recordings, 0 were there, 0 refused" in said
    assert f"imported 0 trajectories to recordings, {len(names)} were there" in run(
        "data", "import", form, source, "--split", "train", "-w", tmp_path
    )
    expected = sorted(_told(one.trajectory, [step for step in steps if step.step["trajectory_id"] == name])
                      for name, one in {one.step["trajectory_id"]: one for one in steps}.items())  # fmt: skip
    made = [ingest_session(folder, None, Settings(), 1, None) for folder in (tmp_path / "recordings").iterdir()]
    assert all(one.trajectory.status != "invalid" for one in made)
    found = []
    for one in made:
        rows = [(step.action_type, step.thought, step.image_sha256) for step in one.steps]
        found.append((one.trajectory.instruction, one.trajectory.author if form != "osworld" else "", tuple(rows)))
    if form == "osworld":  # its agents are models
        expected = [(instruction, "", rows) for instruction, _, rows in expected]
    assert sorted(found) == sorted(expected)


def _told(trajectory: dict, steps: list[exports.ExportedStep]) -> tuple:
    rows = [(one.step["action_type"], one.step["thought"], one.step["image_sha256"]) for one in steps]
    return trajectory["instruction"], trajectory["author"], tuple(rows)


def test_points_of_any_coordinate_space_are_those_of_the_columns(built):
    told = {}
    for text in (
        "click(point='<point>16 27</point>')",
        "click(point='<point>0.1650 0.2750</point>')",
        "click(start_box='(169,211)')",
        "click(start_box='<|box_start|>(165,275)<|box_end|>')",
        '<tool_call>\n{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [1690, 211]}}\n'
        "</tool_call>",
    ):
        step = next(exports.read_store_steps(built, "ct", 1))
        row = step.step | {"action": text, "x": 0.165, "y": 0.275, "parse_error": None}
        (one,) = traces.iter_traces([exports.ExportedStep(row, step.trajectory, 1.0, 1.0, step.screen)])
        told[text] = parse_demonstrated_action(one.demonstration.steps[0].action, DEMONSTRATION_GRAMMAR)
    assert {action.point for action in told.values()} == {Point(0.165, 0.275)}


def test_a_step_that_has_no_action_goes_out_as_it_was_said(built, tmp_path):
    step = next(exports.read_store_steps(built, "ct", 1))
    wrong = step.step | {"action": None, "raw_text": "I click it", "parse_error": "no action", "misclick": True}
    trace = next(traces.iter_traces([exports.ExportedStep(wrong, step.trajectory, 1.0, 1.0, step.screen), step]))
    inspect_logs.write_inspect([trace], tmp_path / "out", "ct")
    (back,) = inspect_logs.read_inspect([tmp_path / "out" / inspect_logs.FILE])
    assert not isinstance(back, RefusedRecord)
    assert (back.steps[0].action, back.steps[0].fault, back.steps[0].slip) == ("I click it", "no action", True)


def test_formats_tells_of_each_what_it_does_not_hold():
    told = json.loads(run("data", "formats", "--json"))
    assert set(told) == set(FORMATS["points"])
    for name, about in told.items():
        assert about["points"]
        assert about["import"] or about["export"], name
    written = run("data", "formats", "osworld")
    assert "points are pixels of the screen" in written
    assert "tool_result" in written
    assert "did you mean atif" in CliRunner().invoke(main, ["data", "formats", "atiff"]).output


def test_every_format_of_the_commands_is_told_of():
    commands = main.get_command(None, "data")
    forms = {one for one in commands.get_command(None, "export").params[0].type.choices}
    imported = set(commands.get_command(None, "import").list_commands(None))
    assert forms | imported == set(FORMATS["points"])
    assert forms == set(FORMATS["exports"]) - {"store"}
    assert imported == set(FORMATS["not_held"])
