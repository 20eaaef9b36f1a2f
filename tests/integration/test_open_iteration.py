"""What was asked of an iteration that is open: kept where it is resumed, told by name where it does not count."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

import minimal_iterations
import pytest

from flows import iteration as turn
from flows.iteration_loop import run_iterations
from flywheel import config
from flywheel.config.workspace import Workspace
from flywheel.pipeline import iterations
from flywheel.pipeline.iterations import begin_iteration
from flywheel.store.versioning import backup, dvc_files, stage_records
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_json, write_text
from flywheel.utils.progress import replace_listener


@pytest.fixture
def ws(one_iteration, tmp_path) -> Workspace:
    """Iteration 1 complete, iteration 2 begun with rl.steps 3 by a run that was killed, which was to make 2 and 3."""
    ws = Workspace(shutil.copytree(one_iteration, tmp_path / "ws", symlinks=True))
    settings = config.load_settings(ws.params, {"rl.steps": 3, "recording.sessions_per_iteration": 0})
    begin_iteration(ws, 2, settings)
    typed = {"rl.steps": 3, "recording.sessions_per_iteration": 0, "versioning.remote": str(tmp_path / "copy")}
    write_json(ws.run_target, {"first": 2, "last": 3, "settings": typed})
    return ws


@pytest.fixture
def began(monkeypatch) -> list:
    """What the flow of each iteration got, without Prefect; and no look at the machine."""
    calls = []
    monkeypatch.setattr(turn, "iteration", lambda root, k, overrides: calls.append((k, overrides)))
    monkeypatch.setattr("flows.iteration_loop.open_prefect_server", _no_server)
    monkeypatch.setattr(iterations, "run_preflight", lambda *_: None)
    monkeypatch.setattr(iterations, "record_base_model", lambda *_: None)
    return calls


def _no_server(ws, *, meanwhile):
    return contextlib.nullcontext("http://none")


def test_a_killed_run_goes_on_with_what_it_was_begun_with(ws, began, tmp_path):
    typed = {"rl.steps": 3, "recording.sessions_per_iteration": 0, "versioning.remote": str(tmp_path / "copy")}
    lines: list[str] = []
    with replace_listener(lambda stage, line: lines.append(line)):
        run_iterations(ws, {})
    assert began == [(2, typed), (3, typed)]
    assert "begun with: recording.sessions_per_iteration=0, rl.steps=3, versioning.remote=" in " ".join(lines)
    assert not ws.run_target.exists()


def test_what_is_typed_wins_and_what_comes_later_gets_it(ws, began):
    run_iterations(ws, {"rl.steps": 4})
    assert [(k, overrides["rl.steps"]) for k, overrides in began] == [(2, 4), (3, 4)]
    chosen = config.load_settings(ws.params, began[0][1])
    assert iterations.list_unused_settings(ws, 2, chosen) == {"rl.steps": 3}  # told by the flow
    assert iterations.list_unused_settings(ws, 3, chosen) == {}


def test_what_no_iteration_would_use_is_refused_by_name(ws, began):
    with pytest.raises(BadInput, match=r"rl.steps would not be used: iteration 002 .*iterations/002/params.yaml"):
        run_iterations(ws, {"rl.steps": 4, "operations.restarts": 1}, iteration=2)
    run_iterations(ws, {"rl.steps": 3, "operations.restarts": 1}, iteration=2)  # the same command again
    assert [k for k, _ in began] == [2]


@pytest.mark.parametrize(
    ("name", "value"),
    [("operations.schedule", "99 1 * * *"), ("operations.schedule", "0 24 * * *"), ("rl.steps", -1), ("rl.stpes", 1)],
)
def test_a_wrong_value_is_refused_while_an_iteration_is_open(ws, began, name, value):
    with pytest.raises(BadInput, match=name):
        run_iterations(ws, {name: value})
    assert began == []


@pytest.mark.parametrize("schedule", ["0 1 * * *", "*/15 0-23 1,15 jan-dec 7", "@daily", "0 0 * * 1#2"])
def test_schedules_that_cron_has_are_taken(schedule):
    assert config.parse_settings({"operations": {"schedule": schedule}}, where="").operations.schedule == schedule


def test_a_copy_into_a_folder_that_is_not_there_is_refused_before_anything_begins(ws, began, tmp_path):
    for remote in (str(tmp_path / "not" / "there"), "not/there"):
        with pytest.raises(BadInput, match=r"versioning\.remote\); mount its disk"):
            run_iterations(ws, {"versioning.remote": remote})
    assert began == []
    assert not (tmp_path / "not").exists()


def test_a_copy_is_told_or_that_none_was_made(ws, tmp_path):
    lines: list[str] = []
    with replace_listener(lambda stage, line: lines.append(line)):
        backup.push_iterations(ws, "")
        backup.push_iterations(ws, str(tmp_path / "not" / "there"))
        assert backup.push_iterations(ws, str(tmp_path / "copy")) == [1]
        backup.push_iterations(ws, str(tmp_path / "copy"))
    none, gone, made, again = lines
    assert none == "no copy is made: versioning.remote names none"
    assert "is not there" in gone
    there = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert re.match(rf"iteration 001 copied to .*/copy: \d+\.\d MB, of which {len(there)} files were new", made)
    written = sum(path.stat().st_size for stage in stage_records.stage_names(ws, 1) for path in _files(ws, stage))
    assert dvc_files.recorded_bytes(ws, 1) == written > 0
    assert "has all that is recorded" in again


def _files(ws: Workspace, stage: str) -> list[Path]:
    outputs = minimal_iterations.outputs(ws, stage, 1)
    return [path for out in outputs for path in ((out,) if out.is_file() else out.rglob("*")) if path.is_file()]


def test_wrong_parameters_are_told_to_whoever_is_notified(ws):
    """Under `flywheel workspace up`; what was said before holds, and a mended file counts."""
    from flows.ops import supervisor

    before = config.parse_settings({"operations": {"notify_command": "cat > told.json"}}, where="")
    write_text(ws.params, "seed: 7\noperations:\n  restarts: none\n")
    assert supervisor.apply_changed_params(ws, before, None) is before
    told = (ws.root / "told.json").read_text()
    assert '"event": "params"' in told
    assert "operations.restarts" in told
