"""Each contract refuses the offence it names, and a sound iteration passes them all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import synthetic
import synthetic_rows

from flywheel.errors import ContractBroken, DataError
from flywheel.stages import route
from flywheel.stages.route import INCOMING
from flywheel.store import build, catalog, contracts, expectations, lineage, manifest, partitions
from flywheel.workspace import Workspace


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Workspace, object, build.Built]:
    ws, settings = synthetic.workspace(tmp_path_factory.mktemp("ws"))
    synthetic.incoming(ws, settings, 1, tasks=3, samples=3)
    return ws, settings, build.build(ws, 1, settings, route.STAGE.partitions())


def copy(ws: Workspace, to: Path) -> Workspace:
    return Workspace(Path(shutil.copytree(ws.root, to / "ws")))


def rows(ws: Workspace, table: str, stage: str) -> list[dict]:
    return partitions.read(ws, table, 1, stage).to_pylist()


def test_what_comes_in_is_what_is_stored(built):
    ws, _, result = built
    assert sum(result.routed.values()) == 9 + 3
    assert result.routed["quarantine"] == 3
    reasons = {row["trajectory_id"]: row["reason"] for row in rows(ws, "quarantine", "route")}
    assert reasons["r12"] == "status invalid: audio.wav is cut off"
    assert reasons["t10001"] == "status crashed: EnvTimeout: the page did not answer in 10 s"
    assert reasons["t10002"].startswith("contract: logprobs_match: ")
    assert {m.table: m.rows for m in result.manifests}["routes"] == 12


def test_data_docs_are_written(built):
    ws, *_ = built
    index = (ws.report / "docs" / "index.html").read_text()
    assert "trajectories 001" in index


def steps_of(ws, edit):
    def write(ws):
        found = rows(ws, "steps", "rollout")
        mine = [row for row in found if row["trajectory_id"] == "t10000"]
        edit(mine, found)
        partitions.write(ws, "steps", 1, "rollout", found)

    return write


ROW_OFFENCES = {
    "steps_counted": lambda mine, found: found.remove(mine[-1]),
    "steps_numbered": lambda mine, found: mine[-1].update(step=9),
    "logprobs_match": lambda mine, found: mine[0].update(logprobs=[-0.1, 0.4, -0.2]),
    "image_there": lambda mine, found: mine[0].update(image_sha256="0" * 64),
    "points_on_screen": lambda mine, found: mine[0].update(x=1.7),
    "steps_in_order": lambda mine, found: mine[0].update(ended_at=synthetic_rows.START),
}


@pytest.mark.parametrize("name", ROW_OFFENCES)
def test_a_row_contract_names_its_trajectory(built, tmp_path, name):
    ws = copy(built[0], tmp_path)
    steps_of(ws, ROW_OFFENCES[name])(ws)
    with catalog.connect(ws) as connection:
        broken = contracts.check_rows(connection, 1, INCOMING)
    assert set(broken) == {"t10000", "t10002"}  # t10002 is the offence that the fixture holds
    assert broken["t10000"].startswith(f"{name}: ")


def test_an_unknown_task_is_set_aside(built, tmp_path):
    ws = copy(built[0], tmp_path)
    found = rows(ws, "trajectories", "rollout")
    found[0]["task_id"] = "nobody made this"
    partitions.write(ws, "trajectories", 1, "rollout", found)
    with catalog.connect(ws) as connection:
        assert contracts.check_rows(connection, 1, INCOMING)[found[0]["trajectory_id"]].endswith("(nobody made this)")


def twice(table, stage):
    def write(ws):
        found = rows(ws, table, stage)
        partitions.write(ws, table, 1, stage, [*found, found[0]])

    return write


def orphan(table, stage, **changes):
    def write(ws):
        found = rows(ws, table, stage)
        partitions.write(ws, table, 1, stage, [*found, found[0] | {"trajectory_id": "nobody"} | changes])

    return write


def without_one(table, stage):
    def write(ws):
        partitions.write(ws, table, 1, stage, rows(ws, table, stage)[1:])

    return write


def in_both(ws):
    partitions.write(ws, "ct", 1, "route", rows(ws, "ct", "route") + rows(ws, "sft", "route")[:1])


def held_out(ws):
    found = rows(ws, "tasks", "synthesize")
    trained = rows(ws, "ct", "route")[0]["task_id"]
    for row in (*found, *(recorded := rows(ws, "tasks", "ingest"))):
        if row["task_id"] == trained:
            row["split"] = "eval"
    partitions.write(ws, "tasks", 1, "synthesize", found)
    partitions.write(ws, "tasks", 1, "ingest", recorded)


TABLE_OFFENCES = {
    "unique_trajectories": twice("trajectories", "rollout"),
    "unique_images": twice("images", "rollout"),
    "no_orphan_step": orphan("steps", "rollout"),
    "no_orphan_thought": orphan("thoughts", "ingest"),
    "no_orphan_score": orphan("scores", "score"),
    "one_route": twice("routes", "route"),
    "stores_follow_routes": without_one("ct", "route"),
    "no_evaluation_task": held_out,
}


@pytest.mark.parametrize("name", TABLE_OFFENCES)
def test_a_table_contract_stops_with_its_name(built, tmp_path, name):
    ws = copy(built[0], tmp_path)
    contracts.check_tables(ws, 1, INCOMING)
    TABLE_OFFENCES[name](ws)
    with pytest.raises(ContractBroken, match=f"contract {name} is broken") as raised:
        contracts.check_tables(ws, 1, INCOMING)
    table = next(contract.table for contract in contracts.TABLES if contract.name == name)
    assert raised.value.where == f"data/{table}/iteration=001"


def test_rl_does_not_train_on_an_evaluation_task(built, tmp_path):
    ws = copy(built[0], tmp_path)
    held_out = rows(ws, "tasks", "synthesize")[0] | {"task_id": "held out", "split": "eval"}
    partitions.write(ws, "tasks", 1, "synthesize", [*rows(ws, "tasks", "synthesize"), held_out])
    played = rows(ws, "trajectories", "rollout")[0] | {"trajectory_id": "of RL", "task_id": "held out", "steps": 0}
    partitions.write(ws, "trajectories", 1, "rl-games", [played])
    contracts.check_tables(ws, 1, INCOMING)
    trained = lineage.trained("models/iteration=001/rl-games", "its digest", trajectories=["of RL"])
    partitions.write(ws, "lineage", 1, "rl-games", trained)
    with pytest.raises(ContractBroken, match=r"no_evaluation_task .* store models/iteration=001/rl-games"):
        contracts.check_tables(ws, 1, INCOMING)


@pytest.mark.parametrize("name", ["ct_sft_disjoint", "conservation"])
def test_later_contracts_see_the_offence_too(built, tmp_path, name, monkeypatch):
    ws = copy(built[0], tmp_path)
    in_both(ws)
    monkeypatch.setattr(contracts, "TABLES", tuple(c for c in contracts.TABLES if c.name == name))
    with pytest.raises(ContractBroken, match=f"contract {name} is broken"):
        contracts.check_tables(ws, 1, INCOMING)


@pytest.mark.parametrize(
    ("change", "promise"),
    [
        ({"status": "tired"}, "status is known"),
        ({"source": "rumour"}, "source is known"),
        ({"status": None}, "status is set"),
        ({"steps": -1}, "steps are 0 or more"),
        ({"reward": 7.0}, "reward in [-1, 1]"),
        ({"ended_at": synthetic_rows.START.replace(year=2020)}, "a trajectory ends after it begins"),
    ],
)
def test_an_expectation_names_its_trajectory(built, tmp_path, change, promise):
    ws = built[0]
    found = rows(ws, "trajectories", "rollout")
    found[4] |= change
    frame = partitions.from_rows("trajectories", found).to_pandas()
    assert expectations.validate(Workspace(tmp_path), 1, {"trajectories": frame}) == {
        found[4]["trajectory_id"]: f"trajectories: {promise}"
    }


def test_no_row_breaks_no_expectation(tmp_path):
    frames = {name: partitions.from_rows(name, []).to_pandas() for name in expectations.SUITES}
    assert expectations.validate(Workspace(tmp_path), 1, frames) == {}


def test_the_manifest_chains_and_notices_a_change(built, tmp_path):
    source, settings, _ = built
    ws = copy(source, tmp_path)
    synthetic.outgoing(ws, 1)
    synthetic.incoming(ws, settings, 2, tasks=3, samples=3)
    build.build(ws, 2, settings, route.STAGE.partitions())
    two = manifest.read(ws, 2)
    assert [shard.iteration for shard in two.ct] == [1, 2]
    assert {shard.iteration for shard in two.shards("steps")} == {1, 2}
    manifest.verify(ws, 2)
    only_newest = manifest.write(ws, 2, window=1)
    assert [shard.iteration for shard in only_newest.sft] == [2]
    assert [shard.iteration for shard in only_newest.ct] == [1, 2]
    path = ws.resolve(two.ct[0].path)
    kept = path.read_bytes()
    path.write_bytes(kept + b"x")
    with pytest.raises(DataError, match="differs from the manifest") as raised:
        manifest.verify(ws, 2)
    assert raised.value.where == two.ct[0].path
    path.write_bytes(kept)
    ws.manifest(1).write_text(ws.manifest(1).read_text().replace('"sessions": []', '"sessions": ["s1"]'))
    with pytest.raises(DataError, match=r"manifest changed after iteration 002") as raised:
        manifest.verify(ws, 2)
    assert raised.value.where == "iterations/001/manifest.json"
