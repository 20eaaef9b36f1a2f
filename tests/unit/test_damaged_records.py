"""A damaged record of an iteration is told with its place and what to do, not by a parser's error."""

from __future__ import annotations

import pytest

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.evaluation import gate, promotion_review
from flywheel.maintenance import checkup
from flywheel.recordings.recorder import recorder
from flywheel.store import manifest, routing_decisions
from flywheel.store.catalog import database, run_history
from flywheel.store.versioning import dvc_files, stage_records
from flywheel.utils.errors import BadInput, DataError, FlywheelError
from flywheel.utils.files import write_json, write_text

ENTRIES = {"rollout": {"cmd": "flywheel stage rollout", "outs": [{"path": "data/steps", "md5": "d0", "size": 3}]}}
CONFLICT = "schema: '2.0'\nstages:\n<<<<<<< HEAD\n  rollout: {cmd: x}\n=======\n"


def test_a_dvc_lock_is_read_as_it_was_written_and_one_that_is_missing_is_empty(tmp_path):
    path = tmp_path / "dvc.lock"
    assert dvc_files.read_dvc_lock(path) == {}
    path.write_text(dvc_files.dump_dvc_lock(ENTRIES))
    assert dvc_files.read_dvc_lock(path) == ENTRIES


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (CONFLICT.encode(), "not valid YAML: .*line 4"),
        (b"\xff\xfe", "not valid YAML: "),
        (b"stages: {rollout: 2026-99-99}\n", "not valid YAML: month"),
        (b"stages: {rollout: !!int ''}\n", "not valid YAML: "),
        (b"", "not a dvc.lock"),
        (b"- rollout\n", "not a dvc.lock"),
        (b"schema: '2.0'\n", "not a dvc.lock"),
        (b"stages:\n  rollout: 3\n", "not a dvc.lock"),
        (b"stages:\n  rollout: {outs: 3}\n", "not a dvc.lock"),
        (b"stages:\n  rollout: {deps: [{md5: d0}]}\n", "not a dvc.lock"),
        (b"stages:\n  rollout: {outs: [{path: 3}]}\n", "not a dvc.lock"),
    ],
)
def test_a_damaged_dvc_lock_is_named_in_one_line(tmp_path, content, what):
    path = tmp_path / "dvc.lock"
    path.write_bytes(content)
    with pytest.raises(DataError, match=what) as error:
        dvc_files.read_dvc_lock(path)
    assert error.value.where == str(path)
    assert "git checkout" in error.value.fix
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["[]", "{}", '{"paths": "data"}', '{"paths": [3]}'])
def test_a_damaged_list_of_pruned_outputs_is_named(tmp_path, text):
    ws = Workspace(tmp_path)
    dvc_files.add_pruned(ws, 1, ["data/b", "data/a"])
    assert dvc_files.read_pruned(ws, 1) == {"data/a", "data/b"}
    write_text(ws.iteration(1) / "pruned.json", text)
    with pytest.raises(DataError, match="not a list of what was pruned"):
        dvc_files.read_pruned(ws, 1)


def test_beside_a_damaged_dvc_lock_no_stage_counts_as_unchanged(tmp_path):
    ws = Workspace(tmp_path)
    (tmp_path / ".dvc").mkdir()
    write_text(tmp_path / ".dvcignore", dvc_files.DVCIGNORE)
    write_text(dvc_files.dvc_yaml_path(ws, 1), "stages:\n  rollout: {cmd: flywheel stage rollout, wdir: ../..}\n")
    write_text(dvc_files.dvc_lock_path(ws, 1), dvc_files.dump_dvc_lock({"rollout": {"cmd": "flywheel stage rollout"}}))
    assert stage_records.find_unchanged_stages(ws, 1) == {"rollout"}
    write_text(dvc_files.dvc_lock_path(ws, 1), CONFLICT)
    assert stage_records.find_unchanged_stages(ws, 1) == frozenset()


@pytest.mark.parametrize(("text", "what"), [("[{", "not valid JSON: "), ("{}", "not a list of runs")])
def test_damaged_run_history_is_named(tmp_path, text, what):
    ws = Workspace(tmp_path)
    assert run_history.read_run_history(ws, 3) == []
    write_text(ws.run_history(3), text)
    with pytest.raises(DataError, match=what) as error:
        run_history.read_run_history(ws, 3)
    assert error.value.where == ".flywheel/runs/003.json"
    assert error.value.fix


@pytest.mark.parametrize(("text", "what"), [("<<<<<<< HEAD", "not valid JSON: "), ("[]", "no list"), ("{}", "no list")])
def test_a_damaged_checkup_is_named(tmp_path, text, what):
    ws = Workspace(tmp_path)
    assert checkup.read_checkup(ws, 2) == {}
    write_text(ws.checkup(2), '{"digest": "d0", "rows": []}')
    assert checkup.read_checkup(ws, 2) == {"digest": "d0", "rows": []}
    write_text(ws.checkup(2), text)
    with pytest.raises(DataError, match=what) as error:
        checkup.read_checkup(ws, 2)
    assert error.value.where == "iterations/002/checkup.json"
    assert "delete it" in error.value.fix


