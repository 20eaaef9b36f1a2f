"""Giving up an iteration: exactly what was begun of it goes, at once or in two goes, and never what is complete."""

from __future__ import annotations

import os
import shutil

import minimal_iterations
import pytest
from click.testing import CliRunner
from night import by_day

from flywheel.cli import main
from flywheel.config import Settings, run_lock
from flywheel.config.workspace import Workspace
from flywheel.maintenance import rollback, status
from flywheel.pipeline.iterations import begin_iteration
from flywheel.store.versioning import stage_records
from flywheel.utils.errors import BadInput, FlywheelError
from flywheel.utils.files import write_text

SETTINGS = minimal_iterations.frozen(Settings(), recording={"sessions_per_iteration": 0})


@pytest.fixture
def ws(one_iteration, tmp_path) -> Workspace:
    return Workspace(shutil.copytree(one_iteration, tmp_path / "ws", symlinks=True))


def content(ws: Workspace) -> dict[str, bytes]:
    private = (ws.root / ".dvc", ws.state / "dvc.lock", ws.state / "lock")
    files = (path for path in ws.root.rglob("*") if path.is_file())
    return {ws.relative(p): p.read_bytes() for p in files if not any(p.is_relative_to(one) for one in private)}


def begin(ws: Workspace) -> None:
    """Iteration 2, left in the middle."""
    begin_iteration(ws, 2, SETTINGS)
    minimal_iterations.run_stages(ws, ("ingest", "synthesize", "rollout"), 2)
    minimal_iterations.run_stage(ws, "ct", 2)
    write_text(ws.staging(2, "ct") / "key" / "ct" / "state.pt", "half a training")
    write_text(ws.run_target, '{"first": 2, "last": 3}')


def test_what_was_begun_goes_and_nothing_else(ws):
    before = content(ws)
    begin(ws)
    result = CliRunner().invoke(main, ["iteration", "drop", "--yes", "-w", str(ws.root)])
    assert result.exit_code == 0, result.output
    assert content(ws) == before
    assert stage_records.list_iterations(ws) == [1]
    assert stage_records.changed_stages(ws) == {}
    told = result.output.splitlines()
    for name in ("iterations/002", "data/steps/iteration=002", "models/iteration=002"):
        assert name in told
    assert not any("001" in line for line in told)


def test_it_asks_first(ws):
    begin(ws)
    before = content(ws)
    result = CliRunner().invoke(main, ["iteration", "drop", "-w", str(ws.root)], input="n\n")
    assert "iterations/002" in result.output
    assert content(ws) == before


@pytest.mark.parametrize("removals", by_day([0, 4, 10]))
def test_what_was_interrupted_is_finished_by_typing_it_again(ws, monkeypatch, removals):
    before = content(ws)
    begin(ws)
    left, remove = removals, shutil.rmtree

    def rmtree(path, *arguments, **options):
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        remove(path, *arguments, **options)

    with monkeypatch.context() as patient:
        patient.setattr(rollback.shutil, "rmtree", rmtree)
        with pytest.raises(KeyboardInterrupt):
            rollback.discard_iteration(ws, rollback.plan_discard(ws))
    rollback.discard_iteration(ws, rollback.plan_discard(ws, 2))
    assert content(ws) == before


def test_a_complete_iteration_is_never_discarded(ws):
    for damage in (lambda: None, lambda: shutil.rmtree(ws.data), lambda: ws.promotion(1).unlink()):
        damage()
        with pytest.raises(BadInput, match="001 is complete"):
            rollback.plan_discard(ws, 1)
        with pytest.raises(BadInput, match="001 is complete"):
            rollback.plan_discard(ws)


def test_a_decided_iteration_is_not_discarded(ws):
    begin_iteration(ws, 2, SETTINGS)
    for stage in ("merge", "evaluate", "promote"):
        minimal_iterations.run_stage(ws, stage, 2)
    stage_records.record_stage(ws, "promote", 2)
    with pytest.raises(BadInput, match="002 is released"):
        rollback.plan_discard(ws)


def test_what_was_not_begun_cannot_be_discarded(ws, tmp_path):
    with pytest.raises(BadInput, match="iteration 4 has not been begun"):
        rollback.plan_discard(ws, 4)
    (tmp_path / "fresh").mkdir()
    with pytest.raises(BadInput, match="no iteration has been begun"):
        rollback.plan_discard(Workspace(tmp_path / "fresh"))


def test_what_status_tells_to_type_can_be_typed(ws):
    """Of an open iteration: to drop it, unless its promotion is decided; neither while a run makes it."""
    with run_lock.hold_workspace(ws):
        told = " ".join(line for _, line in status.status_lines(status.read_workspace_status(ws)))
        assert f"another flywheel command is at work here (process {os.getpid()})" in told
        run_lock.record_run(ws, 2, run_lock.RUN_COMMAND)
        (line,) = status.read_work_status(ws).lines()
        assert line.startswith("iteration 002 is about to begin (flywheel run, process")
    begin_iteration(ws, 2, SETTINGS)
    with run_lock.hold_workspace(ws):
        run_lock.record_run(ws, 2, run_lock.RUN_COMMAND)
        told = " ".join(line for _, line in status.status_lines(status.read_workspace_status(ws)))
    assert "iteration 002 is at work since" in told
    assert "goes on with it" not in told
    told = " ".join(line for _, line in status.status_lines(status.read_workspace_status(ws)))
    assert "`flywheel run` goes on with it, `flywheel iteration drop` gives it up" in told
    for stage in ("merge", "evaluate", "promote"):
        minimal_iterations.run_stage(ws, stage, 2)
    stage_records.record_stage(ws, "promote", 2)
    told = " ".join(line for _, line in status.status_lines(status.read_workspace_status(ws)))
    assert "`flywheel run` goes on with it" in told
    assert "`flywheel iteration drop`" not in told


def test_not_while_a_run_is_at_work(ws):
    begin(ws)
    before = content(ws)
    with run_lock.hold_workspace(ws):
        assert run_lock.is_workspace_busy(ws)
        result = CliRunner().invoke(main, ["iteration", "drop", "--yes", "-w", str(ws.root)])
        with pytest.raises(FlywheelError, match="another run"), run_lock.hold_workspace(ws):
            pass
    assert not run_lock.is_workspace_busy(ws)
    assert result.exit_code == 1
    assert "another run is at work here" in result.output
    assert content(ws) == before
