"""Recordings that are played again and said in other words as they are taken in, up to their stores."""

from __future__ import annotations

import json
import shutil

import pytest
import synthetic

from flywheel.config import Settings
from flywheel.pipeline.stage import StageContext, run_stage
from flywheel.pipeline.stages import ingest
from flywheel.recordings import selection
from flywheel.store.catalog import database

NAMES = ("000-tiles-anna", "001-shop-ben", "002-control-carl", "003-shapes-dana")
CURATION = {"replay": "refuse", "rewordings": 2}


def _edit(folder, **task) -> None:
    path = folder / "session.json"
    told = json.loads(path.read_text())
    told["task"] |= task
    path.write_text(json.dumps(told))


@pytest.fixture(scope="module")
def taken_in(tmp_path_factory, project):
    """One recording of another task than it says, one of a desktop; two are as they were."""
    ws, without = synthetic.workspace(tmp_path_factory.mktemp("curated"))
    settings = Settings.model_validate({"curation": CURATION, "recording": {"processes": 1}})
    synthetic.incoming(ws, without, 1, tasks=4)
    for name in NAMES:
        folder = shutil.copytree(project / "recordings" / name, ws.root / "recordings" / name)
        cue = "WEBVTT\n\n00:00.200 --> 00:00.900\nI click the first one\n"
        (folder / "transcript.vtt").write_text(cue)
    other = json.loads((ws.root / "recordings" / NAMES[2] / "session.json").read_text())["task"]
    another = json.loads((project / "recordings" / "005-control-finn" / "session.json").read_text())["task"]
    _edit(ws.root / "recordings" / NAMES[2], params=another["params"], template=another["template"])
    assert other["params"] != another["params"]
    _edit(ws.root / "recordings" / NAMES[3], world="desktop", verifier="", domain="games")
    (ws.iteration(1) / "sessions.json").unlink()
    selection.choose_sessions(ws, 1, "recordings", 9)
    run_stage(ingest.STAGE, StageContext(ws, settings, 1, "ingest"))
    synthetic.routed(ws, settings, 1)
    return ws, settings


def rows(ws, sql: str) -> list[dict]:
    return database.query_catalog(ws, sql).to_pylist()


def test_each_recording_is_played_again_or_said_not_to_be(taken_in):
    ws, _ = taken_in
    found = rows(ws, "SELECT verdict, step, detail, t.status, t.error FROM recording_replays JOIN trajectories t "
                     "USING (iteration, trajectory_id) ORDER BY t.annotator")  # fmt: skip
    assert [row["verdict"] for row in found] == ["same", "same", "differs", "not replayable"]
    assert (found[2]["step"], found[2]["status"]) == (0, "invalid")
    assert found[2]["error"] == "played again, the screen before step 0 differs"
    assert (found[3]["status"], found[3]["detail"]) == ("completed", "there is no world desktop here")


def test_rewordings_have_a_parent_and_share_its_weight(taken_in):
    ws, _ = taken_in
    made = rows(ws, "FROM trajectories WHERE source = 'augmentation' ORDER BY parent_id, sample")
    whole = rows(ws, "FROM trajectories WHERE source = 'recording' AND status = 'completed' ORDER BY trajectory_id")
    assert [row["parent_id"] for row in made] == [row["trajectory_id"] for row in whole for _ in range(2)]
    links = rows(ws, "SELECT child, parent FROM lineage WHERE relation = 'augmented from' ORDER BY parent")
    assert {(row["child"], row["parent"]) for row in links} == {
        (row["trajectory_id"], row["parent_id"]) for row in made
    }
    weights = rows(ws, "SELECT source, weight FROM ct WHERE source IN ('recording', 'augmentation')")
    assert [row["weight"] for row in weights] == [pytest.approx(1 / 3)] * 9
    for one in made:
        (parent,) = [row for row in whole if row["trajectory_id"] == one["parent_id"]]
        assert (one["task_id"], one["annotator"], one["steps"]) == (
            parent["task_id"],
            parent["annotator"],
            parent["steps"],
        )
        assert one["instruction"] != parent["instruction"]
    told = "SELECT s.trajectory_id, string_agg({}, '|' ORDER BY step) AS done FROM steps s GROUP BY ALL"
    done = {row["trajectory_id"]: row["done"] for row in rows(ws, told.format("action || image_sha256"))}
    said = {row["trajectory_id"]: row["done"] for row in rows(ws, told.format("raw_text"))}
    assert all(done[row["trajectory_id"]] == done[row["parent_id"]] for row in made)
    assert all(said[row["trajectory_id"]] != said[row["parent_id"]] for row in made)
    made_by = rows(ws, "SELECT DISTINCT reviewer, decision FROM reviews WHERE kind = 'augmentation'")
    assert made_by == [{"reviewer": "rules", "decision": "kept"}]


def test_they_are_no_demonstrations_of_people(taken_in):
    ws, _ = taken_in
    (counted,) = rows(ws, "SELECT recordings, augmentations, conserved FROM iterations")
    assert counted == {"recordings": 4, "augmentations": 6, "conserved": True}
    figures = "sum(trajectories) AS made, sum(minutes) AS minutes, sum(to_ct) AS kept"
    (spent,) = rows(ws, f"SELECT {figures} FROM people_minutes WHERE work = 'recording'")
    alone = "SELECT sum(epoch(ended_at - started_at)) / 60 AS m FROM trajectories WHERE source = 'recording'"
    assert (spent["made"], spent["kept"]) == (4, 3)
    assert spent["minutes"] == pytest.approx(rows(ws, alone)[0]["m"])
    assert not rows(ws, "FROM scores JOIN trajectories USING (trajectory_id) WHERE source = 'augmentation'")


def test_what_was_reworded_is_no_earlier_recording(taken_in):
    """A recording is a duplicate of the recording, never of what was made of it."""
    ws, settings = taken_in
    ctx = StageContext(ws, settings, 2, "ingest")
    known = ingest._known(ctx, rows(ws, "FROM tasks WHERE stage = 'ingest'"))
    whole = rows(ws, "SELECT trajectory_id FROM trajectories WHERE source = 'recording' AND status <> 'invalid'")
    assert set(known.values()) == {row["trajectory_id"] for row in whole}