@pytest.mark.parametrize(
    "raw",
    [
        {"model": "models/base", "digest": 3},
        {"model": "models/base", "digest": "d0", "best": "models/base"},
        {"model": "models/base", "digest": "d0", "best": {"model": "models/base"}},
        {"model": "models/base", "digest": "d0", "promoted": "no"},
        {"model": "models/base", "digest": "d0", "promoted": None},
        {"model": "models/base", "digest": "d0", "promoted": 0},
    ],
)
def test_a_damaged_promotion_is_named(tmp_path, raw):
    ws = Workspace(tmp_path)
    write_json(ws.promotion(1), raw)
    with pytest.raises(DataError, match="promotion") as error:
        manifest.read_promotion(ws, 1)
    assert error.value.where == ws.relative(ws.promotion(1))


def test_a_promotion_that_does_not_say_whether_is_named(tmp_path):
    ws = Workspace(tmp_path)
    write_json(ws.promotion(1), {"model": "models/base", "digest": "d0"})
    assert manifest.read_promotion(ws, 1)["digest"] == "d0"
    with pytest.raises(DataError, match=r"promotion has no promoted \(iterations/001/promotion\.json\); restore it"):
        manifest.is_model_promoted(ws, 1)
    write_json(ws.promotion(1), {"model": "models/base", "digest": "d0", "promoted": False})
    assert manifest.is_model_promoted(ws, 1) is False


def test_an_override_of_a_promotion_that_does_not_say_whether_ends_in_one_line(tmp_path, monkeypatch):
    ws = Workspace(tmp_path)
    write_json(ws.promotion(1), {"model": "models/base", "digest": "d0"})
    monkeypatch.setattr(promotion_review, "find_override_obstacle", lambda ws, iteration: None)
    with pytest.raises(DataError, match="promotion has no promoted"):
        promotion_review.record_override(ws, 1, promote=True, reviewer="ada", comment="it is better")


@pytest.mark.parametrize(
    ("name", "block", "what"),
    [
        ("jury", {"members": 3}, "there is no such block"),
        ("seed", {"members": 3}, "there is no such block"),
        ("judge", {"members": 3}, "members: Extra inputs are not permitted"),
        ("judge", 3, "the whole: "),
    ],
)
def test_a_routing_rule_of_another_version_ends_in_one_line(tmp_path, name, block, what):
    ws = Workspace(tmp_path)
    rule = routing_decisions.RoutingRule(scorers=("judge",), settings={name: block})
    routing_decisions.write_decisions(ws, 1, (routing_decisions.RoutingDecision(rule, "2026-01-01T00:00:00", ()),))
    held = routing_decisions.current_routing_rule(ws, 1)
    with pytest.raises(DataError, match=f"this version cannot read: {what}") as error:
        held.apply_to(Settings())
    assert error.value.where == f"decisions.json, settings.{name}"
    assert "flywheel data reroute" in error.value.fix


def test_settings_of_a_routing_rule_that_are_no_object_are_named(tmp_path):
    ws = Workspace(tmp_path)
    rule = {"scorers": ["judge"], "settings": ["judge"]}
    write_json(routing_decisions.decisions_path(ws, 1), {"decisions": [{"rule": rule, "at": "", "routes": []}]})
    with pytest.raises(DataError, match=r"not a list of decisions.*settings of a rule are no object"):
        routing_decisions.current_routing_rule(ws, 1)


@pytest.mark.parametrize("models", [[], {"d0": 3}, {"d0": {"task": None}}, {"d0": {"task": "half"}}])
def test_damaged_outcomes_are_named(tmp_path, models):
    ws = Workspace(tmp_path)
    write_json(ws.held_out(1), {"about": "x", "models": models})
    with pytest.raises(DataError, match="not the outcomes of an evaluation"):
        gate.read_held_out_outcomes(ws, 1)


def test_a_query_that_needs_too_much_memory_is_no_wrong_query(tmp_path):
    with database.connect_catalog(Workspace(tmp_path)) as connection:
        connection.execute("SET memory_limit = '20MB'; SET max_temp_directory_size = '0B'")
        with pytest.raises(FlywheelError, match="more memory than it may take") as error:
            database.query_rows(connection, "SELECT list(range ORDER BY hash(range)) FROM range(9_000_000)")
    assert not isinstance(error.value, BadInput | DataError)


@pytest.mark.parametrize("line", ["[]", "1", '{"kind": "press"}', '{"time_s": 0, "kind": "press", "strange": 1}'])
def test_a_line_of_a_recording_that_is_no_input_is_told_with_its_place(tmp_path, line):
    write_text(tmp_path / "input.jsonl", '{"time_s": 0, "kind": "press"}\n' + line + "\n")
    with pytest.raises(DataError, match="line 2"):
        recorder.read_inputs(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]"])
@pytest.mark.parametrize("name", ["about.json", "end.json"])
def test_a_damaged_file_of_a_recording_is_told_by_name(tmp_path, name, text):
    write_json(tmp_path / "about.json", {"width": 1, "height": 1})
    write_text(tmp_path / name, text)
    with pytest.raises(DataError, match=name):
        recorder.read_length(tmp_path)


@pytest.mark.parametrize(("name", "lacks"), [("about.json", "height, width"), ("end.json", "seconds")])
def test_a_file_of_a_recording_that_lacks_a_field_is_told(tmp_path, name, lacks):
    write_json(tmp_path / "about.json", {"width": 1, "height": 1})
    write_json(tmp_path / name, {"other": 1})
    with pytest.raises(DataError, match=f"it lacks {lacks}"):
        recorder.read_length(tmp_path)


def test_a_folder_without_a_recording_has_no_dropped_inputs(tmp_path):
    assert not recorder.describe_dropped(tmp_path)
