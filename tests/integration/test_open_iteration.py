"""What was asked of an iteration that is open: kept where it is resumed, told by name where it does not count."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import minimal_iterations
import pytest
from made_workspaces import flywheel

from flows import iteration as turn
from flows.iteration_loop import run_iterations
from flywheel import config
from flywheel.cli import console
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


class Calls(list):
    """until: the last stage that each iteration was to run."""

    def __init__(self) -> None:
        super().__init__()
        self.until: list[str | None] = []

    def take(self, root, k, overrides, until) -> None:
        self.append((k, overrides))
        self.until.append(until)


@pytest.fixture
def began(monkeypatch) -> list:
    """What the flow of each iteration got, without Prefect; and no look at the machine."""
    calls = Calls()
    monkeypatch.setattr(turn, "iteration", calls.take)
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


def test_a_run_may_end_after_a_stage_and_the_next_goes_on_as_was_asked(ws, began, monkeypatch):
    monkeypatch.setattr(console, "build_summary_tables", lambda *_: [])
    code, told = flywheel(ws, "run", "--until", "rollout")
    assert code == 0, told
    assert re.search(r"Iteration 002 waits after rollout: flywheel run( -w \S+)? goes on with it\n$", told)
    assert began.until == ["rollout"]
    assert ws.run_target.exists()  # of the run that was killed
    assert run_iterations(ws, {}).ran == (2, 3)
    assert [(k, overrides["rl.steps"]) for k, overrides in began] == [(2, 3), (2, 3), (3, 3)]
    assert began.until == ["rollout", None, None]
    ws.run_target.unlink(missing_ok=True)
    assert run_iterations(ws, {}, until="rl-games").ran == (2,)
    assert not ws.run_target.exists()
    assert run_iterations(ws, {}, iterations=1).ran == (2,)


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"until": "rolout"}, r"an iteration has no stage rolout \(--until\); did you mean rollout\?"),
        ({"until": "rl-gmaes"}, r"no stage rl-gmaes \(--until\); did you mean rl-games\?"),
        ({"until": "runs"}, r"no stage runs \(--until\)"),
        ({"until": "rollout", "iterations": 2}, r"2 iterations are asked for.*\(--until\); leave --iterations out"),
    ],
)
def test_a_stage_to_end_after_that_is_none_is_refused_before_anything_begins(ws, began, asked, what):
    with pytest.raises(BadInput, match=what):
        run_iterations(ws, {}, **asked)
    assert began == []


@pytest.mark.parametrize("deployed", [True, False])
def test_ingest_alone_waits_for_recordings_only_where_nobody_typed_it(one_iteration, tmp_path, monkeypatch, deployed):
    ws, ran = Workspace(shutil.copytree(one_iteration, tmp_path / "ws", symlinks=True)), []
    monkeypatch.setattr(iterations, "check_iteration", lambda *_: None)
    monkeypatch.setattr(iterations, "record_base_model", lambda *_: None)
    monkeypatch.setattr(iterations, "count_missing_recordings", lambda *_: 3)
    monkeypatch.setattr(turn, "is_deployed_run", lambda: deployed)
    monkeypatch.setattr(turn, "cluster", SimpleNamespace(open_cluster=lambda *_: contextlib.nullcontext()))
    monkeypatch.setattr(turn, "_run_stages_and_close", lambda ws, chosen, k, until: ran.append((k, until)))
    state = turn._run_iteration(ws, None, {}, "ingest")
    assert ran == ([] if deployed else [(2, "ingest")])
    assert deployed == (state is not None and state.name == "NothingToDo")


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
