"""What the explorer's page of iterations is given: figures over time, curves, tasks gained and lost."""

from __future__ import annotations

import pytest
from explorer_store import explorer, held_out, rollouts

from flywheel.config.workspace import Workspace
from flywheel.store.partitions import write_partition
from flywheel.store.schema import metric_row
from flywheel.utils.files import write_json


def test_iterations_are_told_as_the_views_say(ws):
    rollouts(ws, 1)
    write_partition(ws, "metrics", 1, "sft", [metric_row("loss", 1 / n, domain="all", step=n) for n in range(1, 6)])
    promoted = {"model": "models/base", "digest": "d", "iteration": 1, "promoted": True, "reason": "not worse"}
    write_json(ws.promotion(1), promoted)
    with explorer(ws) as (_, client):
        found = client.get("/api/iterations").json()
        (row,) = found["iterations"]
        assert (row["iteration"], row["p_v1"], row["to_sft"], row["promoted"]) == (1, 0.5, 0, True)
        assert row["reason"] == "not worse"
        assert [(one["k"], one["pass"]) for one in found["pass"]] == [(1, 0.5), (2, 1.0)]
        assert found["curves"] == [{"stage": "sft", "name": "loss", "n": 5, "iterations": [1]}]
        points = client.get("/api/curves/sft/loss?iteration=1").json()
        assert [point["step"] for point in points["own"]] == [1, 2, 3, 4, 5]
        assert found["other"] is None
        assert points["theirs"] == []
        assert client.get("/api/curves/sft/loss?iteration=2").json() == {"own": [], "theirs": []}
        assert client.get("/api/curves/sft/loss?iteration=x").status_code == 400


@pytest.mark.exhaustive
def test_another_workspace_comes_beside_this_one_with_its_name_and_as_it_writes(ws, tmp_path):
    other = Workspace(tmp_path / "twin" / ws.root.name)
    other.root.mkdir(parents=True)
    rollouts(ws, 1)
    with explorer(ws, other) as (_, client):
        assert client.get("/api/iterations").json()["other"]["iterations"] == []
        rollouts(other, 1)
        write_partition(other, "metrics", 1, "sft", [metric_row("loss", 0.5, domain="all", step=n) for n in (1, 2)])
        found = client.get("/api/iterations").json()["other"]
        assert found["name"] == str(other.root), "folders of one name are told apart by their paths"
        assert [(row["iteration"], row["p_v1"]) for row in found["iterations"]] == [(1, 0.5)]
        points = client.get("/api/curves/sft/loss?iteration=1").json()
        assert (points["own"], [point["value"] for point in points["theirs"]]) == ([], [0.5, 0.5])
        assert client.get("/api/trajectories").json()["total"] == 6, "the list is of this workspace alone"


def test_held_out_tasks_are_compared_by_the_episodes_of_newest_and_merged_model(ws):
    held_out(ws)
    with explorer(ws) as (_, client):
        found = client.get("/api/held-out/1/2").json()
        assert [(row["task_id"], row["before"], row["after"]) for row in found] == [
            ("k0", False, True),
            ("k1", False, False),
            ("k2", False, False),
        ], "half of the episodes is not more than half"
        assert (found[0]["trajectory_before"], found[0]["trajectory_after"]) == ("t1e0", "t2e0")
        assert {(row["model_before"], row["model_after"], row["promoted"]) for row in found} == {("m1", "m2", True)}
        write_json(ws.promotion(2), {"model": "m1", "digest": "one", "iteration": 2, "promoted": False, "reason": ""})
        refused = client.get("/api/held-out/1/2").json()
        assert refused == [{**row, "promoted": False} for row in found], "a refused model is compared too, and named so"
        assert client.get("/api/held-out/2/2").json() == refused, "beside the newest after it: the predecessor"
        assert client.get("/api/held-out/1/9").json() == []
        assert client.get("/api/held-out/x/9").status_code == 400
