"""What is due where nobody watches: when new data begin a run, and when the last iterations stop it."""

from __future__ import annotations

import shutil

import minimal_iterations
import pytest
import synthetic

from flywheel.config import OperationsSettings, Settings
from flywheel.config.workspace import Workspace, iteration_run_id, renew_iteration_run_id, workspace_name
from flywheel.pipeline import iterations
from flywheel.pipeline.iterations import begin_iteration
from flywheel.store import manifest
from flywheel.store.versioning import stage_records
from flywheel.utils.files import write_json, write_text


@pytest.fixture
def ws(three_iterations, tmp_path) -> Workspace:
    return Workspace(shutil.copytree(three_iterations, tmp_path / "ws", symlinks=True))


def rules(**operations) -> Settings:
    return Settings.model_validate({"operations": operations})


def recorded(ws: Workspace, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        write_text(ws.root / "recordings" / f"{number:03d}-tiles-anna" / "events.jsonl", "")


def test_new_recordings_are_those_that_no_iteration_took_in(ws):
    recorded(ws, 5)
    write_text(ws.root / "recordings" / ".unfinished" / "events.jsonl", "")
    write_text(ws.root / "recordings" / "truth.json", "{}")
    assert iterations.count_new_recordings(ws, Settings()) == 5
    last = manifest.read_own_manifest(ws, 3)
    write_json(ws.manifest(3), {**last, "sessions": ["000-tiles-anna", "003-tiles-anna"]})
    assert iterations.count_new_recordings(ws, Settings()) == 3


def test_enough_new_recordings_begin_one_ingest(ws):
    recorded(ws, 4)
    assert iterations.due_runs(ws, rules(trigger_min_recordings=5)) == []
    assert iterations.due_runs(ws, rules()) == []
    recorded(ws, 1, first=4)
    (first,) = iterations.due_runs(ws, rules(trigger_min_recordings=5))
    assert (first.parameters, first.key) == ({"until": "ingest"}, f"{workspace_name(ws)}:ingest:004")
    recorded(ws, 1, first=5)
    assert [one.key for one in iterations.due_runs(ws, rules(trigger_min_recordings=5))] == [
        first.key
    ]  # Prefect begins a key once


def test_how_many_recordings_an_ingest_waits_for(ws):
    recorded(ws, 4)
    assert iterations.count_missing_recordings(ws, rules(trigger_min_recordings=5)) == 1
    assert iterations.count_missing_recordings(ws, rules(trigger_min_recordings=3)) == 0
    assert iterations.count_missing_recordings(ws, rules()) == Settings().recording.sessions_per_iteration - 4


def test_an_iteration_that_waits_goes_on_once_it_has_taken_in_enough(ws):
    settings = rules(trigger_min_demonstrations=2, trigger_min_recordings=1)
    begin_iteration(ws, 4, minimal_iterations.frozen(settings, recording={"sessions_per_iteration": 0}))
    assert iterations.due_runs(ws, settings) == []  # begun, and nothing taken in yet
    minimal_iterations.run_stage(ws, "ingest", 4)
    synthetic.ingested(ws, 4)  # two demonstrations, and one that was set aside
    assert iterations.due_runs(ws, settings) == []  # not recorded yet
    stage_records.record_stage(ws, "ingest", 4)
    assert iterations.due_runs(ws, rules(trigger_min_demonstrations=3)) == []
    (one,) = iterations.due_runs(ws, settings)
    assert one.parameters == {"until": None}
    assert iteration_run_id(ws, 4) in one.key
    minimal_iterations.run_stage(ws, "synthesize", 4)
    stage_records.record_stage(ws, "synthesize", 4)
    assert iterations.due_runs(ws, settings) == []  # it goes on


@pytest.mark.exhaustive
def test_iterations_that_were_not_promoted_stop_the_next(ws):
    for k, promoted in ((1, True), (2, False), (3, False)):
        write_json(ws.promotion(k), {**manifest.read_promotion(ws, k), "promoted": promoted})
    iterations.raise_if_halted(ws, OperationsSettings(halt_after_rejected=3, halt_after_empty=0))
    iterations.raise_if_halted(ws, OperationsSettings(halt_after_rejected=0, halt_after_empty=0))
    with pytest.raises(
        iterations.LoopHalted, match=r"the last 2 iterations were not promoted.*operations.halt_after_rejected"
    ):
        iterations.raise_if_halted(ws, OperationsSettings(halt_after_rejected=2, halt_after_empty=0))


def test_before_the_first_iteration_nothing_stops_and_all_recordings_are_new(tmp_path):
    ws = Workspace(tmp_path / "new")
    write_text(ws.params, "seed: 7\n")
    stage_records.init_dvc_project(ws)
    iterations.raise_if_halted(ws, OperationsSettings())
    recorded(ws, 2)
    (one,) = iterations.due_runs(ws, rules(trigger_min_recordings=2))
    assert one.key.endswith(":ingest:001")


def test_a_workspace_keeps_its_name_and_a_copy_has_its_own(ws, tmp_path):
    assert workspace_name(ws) == workspace_name(Workspace(ws.root))
    assert workspace_name(ws).startswith("ws-")
    copy = Workspace(shutil.copytree(ws.root, tmp_path / "ws 2: Ada's", symlinks=True))
    assert workspace_name(copy) != workspace_name(ws)
    assert workspace_name(copy).startswith("ws-2-ada-s-")


@pytest.mark.parametrize("text", ["", "[]", "{}", '"ws"'])
def test_a_workspace_whose_name_is_damaged_gets_another(ws, text):
    (ws.state / "identity.json").write_text(text)
    named = workspace_name(ws)
    assert named.startswith("ws-")
    assert workspace_name(ws) == named


def test_an_iteration_that_is_begun_anew_is_another_turn(ws):
    first = iteration_run_id(ws, 4)
    assert iteration_run_id(ws, 4) == first
    renew_iteration_run_id(ws, 4)
    assert iteration_run_id(ws, 4) != first
    assert iteration_run_id(ws, 4).startswith("004-")
