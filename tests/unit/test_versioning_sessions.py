"""Which sessions an iteration takes: chosen once, none twice, and checked."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from flywheel.config.workspace import Workspace
from flywheel.recordings import selection
from flywheel.store import manifest, partitions
from flywheel.store.interop.demonstration import DEMONSTRATION_FILE
from flywheel.store.schema import make_trajectory_id
from flywheel.store.versioning import dvc_files
from flywheel.utils import progress
from flywheel.utils.errors import BadInput, DataError
from flywheel.utils.files import write_text


@pytest.fixture
def ws(tmp_path) -> Workspace:
    ws = Workspace(tmp_path)
    manifest.init_first_checkpoint(ws, digest="d0")
    for name in "abc":
        write_text(tmp_path / "recordings" / name / "events.jsonl", name)
        write_text(tmp_path / "recordings" / name / "session.json", "{}")
    (tmp_path / "recordings" / ".hidden").mkdir()
    write_text(tmp_path / "recordings" / "truth.json", "{}")
    return ws


def test_each_iteration_takes_the_next_ones(ws):
    assert [s.id for s in selection.choose_sessions(ws, 1, "recordings", 2)] == ["a", "b"]
    manifest.write_manifest(ws, 1, window=1, sessions=["a", "b"])
    assert [s.id for s in selection.choose_sessions(ws, 2, "recordings", 2)] == ["c"]
    assert manifest.read_manifest(ws, 1).sessions == ("a", "b")


def test_imported_ones_have_a_number_of_their_own_and_half_of_one_is_none(ws):
    for name in ("0-import", "1-import", "2-import", ".3-import.part"):
        write_text(ws.root / "recordings" / name / DEMONSTRATION_FILE, "{}")
    assert [s.id for s in selection.choose_sessions(ws, 1, "recordings", 1, 2)] == ["0-import", "1-import", "a"]
    manifest.write_manifest(ws, 1, window=1, sessions=["0-import", "1-import", "a"])
    assert [s.id for s in selection.choose_sessions(ws, 2, "recordings", 0, 9)] == ["2-import"]


def test_what_is_for_later_waits_while_there_are_others(ws):
    def later(folder):
        return folder.name in "ab"

    assert [s.id for s in selection.choose_sessions(ws, 1, "recordings", 2, later=later)] == ["a", "c"]
    manifest.write_manifest(ws, 1, window=1, sessions=["a", "c"])
    assert [s.id for s in selection.choose_sessions(ws, 2, "recordings", 2, later=later)] == ["b"]


def test_what_was_recorded_here_comes_before_the_others(ws, monkeypatch):
    own = {"b", "z"}
    kinds = {True: SimpleNamespace(environment="recorded"), False: SimpleNamespace(environment="browser")}
    monkeypatch.setattr(selection, "load_session_meta", lambda path: (None, kinds[path.name in own]))
    write_text(ws.root / "recordings" / "z" / "session.json", "{}")
    before = [selection.count_chosen_before(ws, ws.root / "recordings" / name) for name in "abcz"]
    assert before == [2, 0, 3, 1]
    assert [s.id for s in selection.choose_sessions(ws, 1, "recordings", 2)] == ["b", "z"]
    manifest.write_manifest(ws, 1, window=1, sessions=["b", "z"])
    assert selection.count_chosen_before(ws, ws.root / "recordings" / "c") == 1
    assert [s.id for s in selection.choose_sessions(ws, 2, "recordings", 1)] == ["a"]


def test_what_is_still_written_is_left_for_the_next_and_told(ws):
    """A recorder's folder, one that is copied, and what came between two iterations."""
    write_text(ws.root / "recordings" / "d.recording" / "session.json", "{}")
    write_text(ws.root / "recordings" / "e" / "events.jsonl", "half")
    told = []
    with progress.add_listener(lambda stage, line: told.append(line)):
        assert [s.id for s in selection.choose_sessions(ws, 1, "recordings", 9)] == ["a", "b", "c"]
    assert told == [f"{name} is not whole yet: it is left for the next iteration" for name in ("d.recording", "e")]
    manifest.write_manifest(ws, 1, window=1, sessions=["a", "b", "c"])
    (ws.root / "recordings" / "d.recording").rename(ws.root / "recordings" / "d")
    write_text(ws.root / "recordings" / "e" / "session.json", "{}")
    write_text(ws.root / "recordings" / "f" / "session.json", "{}")
    assert [s.id for s in selection.choose_sessions(ws, 2, "recordings", 9)] == ["d", "e", "f"]


