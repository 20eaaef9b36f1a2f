"""Recorded files that are damaged or not here: brought back from cache or remote, or told; never made anew."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import minimal_iterations
import pytest
from night import by_day
from processes import PATIENCE_S

from flows.iteration_loop import run_iterations
from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.maintenance import status
from flywheel.pipeline import iterations
from flywheel.pipeline.iterations import begin_iteration
from flywheel.store.versioning import backup, dvc_files, stage_records
from flywheel.utils.errors import BadInput, DataError, FlywheelError
from flywheel.utils.files import write_json
from flywheel.utils.progress import replace_listener

DVC = str(Path(sys.executable).with_name("dvc"))
SETTINGS = minimal_iterations.frozen(Settings(), recording={"sessions_per_iteration": 0})


@pytest.fixture(scope="module")
def committed(one_iteration, tmp_path_factory) -> Path:
    """With iteration 1 in git."""
    root = Path(shutil.copytree(one_iteration, tmp_path_factory.mktemp("recovery") / "ws", symlinks=True))
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "-qm", "iteration 1"], check=True)
    return root


@pytest.fixture
def ws(committed, tmp_path) -> Workspace:
    return Workspace(shutil.copytree(committed, tmp_path / "ws", symlinks=True))


def whole(ws: Workspace) -> dict[str, bytes]:
    folders = (ws.data, ws.root / "models", ws.root / "iterations")
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {ws.relative(path): path.read_bytes() for path in files}


def cut(ws: Workspace) -> None:
    path = ws.partition("steps", 1, "rollout") / "part-00000.parquet"
    path.write_bytes(path.read_bytes()[:5])


def deleted(ws: Workspace) -> None:
    shutil.rmtree(ws.partition("scores", 1, "score"))


def model(ws: Workspace) -> None:
    (ws.model(1, "merged") / "part-00000.parquet").write_text("other weights")


def everything(ws: Workspace) -> None:
    shutil.rmtree(ws.data)
    shutil.rmtree(ws.root / "models")


@pytest.mark.parametrize("damage", by_day([cut, deleted, model, everything]))
def test_a_damaged_file_of_a_complete_iteration_comes_back_and_nothing_is_done_again(ws, damage: Callable):
    before, said = whole(ws), []
    damage(ws)
    with replace_listener(lambda stage, line: said.append(line)):
        outcome = run_iterations(ws, {}, iteration=1)
    assert (outcome.ran, outcome.done_before) == ((), (1,))
    assert whole(ws) == before
    assert stage_records.changed_stages(ws) == {}
    assert any("brought back" in line for line in said)


@pytest.mark.exhaustive
def test_an_iteration_that_goes_on_does_not_repeat_what_it_has_recorded(ws):
    begin_iteration(ws, 2, SETTINGS)
    minimal_iterations.run_stages(ws, ("ingest", "synthesize", "rollout"), 2)
    before = whole(ws)
    shutil.rmtree(ws.partition("steps", 2, "rollout"))
    assert not stage_records.is_stage_done(ws, "rollout", 2)
    backup.restore_damaged_outputs(ws)
    assert stage_records.is_stage_done(ws, "rollout", 2)
    assert whole(ws) == before


@pytest.mark.exhaustive
def test_a_file_of_an_earlier_iteration_that_training_reads_comes_back(three_iterations, tmp_path):
    ws = Workspace(shutil.copytree(three_iterations, tmp_path / "ws", symlinks=True))
    before = whole(ws)
    next(ws.partition("ct", 1, "route").glob("*.parquet")).unlink()
    assert [damage.path for damage in backup.restore_damaged_outputs(ws)] == ["data/ct/iteration=001/stage=route"]
    assert whole(ws) == before


@pytest.mark.exhaustive
def test_a_pruned_output_that_training_reads_and_has_no_copy_is_told(three_iterations, tmp_path):
    ws = Workspace(shutil.copytree(three_iterations, tmp_path / "ws", symlinks=True))
    path = "data/ct/iteration=001/stage=route"
    dvc_files.add_pruned(ws, 1, [path])
    next(ws.partition("ct", 1, "route").glob("*.parquet")).unlink()
    shutil.rmtree(ws.root / ".dvc" / "cache")
    with pytest.raises(DataError, match=rf"{path}: .*cannot be brought back"):
        backup.restore_damaged_outputs(ws)


def test_what_no_copy_is_left_of_stops_the_run_with_what_to_type(ws):
    cut(ws)
    shutil.rmtree(ws.root / ".dvc" / "cache")
    before = whole(ws)
    with pytest.raises(DataError, match=r"dvc pull.*nothing was done again") as raised:
        run_iterations(ws, {})
    assert raised.value.exit_code == 1
    assert "stage=rollout" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert whole(ws) == before


def test_a_cache_that_was_cleared_stops_nothing_where_the_files_are_here(ws):
    shutil.rmtree(ws.root / ".dvc" / "cache")
    assert run_iterations(ws, {}, iteration=1).done_before == (1,)


@pytest.mark.exhaustive
def test_a_clone_fetches_from_its_remote_and_without_one_says_dvc_pull(ws, tmp_path):
    remote = ["remote", "add", "--quiet", "--default", "store", str(tmp_path / "remote")]
    subprocess.run([DVC, *remote], cwd=ws.root, check=True)
    subprocess.run([DVC, "push", "--quiet"], cwd=ws.root, check=True, timeout=PATIENCE_S)
    config = (ws.root / ".dvc" / "config").read_text()
    subprocess.run(["git", "clone", "-q", str(ws.root), str(tmp_path / "clone")], check=True)
    clone = Workspace(tmp_path / "clone")
    with pytest.raises(DataError, match="dvc pull"):
        run_iterations(clone, {})
    lines = [line for _, line in status.status_lines(status.read_workspace_status(clone))]
    assert len(lines) == 1
    assert "dvc pull" in lines[0]
    (clone.root / ".dvc" / "config").write_text(config)
    assert run_iterations(clone, {}, iteration=1).done_before == (1,)
    assert whole(clone) == whole(ws)


def test_a_small_file_that_git_keeps_is_told_with_the_command(ws):
    ws.promotion(1).write_text('{"model": ')
    with pytest.raises(DataError, match=r"git checkout HEAD -- iterations/001/promotion\.json"):
        run_iterations(ws, {})


@pytest.mark.exhaustive
def test_a_complete_iteration_whose_parameters_were_changed_is_told_and_not_done_again(ws):
    text = ws.frozen_params(1).read_text()
    ws.frozen_params(1).write_text(text.replace("threshold: 1.0", "threshold: 0.5"))
    back = "git checkout HEAD -- iterations/001 && dvc checkout --force iterations/001/dvc.yaml"
    with pytest.raises(DataError, match=re.escape(back)):
        run_iterations(ws, {}, iteration=1)
    told = [line for _, line in status.status_lines(status.read_workspace_status(ws))]
    assert any("score@001: changed since it was recorded" in line and back in line for line in told)


def test_a_stage_whose_inputs_changed_is_not_taken_back(ws):
    """An open iteration: someone means another threshold, so what the old one gave is not damage."""
    dvc_files.dvc_lock_path(ws, 1).unlink()
    minimal_iterations.record_stages(ws, ("ingest", "synthesize", "rollout", "score"), 1)
    text = ws.frozen_params(1).read_text()
    ws.frozen_params(1).write_text(text.replace("threshold: 1.0", "threshold: 0.5"))
    (ws.partition("scores", 1, "score") / "part-00000.parquet").write_text("by the new threshold")
    assert backup.restore_damaged_outputs(ws) == []
    assert not stage_records.is_stage_done(ws, "score", 1)


@pytest.mark.exhaustive
def test_a_lost_small_file_of_an_open_iteration_is_told_with_the_stage_that_makes_it(ws):
    begin_iteration(ws, 2, SETTINGS)
    minimal_iterations.run_stages(ws, ("ingest", "synthesize", "rollout", "score", "route"), 2)
    ws.manifest(2).unlink()
    with pytest.raises(DataError, match="flywheel stage route --iteration 2"):
        backup.restore_damaged_outputs(ws)


@pytest.mark.exhaustive
def test_lost_parameters_of_a_complete_iteration_are_told_with_git(ws):
    ws.frozen_params(1).unlink()
    with pytest.raises(FlywheelError, match=r"git checkout HEAD -- iterations/001/params\.yaml"):
        run_iterations(ws, {})


def test_stages_that_are_lost_beside_full_data_are_told(ws):
    dvc_files.dvc_yaml_path(ws, 1).unlink()
    for act in (lambda: run_iterations(ws, {}), lambda: status.read_workspace_status(ws)):
        with pytest.raises(DataError, match=r"git checkout HEAD -- iterations/001/dvc\.yaml"):
            act()
    assert not dvc_files.dvc_yaml_path(ws, 1).exists()
    dvc_files.dvc_lock_path(ws, 1).unlink()
    with pytest.raises(DataError, match=r"no iterations/NNN/dvc\.yaml names them"):
        run_iterations(ws, {})


def test_status_names_the_file_and_what_mends_it(ws):
    cut(ws)
    begin_iteration(ws, 2, SETTINGS)
    said = [line for _, line in status.status_lines(status.read_workspace_status(ws))]
    assert any("dvc checkout --force data/steps/iteration=001/stage=rollout`" in line for line in said)
    assert any(
        f"iteration 002 is not complete (0 of {len(stage_records.stage_names(ws, 2))} stages)" in line for line in said
    )
    assert not any("route@001" in line for line in said), "its input is damaged, it is not changed itself"


def test_an_iteration_out_of_order_is_still_refused(ws):
    with pytest.raises(BadInput, match="the next is 2"):
        run_iterations(ws, {}, iteration=3)


def test_an_iteration_that_was_killed_before_its_tag_is_not_complete(ws):
    """All its stages are recorded by then; the next run passes over them, and reports, tags and copies it."""
    assert iterations.check_iteration_complete(ws, 1)
    write_json(ws.closing(1), "run")
    assert not iterations.check_iteration_complete(ws, 1)
    assert iterations.plan_iterations(ws, Settings()) == [1, 2]
    ws.closing(1).unlink()
    assert iterations.plan_iterations(ws, Settings()) == [2, 3]
