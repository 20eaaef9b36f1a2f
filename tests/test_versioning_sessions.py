"""Which sessions an iteration takes: chosen once, none twice, and checked."""

from __future__ import annotations

import pytest

from flywheel.errors import BadInput, DataError
from flywheel.store import manifest, sessions
from flywheel.store.partitions import write_text
from flywheel.workspace import Workspace


@pytest.fixture
def ws(tmp_path) -> Workspace:
    ws = Workspace(tmp_path)
    manifest.genesis(ws, digest="d0")
    for name in "abc":
        write_text(tmp_path / "recordings" / name / "events.jsonl", name)
    return ws


def test_each_iteration_takes_the_next_ones(ws):
    assert [s.id for s in sessions.plan(ws, 1, "recordings", 2)] == ["a", "b"]
    manifest.write(ws, 1, window=1, sessions=["a", "b"])
    assert [s.id for s in sessions.plan(ws, 2, "recordings", 2)] == ["c"]
    assert manifest.read(ws, 1).sessions == ("a", "b")


def test_a_choice_stands_when_sessions_are_added(ws):
    before = sessions.plan(ws, 1, "recordings", 6)
    write_text(ws.root / "recordings" / "aa" / "events.jsonl", "new")
    assert sessions.plan(ws, 1, "recordings", 6) == before


def test_a_session_that_changed_is_named(ws):
    sessions.plan(ws, 1, "recordings", 3)
    write_text(ws.root / "recordings" / "b" / "events.jsonl", "edited")
    with pytest.raises(DataError, match="changed after it was chosen") as raised:
        sessions.planned(ws, 1)
    assert raised.value.where == "recordings/b"


def test_a_missing_folder_is_bad_input_only_where_sessions_are_wanted(ws):
    with pytest.raises(BadInput, match=r"set recording\.folder"):
        sessions.plan(ws, 1, "nowhere", 3)
    assert sessions.plan(ws, 1, "nowhere", 0) == []