def test_a_choice_stands_when_sessions_are_added(ws):
    before = selection.choose_sessions(ws, 1, "recordings", 6)
    write_text(ws.root / "recordings" / "aa" / "events.jsonl", "new")
    assert selection.choose_sessions(ws, 1, "recordings", 6) == before


def test_a_session_that_changed_is_named(ws):
    selection.choose_sessions(ws, 1, "recordings", 3)
    write_text(ws.root / "recordings" / "b" / "events.jsonl", "edited")
    with pytest.raises(DataError, match="changed after it was chosen") as raised:
        selection.check_sessions_unchanged(ws, selection.read_chosen_sessions(ws, 1))
    assert raised.value.where == "recordings/b"


def test_a_missing_folder_is_bad_input_only_where_sessions_are_wanted(ws):
    with pytest.raises(BadInput, match=r"no recordings folder.*set recording\.folder"):
        selection.choose_sessions(ws, 1, "nowhere", 3)
    assert selection.choose_sessions(ws, 1, "nowhere", 0) == []


def taken_in(ws: Workspace, iteration: int, invalid: set[str]) -> None:
    """The iteration's ingest as it is recorded: a trajectory a session, `invalid` where it was set aside."""
    rows = [
        {
            "trajectory_id": make_trajectory_id(iteration, "k1", 0, f"human-{session.id}"),
            "task_id": "k1",
            "domain": "games",
            "source": "recording",
            "author": "human",
            "sample": 0,
            "policy_version": "human",
            "status": "invalid" if session.id in invalid else "completed",
            "steps": 1,
        }
        for session in selection.read_chosen_sessions(ws, iteration)
    ]
    partitions.write_partition(ws, "trajectories", iteration, "ingest", rows)
    manifest.write_manifest(
        ws, iteration, window=1, sessions=[session.id for session in selection.read_chosen_sessions(ws, iteration)]
    )


def test_a_session_that_was_set_aside_and_is_mended_comes_again(ws):
    selection.choose_sessions(ws, 1, "recordings", 2)
    taken_in(ws, 1, invalid={"a"})
    write_text(ws.root / "recordings" / "a" / "events.jsonl", "mended")
    write_text(ws.root / "recordings" / "b" / "events.jsonl", "touched, though it was used")
    assert [s.id for s in selection.choose_sessions(ws, 2, "recordings", 9)] == ["a", "c"]
    taken_in(ws, 2, invalid=set())
    write_text(ws.root / "recordings" / "a" / "events.jsonl", "touched again")
    assert selection.choose_sessions(ws, 3, "recordings", 9) == []


def test_a_session_that_was_set_aside_and_is_the_same_does_not_come_again(ws):
    selection.choose_sessions(ws, 1, "recordings", 2)
    taken_in(ws, 1, invalid={"a"})
    assert [s.id for s in selection.choose_sessions(ws, 2, "recordings", 9)] == ["c"]


def test_a_session_mended_before_ingest_is_recorded_is_taken_as_it_is_now(ws, monkeypatch):
    selection.choose_sessions(ws, 1, "recordings", 3)
    write_text(ws.root / "recordings" / "b" / "events.jsonl", "mended")
    assert [s.id for s in selection.choose_sessions(ws, 1, "recordings", 3)] == ["a", "b", "c"]
    selection.check_sessions_unchanged(ws, selection.read_chosen_sessions(ws, 1))
    write_text(ws.root / "recordings" / "b" / "events.jsonl", "mended after ingest")
    dvc_files.dvc_lock_path(ws, 1).write_text("schema: '2.0'\nstages:\n  ingest:\n    cmd: x\n")
    before = selection.read_chosen_sessions(ws, 1)
    assert selection.choose_sessions(ws, 1, "recordings", 3) == before, "what is recorded stands, and stops nothing"


def test_a_session_that_is_removed_before_ingest_is_recorded_stops_nothing(ws):
    selection.choose_sessions(ws, 1, "recordings", 3)
    shutil.rmtree(ws.root / "recordings" / "b")
    assert [s.id for s in selection.choose_sessions(ws, 1, "recordings", 3)] == ["a", "c"]
    assert [s.id for s in selection.read_chosen_sessions(ws, 1)] == ["a", "c"]
