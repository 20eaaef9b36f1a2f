"""The stage ingest: its shards; and that a recording is held against earlier ones of the same task content alone."""

from __future__ import annotations

import pytest
from synthetic_rows import START, step, task, trajectory

from flywheel.config import Settings
from flywheel.pipeline.stage import StageContext
from flywheel.pipeline.stages import ingest
from flywheel.recordings import selection
from flywheel.recordings.curate import recording_fingerprint
from flywheel.store import manifest, partitions
from flywheel.store.schema import Step, record_from_row

HUMAN = {"source": "recording", "author": "human", "policy_version": None, "reward": None, "run_id": "r", "at": START}


@pytest.fixture
def recorded(ws):
    """Three iterations, each with a recording of the task `shared`, one of its own task, and one that is invalid."""
    manifest.init_first_checkpoint(ws, digest="base")
    expected, tasks = {}, []
    for k in (1, 2, 3):
        shared = task(f"again{k}", "sites", "shop") | {"params": '{"order": 1}'}
        own = task(f"own{k}", "sites", "shop") | {"params": f'{{"order": {k + 1}}}'}
        rows = [trajectory(f"r{k}{n}", (shared, own, shared)[n], steps=n + k + 1, **HUMAN) for n in range(3)]
        rows[2] |= {"status": "invalid"}
        steps = [step(row, n, total=row["steps"]) for row in rows for n in range(row["steps"])]
        for table, found in (("tasks", [shared, own]), ("trajectories", rows), ("steps", steps)):
            partitions.write_partition(ws, table, k, "ingest", found)
        data = [(table, "ingest") for table in ("tasks", "trajectories", "steps")]
        manifest.write_manifest(ws, k, window=1, data=data)
        mine = [
            record_from_row("steps", Step, row) for row in steps if row["trajectory_id"] == rows[0]["trajectory_id"]
        ]
        expected[recording_fingerprint(shared, mine)] = f"r{k}0"
        tasks.append(shared)
    return StageContext(ws, Settings(), 4, "ingest"), expected, tasks[-1]


def test_recordings_of_the_same_task_content_are_known_and_no_others(recorded, monkeypatch):
    ctx, expected, shared = recorded
    read = []
    real = partitions.find_rows
    monkeypatch.setattr(partitions, "find_rows", lambda *a: read.append((a[1], result := real(*a))) or result)
    assert ingest._known(ctx, [shared | {"task_id": "another name"}]) == expected
    assert {table: rows.num_rows for table, rows in read} == {"tasks": 3, "trajectories": 6, "steps": 2 + 3 + 4}


def test_of_another_template_none_is_known(recorded):
    ctx, _, shared = recorded
    assert ingest._known(ctx, [shared | {"template": "another"}]) == {}
    assert ingest._known(ctx, []) == {}


@pytest.mark.parametrize(
    ("kilobytes", "shards"),
    [
        ([], []),
        ([80] * 72, ["ingest-000-023", "ingest-024-047", "ingest-048-071"]),
        ([0] * 25, ["ingest-000-023", "ingest-024-024"]),
        ([9000, 9000], ["ingest-000-000", "ingest-001-001"]),  # one long session each
        ([80, 0, 3000, 80], ["ingest-000-001", "ingest-002-002", "ingest-003-003"]),
    ],
)
def test_a_shard_has_so_many_sessions_or_so_much_speech(ws, kilobytes, shards):
    for number, size in enumerate(kilobytes):
        folder = ws.root / "recordings" / f"{number:03d}"
        folder.mkdir(parents=True)
        (folder / "speech.opus").write_bytes(bytes(size * 1000))
        (folder / "session.json").touch()
    (ws.root / "recordings").mkdir(exist_ok=True)
    manifest.init_first_checkpoint(ws, digest="base")
    selection.choose_sessions(ws, 1, "recordings", 100)
    assert ingest._plan(StageContext(ws, Settings(), 1, "ingest")) == shards
