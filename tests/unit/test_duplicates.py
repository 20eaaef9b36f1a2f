"""Near-duplicates in a workspace: what is weighed down and set aside when an iteration is routed, and what is kept."""

from __future__ import annotations

from collections import Counter

import pytest
import synthetic

from flywheel.pipeline.stage import StageResult
from flywheel.store import manifest, partitions
from flywheel.utils.files import write_json


def rows(ws, table: str, k: int = 1, stage: str = "route") -> list[dict]:
    return partitions.read_partition(ws, table, k, stage).to_pylist()


@pytest.fixture
def made(tmp_path):
    """Two iterations whose tasks are played by steps of their own; episodes differ in length alone, and by a step of
    five at most."""
    ws, settings = synthetic.workspace(tmp_path, routing={"dedup_min_similarity": 0.9})
    _incoming(ws, settings, 1)
    write_json(ws.promotion(1), {"model": "models/base", "digest": "d1"})
    _incoming(ws, settings, 2)
    return ws, settings


def _incoming(ws, settings, k: int) -> None:
    synthetic.incoming(ws, settings, k, tasks=4, samples=8)
    place = {row["trajectory_id"]: int(row["task_id"][-1]) / 5 for row in rows(ws, "trajectories", k, "rollout")}
    steps = rows(ws, "steps", k, "rollout")
    partitions.write_partition(
        ws, "steps", k, "rollout", [row | {"x": row["x"] and place[row["trajectory_id"]]} for row in steps]
    )


def built(ws, settings, k: int = 1) -> StageResult:
    return synthetic.routed(ws, settings, k)


def test_samples_of_one_task_with_the_same_steps_weigh_together_as_one(made):
    ws, settings = made
    built(ws, settings)
    stores = {row["trajectory_id"]: row | {"store": store} for store in ("sft", "ct") for row in rows(ws, store)}
    near = {row["trajectory_id"]: row for row in rows(ws, "duplicates")}
    assert near
    groups = Counter(
        (row["task_id"], row["store"], row["steps"]) for row in stores.values() if row["source"] == "rollout"
    )
    for name, row in stores.items():
        same = 1 if row["source"] == "recording" else groups[row["task_id"], row["store"], row["steps"]]
        assert row["weight"] == pytest.approx(1 / same)
        assert (name in near) == (same > 1)
    for row in near.values():
        one, twin = stores[row["trajectory_id"]], stores[row["duplicate_of"]]
        assert (one["task_id"], one["store"], one["weight"]) == (twin["task_id"], twin["store"], row["weight"])


@pytest.mark.exhaustive
def test_it_can_be_switched_off(tmp_path):
    ws, settings = synthetic.workspace(tmp_path, routing={"dedup_weighting": "each"})
    synthetic.incoming(ws, settings, 1, tasks=4, samples=8)
    built(ws, settings)
    assert rows(ws, "duplicates")
    assert {row["weight"] for store in ("sft", "ct") for row in rows(ws, store)} == {1.0}


@pytest.mark.exhaustive
def test_the_next_iteration_knows_the_one_before_by_what_was_kept_of_it(made):
    ws, settings = made
    first = {row["task_id"]: row for row in rows(ws, "tasks", 1, "synthesize")}
    again = rows(ws, "tasks", 2, "synthesize")
    for row in again:  # the same content under other names
        if row["split"] == "train":
            row["seed"] = first[row["task_id"].replace("i2", "i1")]["seed"]
    partitions.write_partition(ws, "tasks", 2, "synthesize", again)
    built(ws, settings, 1)
    before = {row["trajectory_id"] for row in rows(ws, "trajectory_hashes")}
    partitions.write_partition(ws, "steps", 1, "rollout", [])  # of the iteration before, its signatures alone are read
    built(ws, settings, 2)
    assert before & {row["duplicate_of"] for row in rows(ws, "duplicates", 2)}
    alone = settings.model_copy(update={"routing": settings.routing.model_copy(update={"dedup_window": 0})})
    built(ws, alone, 2)
    assert not before & {row["duplicate_of"] for row in rows(ws, "duplicates", 2)}


def test_what_is_near_an_evaluation_task_is_set_aside_with_its_reason(made):
    ws, settings = made
    asked = rows(ws, "tasks", 1, "synthesize")
    held = next(row for row in asked if row["split"] == "eval")
    copied = next(row for row in asked if row["split"] == "train" and row["world"] == held["world"])
    copied["seed"] = held["seed"]  # the instruction is the same already
    partitions.write_partition(ws, "tasks", 1, "synthesize", asked)
    built(ws, settings)
    own = {
        row["trajectory_id"] for row in rows(ws, "trajectories", stage="rollout") if row["task_id"] == copied["task_id"]
    }
    aside = {row["trajectory_id"]: row["reason"] for row in rows(ws, "quarantine")}
    assert own <= aside.keys()
    assert Counter("near_evaluation" in aside[name] for name in own)[True] >= len(own) - 2  # others are not sound
    assert any(f"(the content of {held['task_id']})" in reason for reason in aside.values())


@pytest.mark.exhaustive
def test_the_manifest_names_what_later_iterations_compare_with(made):
    ws, settings = made
    built(ws, settings)
    named = manifest.read_manifest(ws, 1)
    assert [shard.rows for shard in named.shards("trajectory_hashes")] == [len(rows(ws, "trajectory_hashes"))]
    assert named.shards("screen_hashes")
