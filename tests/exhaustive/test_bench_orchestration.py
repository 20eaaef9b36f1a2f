"""`flywheel bench orchestration`: what it holds against one another, and a small dose of what it runs."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest

from flywheel.cli import bench
from flywheel.config.workspace import Workspace
from flywheel.pipeline import iterations
from flywheel.store import partitions
from flywheel.store.catalog import database
from flywheel.utils.files import write_json

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import orchestration_history as history
import orchestration_turn as turn
import store_iterations

KILLED = datetime(2026, 11, 25, 3, 0, tzinfo=UTC)


def metrics(ws: Workspace, **values: float) -> Workspace:
    """A workspace whose iteration has stored these metrics, and a promotion."""
    empty = {"domain": "all", "step": 0, "low": None, "high": None, "n": None}
    partitions.write_partition(
        ws, "metrics", 1, "ct", [{**empty, "name": name, "value": one} for name, one in values.items()]
    )
    links = [
        {"child": "ct", "child_kind": "checkpoint", "parent": str(ws.root), "parent_kind": "run", "relation": "made in"}
    ]
    partitions.write_partition(ws, "lineage", 1, "ct", links)
    write_json(ws.promotion(1), {"digest": "d1", "promoted": True, "reason": "better", "iteration": 1})
    return ws


def test_hashes_see_what_was_learnt_and_not_how_long_it_took(tmp_path):
    one = turn.hashes(metrics(Workspace(tmp_path / "one"), loss=0.5, seconds=12.0))
    assert sorted(one) == ["lineage ct", "metrics ct", "promotion"]
    assert turn.hashes(metrics(Workspace(tmp_path / "two"), loss=0.5, seconds=99.0)) == one
    other = turn.hashes(metrics(Workspace(tmp_path / "three"), loss=0.5000001, seconds=12.0))
    assert [name for name in one if one[name] != other[name]] == ["metrics ct"]


def row(name: str, state: str, ended: datetime = KILLED, kind: str = "flow", seconds: float = 9.0) -> dict:
    return {"name": name, "state": state, "kind": kind, "ended_at": ended.isoformat(), "seconds": seconds}


TRUE = [row("iteration 001", "Crashed"), row("iteration 001", "Completed"), row("001 ct", "Completed")]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (TRUE, []),
        ([*TRUE, row("ct", "Running", kind="task")], ["ct is Running"]),
        ([*TRUE, row("001 ct", "Completed")], ["001 ct was completed 2 times"]),
        (TRUE[:1], ["iteration 001 was not completed"]),
        ([*TRUE, row("ct", "Failed", seconds=-1.0)], ["ct ended before it began"]),
        ([*TRUE, TRUE[0]], ["2 iterations crashed, 1 were killed"]),
        (
            [row("iteration 001", "Crashed", KILLED + timedelta(minutes=5)), *TRUE[1:]],
            ["iteration 001 ended at 2026-11-25 03:05:00+00:00, and no flow was killed then"],
        ),
    ],
)
def test_a_history_that_is_not_so_is_told(rows, says):
    assert history.not_so(rows, [KILLED], [1]) == says


def test_iterations_that_are_made_up_are_complete(tmp_path):
    """The costs of iteration 200 are measured in such a workspace."""
    ws = store_iterations.workspace(tmp_path / "made", 3)
    assert [iterations.check_iteration_complete(ws, k) for k in (1, 2, 3)] == [True] * 3
    links = database.query_catalog(
        ws, "SELECT count(DISTINCT child) n FROM lineage WHERE relation = 'acted by'"
    ).to_pylist()
    assert links == database.query_catalog(ws, "SELECT count(*) n FROM trajectories").to_pylist()


def test_shards_of_prefects_beside_a_plain_loop(tmp_path, capsys):
    from prefect.context import refresh_global_settings_context

    with mock.patch.dict(os.environ):  # the server's address and secret
        assert (
            bench.run_benchmark("orchestration", ["--only", "shards", "--shards", "3", "--folder", str(tmp_path)]) == 0
        )
    refresh_global_settings_context()
    loop, lost = map(json.loads, capsys.readouterr().out.splitlines())
    assert (loop["case"], lost["case"]) == ("shards_3", "shards_lost")
    assert loop["ours"] > loop["peer"] > 0
    assert (lost["ours"], lost["states"]) == (0, {"Completed": 3})
