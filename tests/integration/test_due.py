"""What is due where nobody watches: when new data begin a run, and when the last iterations stop it."""

from __future__ import annotations

import shutil

import least_work
import pytest
import synthetic

from flywheel import due, identity
from flywheel.files import write_json, write_text
from flywheel.settings import Operations, Settings
from flywheel.store import manifest, versioning
from flywheel.workspace import Workspace


@pytest.fixture
def ws(three, tmp_path) -> Workspace:
    return Workspace(shutil.copytree(three, tmp_path / "ws", symlinks=True))


def rules(**operations) -> Settings:
    return Settings.model_validate({"operations": operations})


def recorded(ws: Workspace, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        write_text(ws.root / "recordings" / f"{number:03d}-tiles-anna" / "events.jsonl", "")


def test_new_recordings_are_those_that_no_iteration_took_in(ws):
    recorded(ws, 5)
    write_text(ws.root / "recordings" / ".unfinished" / "events.jsonl", "")
    write_text(ws.root / "recordings" / "truth.json", "{}")
    assert due.new_recordings(ws, Settings()) == 5
    last = manifest.own(ws, 3)
    write_json(ws.manifest(3), {**last, "sessions": ["000-tiles-anna", "003-tiles-anna"]})
    assert due.new_recordings(ws, Settings()) == 3


def test_enough_new_recordings_begin_one_ingest(ws):
    recorded(ws, 4)
    assert due.runs(ws, rules(ingest_after=5)) == []
    assert due.runs(ws, rules()) == []
    recorded(ws, 1, first=4)
    (first,) = due.runs(ws, rules(ingest_after=5))
    assert (first.parameters, first.key) == ({"until": "ingest"}, f"{identity.of(ws)}:ingest:004")
    recorded(ws, 1, first=5)
    assert [one.key for one in due.runs(ws, rules(ingest_after=5))] == [first.key]  # Prefect begins a key once


def test_how_many_recordings_an_ingest_waits_for(ws):
    recorded(ws, 4)
    assert due.recordings_lacking(ws, rules(ingest_after=5)) == 1
    assert due.recordings_lacking(ws, rules(ingest_after=3)) == 0
    assert due.recordings_lacking(ws, rules()) == Settings().recording.sessions_per_iteration - 4


def test_an_iteration_that_waits_goes_on_once_it_has_taken_in_enough(ws):
    settings = rules(iterate_after=2, ingest_after=1)
    versioning.add_iteration(ws, 4, least_work.frozen(settings, recording={"sessions_per_iteration": 0}))
    assert due.runs(ws, settings) == []  # begun, and nothing taken in yet
    least_work.run_stage(ws, "ingest", 4)
    synthetic.ingested(ws, 4)  # two demonstrations, and one that was set aside
    assert due.runs(ws, settings) == []  # not recorded yet
    versioning.commit(ws, "ingest", 4)
    assert due.runs(ws, rules(iterate_after=3)) == []
    (one,) = due.runs(ws, settings)
    assert one.parameters == {"until": None}
    assert identity.of_turn(ws, 4) in one.key
    least_work.run_stage(ws, "synthesize", 4)
    versioning.commit(ws, "synthesize", 4)
    assert due.runs(ws, settings) == []  # it goes on


def test_iterations_that_were_not_promoted_stop_the_next(ws):
    for k, promoted in ((1, True), (2, False), (3, False)):
        write_json(ws.promotion(k), {**manifest.read_promotion(ws, k), "promoted": promoted})
    due.stop(ws, Operations(stop_not_promoted=3, stop_unverified=0))
    due.stop(ws, Operations(stop_not_promoted=0, stop_unverified=0))
    with pytest.raises(due.Stopped, match=r"the last 2 iterations were not promoted.*operations.stop_not_promoted"):
        due.stop(ws, Operations(stop_not_promoted=2, stop_unverified=0))


def test_before_the_first_iteration_nothing_stops_and_all_recordings_are_new(tmp_path):
    ws = Workspace(tmp_path / "new")
    write_text(ws.params, "seed: 7\n")
    versioning.prepare(ws)
    due.stop(ws, Operations())
    recorded(ws, 2)
    (one,) = due.runs(ws, rules(ingest_after=2))
    assert one.key.endswith(":ingest:001")


def test_a_workspace_keeps_its_name_and_a_copy_has_its_own(ws, tmp_path):
    assert identity.of(ws) == identity.of(Workspace(ws.root))
    assert identity.of(ws).startswith("ws-")
    copy = Workspace(shutil.copytree(ws.root, tmp_path / "ws 2: Ada's", symlinks=True))
    assert identity.of(copy) != identity.of(ws)
    assert identity.of(copy).startswith("ws-2-ada-s-")


def test_an_iteration_that_is_begun_anew_is_another_turn(ws):
    first = identity.of_turn(ws, 4)
    assert identity.of_turn(ws, 4) == first
    identity.begin_turn(ws, 4)
    assert identity.of_turn(ws, 4) != first
    assert identity.of_turn(ws, 4).startswith("004-")
