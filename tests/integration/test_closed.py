"""Closed iterations in few files: the catalogue answers the same with them, without them, and after a change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import synthetic
from night import NIGHT, by_day

from flywheel.config.workspace import Workspace
from flywheel.store import partitions
from flywheel.store.catalog import compaction, database
from flywheel.store.schema import TABLES
from flywheel.store.versioning import dvc_files
from flywheel.utils.errors import DataError
from flywheel.utils.files import write_text

VIEWS = (
    "iterations",
    "funnel",
    "p_v1",
    "held_out_success",
    "template_success",
    "p_v1_rise",
    "headroom",
    "trajectory_lineage",
    "learning_curves",
)
ASKED = (*TABLES, *(VIEWS if NIGHT else ("iterations", "p_v1", "trajectory_lineage")))
ITERATIONS = 5


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Five iterations, of which the first four are complete."""
    ws, settings = synthetic.workspace(tmp_path_factory.mktemp("closed") / "ws")
    for k in range(1, ITERATIONS + 1):
        synthetic.incoming(ws, settings, k, tasks=3, samples=2)
        synthetic.routed(ws, settings, k)
        synthetic.outgoing(ws, k)
        if k < ITERATIONS:
            complete(ws, k)
    return ws.root


def complete(ws: Workspace, k: int) -> None:
    write_text(dvc_files.dvc_lock_path(ws, k), dvc_files.dump_dvc_lock({dvc_files.LAST_STAGE: {"cmd": "x"}}))


@pytest.fixture
def ws(made, tmp_path, monkeypatch) -> Workspace:
    monkeypatch.setattr(compaction, "_WIDTHS", (2, 4))
    return Workspace(shutil.copytree(made, tmp_path / "ws", symlinks=True))


def answers(ws: Workspace) -> dict[str, list]:
    with database.connect_catalog(ws) as connection:
        return {one: connection.execute(f"FROM {one} ORDER BY ALL").fetchall() for one in ASKED}


def folders(ws: Workspace) -> list[str]:
    return sorted(path.name for path in (ws.state / "closed").iterdir())


def test_the_catalogue_answers_the_same(ws):
    before = answers(ws)
    assert len(before["iterations"]) == ITERATIONS
    compaction.compact_iterations(ws)
    assert compaction.find_compacted_iterations(ws).iterations == {1, 2, 3, 4}
    assert answers(ws) == before
    complete(ws, 5)
    compaction.compact_iterations(ws)
    assert folders(ws) == ["001-004", "005-005"]
    assert answers(ws) == before


@pytest.mark.exhaustive
def test_it_reads_the_files_of_closed_iterations_there_alone(ws):
    compaction.compact_iterations(ws)
    before = answers(ws)
    for place in ws.data.glob("*/iteration=00[1-4]/stage=*"):
        for path in place.iterdir():
            path.unlink()
    assert answers(ws) == before


@pytest.mark.parametrize("wide", by_day([False, True]))
@pytest.mark.exhaustive
def test_a_partition_that_is_another_by_now_is_read_anew(ws, wide):
    compaction.compact_iterations(ws)
    if wide:
        compaction.compact_iterations(ws)  # what the wide folder replaced is gone
        assert folders(ws) == ["001-004"]
    rows = partitions.read_partition(ws, "routes", 2, "route").to_pylist()
    partitions.write_partition(ws, "routes", 2, "route", rows[1:])
    assert compaction.find_compacted_iterations(ws).iterations == {1, 3, 4}
    changed = answers(ws)
    assert len(changed["routes"]) == sum(len(partitions.read_partition(ws, "routes", k, "route")) for k in range(1, 6))
    compaction.compact_iterations(ws)
    assert compaction.find_compacted_iterations(ws).iterations == {1, 2, 3, 4}
    assert answers(ws) == changed
    shutil.rmtree(ws.state / "closed")
    assert answers(ws) == changed


@pytest.mark.exhaustive
def test_large_partitions_are_read_where_they_lie(ws, monkeypatch):
    before = answers(ws)
    monkeypatch.setattr(compaction, "_LARGE_BYTES", 5_000)
    compaction.compact_iterations(ws)
    assert compaction.find_compacted_iterations(ws).large["steps"]
    assert answers(ws) == before


@pytest.mark.exhaustive
def test_a_damaged_iteration_is_left_where_it_is_told(ws):
    path = partitions.partition_files(ws, "routes", 2, "route")[0]
    path.write_bytes(path.read_bytes()[:40])
    compaction.compact_iterations(ws)
    assert compaction.find_compacted_iterations(ws).iterations == {1, 3, 4}
    with pytest.raises(DataError, match="dvc checkout --force data/routes/iteration=002"):
        database.query_catalog(ws, "FROM routes")


@pytest.mark.parametrize("left", by_day([40, 0]))
def test_a_damaged_file_of_closed_iterations_is_told_with_the_way_out(ws, left):
    compaction.compact_iterations(ws)
    (path,) = (ws.state / "closed").glob("001-004/routes.parquet")
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(DataError, match=r"delete \.flywheel/closed") as raised:
        database.query_catalog(ws, "FROM routes")
    assert raised.value.where == ".flywheel/closed/001-004/routes.parquet"
    assert database.query_catalog(ws, "FROM scores").num_rows


@pytest.mark.exhaustive
def test_what_another_schema_put_together_does_not_count(ws, monkeypatch):
    before = answers(ws)
    compaction.compact_iterations(ws)
    monkeypatch.setattr(compaction, "_schema", lambda: "another")
    assert compaction.find_compacted_iterations(ws).iterations == set()
    assert answers(ws) == before
