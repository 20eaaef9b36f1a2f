"""Going back, comparing, pruning, verifying, and the copy elsewhere: what each changes, and what it never does."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import made_workspaces
import pytest
import torch
from made_workspaces import flywheel
from night import NIGHT, by_day

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.maintenance import garbage_collection, iteration_diff, rollback, verify
from flywheel.policy.adapter import write_adapter
from flywheel.policy.checkpoint import checkpoint_digest, find_base_checkpoint
from flywheel.store import manifest, partitions
from flywheel.store.catalog import database
from flywheel.store.schema import metric_row
from flywheel.store.versioning import backup, dvc_files, stage_records
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_json, write_text


@pytest.fixture
def ws(three_iterations, tmp_path) -> Workspace:
    return Workspace(shutil.copytree(three_iterations, tmp_path / "ws", symlinks=True))


@pytest.fixture(scope="module")
def shared_one(three_iterations, tmp_path_factory) -> Workspace:
    return Workspace(shutil.copytree(three_iterations, tmp_path_factory.mktemp("shared") / "ws", symlinks=True))


@pytest.fixture
def still(shared_one) -> Iterator[Workspace]:
    """What several tests share; nothing in it may change."""
    before = made_workspaces.content(shared_one)
    yield shared_one
    assert made_workspaces.content(shared_one) == before


# -- rollback ---------------------------------------------------------------------------------------------------


def test_an_iteration_is_the_newest_again_and_all_comes_back(ws):
    before = made_workspaces.content(ws)
    code, told = flywheel(ws, "iteration", "rollback", 1)
    assert code == 0
    assert "flywheel iteration rollback --undo" in told
    assert stage_records.list_iterations(ws) == [1]
    assert made_workspaces.content(ws) == {path: content for path, content in before.items() if not _later(path, 1)}
    assert database.query_catalog(ws, "SELECT max(iteration) AS k FROM trajectories").to_pylist() == [{"k": 1}]
    assert stage_records.changed_stages(ws) == {}
    assert flywheel(ws, "iteration", "rollback", "--undo")[0] == 0
    assert made_workspaces.content(ws) == before
    assert stage_records.list_iterations(ws) == [1, 2, 3]
    assert stage_records.changed_stages(ws) == {}


def _later(path: str, k: int) -> bool:
    return any(f"iteration={n:03d}" in path or path.startswith(f"iterations/{n:03d}") for n in range(k + 1, 10))


@pytest.mark.exhaustive
def test_a_next_iteration_begins_where_it_went_back_to(ws):
    before = made_workspaces.content(ws)
    rollback.roll_back(ws, 2)
    made_workspaces.turn(ws, Settings.model_validate({"recording": {"sessions_per_iteration": 0}}), 3)
    code, told = flywheel(ws, "iteration", "rollback", "--undo")
    assert (code, "nothing was set aside after iteration 003" in told, "after 002" in told) == (2, True, True)
    rollback.roll_back(ws, 2)
    assert rollback.map_rollbacks(ws)[2].name == "after-002-2"
    shutil.rmtree(rollback.map_rollbacks(ws)[2])
    rollback.undo_rollback(ws)
    assert made_workspaces.content(ws) == before


@pytest.mark.parametrize("back", by_day([False, True]))
@pytest.mark.parametrize("moves", by_day([7, 0, 1, 25]))
def test_a_move_that_is_killed_is_gone_on_with_and_loses_nothing(ws, monkeypatch, back, moves):
    before = made_workspaces.content(ws)
    if back:
        rollback.roll_back(ws, 1)
    move, done = rollback._move_path, []

    def killed(path, target):
        if len(done) == moves:
            raise KeyboardInterrupt
        done.append(path)
        move(path, target)

    monkeypatch.setattr(rollback, "_move_path", killed)
    with pytest.raises(KeyboardInterrupt):
        rollback.undo_rollback(ws) if back else rollback.roll_back(ws, 1)
    monkeypatch.setattr(rollback, "_move_path", move)
    rollback.resume_rollback(ws)
    assert stage_records.list_iterations(ws) == ([1, 2, 3] if back else [1])
    if not back:
        rollback.undo_rollback(ws)
    assert made_workspaces.content(ws) == before


@pytest.mark.parametrize(
    ("arguments", "what"),
    [([9], "has not been begun"), ([], "to which iteration"), (["--undo"], "nothing was set aside")],
)
def test_where_there_is_nothing_to_go_back_to(still, arguments, what):
    code, told = flywheel(still, "iteration", "rollback", *arguments)
    assert code == 2
    assert what in told


# -- outputs of no stage ----------------------------------------------------------------------------------------


def test_an_output_that_no_stage_writes_is_told_and_removed(ws):
    count = "SELECT count(*) AS n FROM metrics WHERE iteration = 1"
    before = database.query_catalog(ws, count).to_pylist()
    orphan = partitions.write_partition(ws, "metrics", 1, "judge", [metric_row("seconds", 1.0)]).folder
    assert database.query_catalog(ws, count).to_pylist() != before
    told = f"{orphan} is of no stage of its iteration: `flywheel workspace gc --keep 3 --write` removes it"
    code, faults = flywheel(ws, "workspace", "verify", 1)
    assert (code, faults.splitlines()[0]) == (1, told)
    assert told in flywheel(ws, "status", "--all")[1].replace("\n", " ")
    assert flywheel(ws, "workspace", "gc", "--keep", 3, "--write")[0] == 0
    assert not ws.resolve(orphan).exists()
    assert flywheel(ws, "workspace", "verify", 1)[0] == 0
    assert database.query_catalog(ws, count).to_pylist() == before
    assert stage_records.changed_stages(ws) == {}


# -- diff -------------------------------------------------------------------------------------------------------


def test_two_iterations_compared(ws):
    write_json(ws.held_out(1), {"about": "x", "models": {_digest(ws, 1): {"a": 1.0, "b": 0.0, "c": 1.0, "only": 1.0}}})
    write_json(ws.held_out(2), {"about": "x", "models": {_digest(ws, 2): {"a": 1.0, "b": 1.0, "c": 0.5}}})
    code, told = flywheel(ws, "iteration", "diff", 1, 2, "--json")
    found = json.loads(told)
    assert code == 0
    counted = {(row["table"], row["stage"]): (row["before"], row["after"]) for row in found["rows"]}
    for (table, stage), pair in counted.items():
        assert pair == tuple(len(partitions.read_partition(ws, table, k, stage)) for k in (1, 2))
    by_kind = {(row["name"], row["value"]): (row["before"], row["after"]) for row in found["kinds"]}
    for store in ("sft", "ct"):
        assert by_kind["destination", store] == counted[store, "route"]
    score = {row["iteration"]: row for row in found["numbers"] if row["name"] == "score"}
    scores = [
        row["score"]
        for row in partitions.read_partition(ws, "routes", 1, "route").to_pylist()
        if row["success"] is not None
    ]
    assert score[1]["n"] == len(scores)
    assert score[1]["mean"] == pytest.approx(sum(scores) / len(scores))
    success = [r for r in found["metrics"] if (r["name"], r["domain"]) == ("success_after", "all")]
    assert success[0]["difference"] == pytest.approx(success[0]["after"] - success[0]["before"])
    held_out = {name: found["held_out"][name] for name in ("gained", "lost", "both", "tasks")}
    assert held_out == {"gained": ["b"], "lost": ["c"], "both": 1, "tasks": 3}
    assert "gained 1: b" in flywheel(ws, "iteration", "diff", 1, 2)[1]


def _digest(ws: Workspace, k: int) -> str:
    return manifest.read_promotion(ws, k)["digest"]


def test_an_iteration_differs_from_itself_in_nothing(still):
    found = iteration_diff.compare_iterations(still, 2, 2)
    assert all(row["before"] == row["after"] for row in (*found["rows"], *found["kinds"]))
    assert all(not row["difference"] for row in found["metrics"])
    assert found["templates"] == {"gained": [], "lost": []}


def test_an_iteration_that_is_not_there_is_not_compared(still):
    assert flywheel(still, "iteration", "diff", 1, 9)[0] == 2


# -- verify -----------------------------------------------------------------------------------------------------


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_whole_is_whole_and_every_single_flipped_bit_is_told(ws):
    assert flywheel(ws, "workspace", "verify") == (0, "every file is as it was recorded\n")
    paths = (
        next(ws.partition("steps", 2, "rollout").glob("*.parquet")),
        ws.model(3, "ct") / "model.safetensors",
        ws.manifest(1),
        next(ws.partition("scores", 1, "score").glob("*.parquet")),
        ws.root / "iterations/002/promotion.json",
    )
    for path in paths if NIGHT else paths[:2]:
        whole = path.read_bytes()
        _flip(path)
        code, told = flywheel(ws, "workspace", "verify")
        assert code == 1, path
        assert path.parent.name in told
        path.write_bytes(whole)
    assert list(verify.find_faults(ws)) == []


@pytest.mark.exhaustive
def test_what_is_missing_is_told_in_one_line_each(ws):
    shutil.rmtree(ws.model(2, "sft"))
    next(ws.partition("images", 2, "rollout").glob("*.parquet")).unlink()
    code, told = flywheel(ws, "workspace", "verify", 2)
    assert code == 1
    assert len(told.splitlines()) == 2
    assert "models/iteration=002/sft" in told
    assert "stage=rollout" in told
    assert flywheel(ws, "workspace", "verify", 1)[0] == 0
    assert flywheel(ws, "workspace", "verify", 9)[0] == 2


# -- prune ------------------------------------------------------------------------------------------------------


def test_what_goes_is_shown_first_and_is_never_what_is_needed(ws):
    before = made_workspaces.content(ws)
    code, told = flywheel(ws, "workspace", "gc", "--keep", 1)
    assert code == 0
    assert made_workspaces.content(ws) == before
    assert flywheel(ws, "workspace", "gc", "--keep", 1, "--write")[0] == 0
    gone = before.keys() - made_workspaces.content(ws).keys()
    assert gone
    assert {line.partition("  ")[0] for line in told.splitlines() if "=" in line} == {
        path.rpartition("/")[0] for path in gone
    }
    assert not any("iteration=003" in path for path in gone)
    models = {manifest.read_promotion(ws, k)["model"] for k in (1, 2, 3)}
    assert all((ws.root / model / "model.safetensors").exists() for model in models)
    manifest.verify_manifest(ws, 3)
    assert backup.find_damaged_outputs(ws) == []
    assert list(verify.find_faults(ws)) == []
    assert backup.restore_damaged_outputs(ws) == []
    assert stage_records.changed_stages(ws) == {}
    assert garbage_collection.plan_prune(ws, keep=1) == []


@pytest.mark.exhaustive
def test_nothing_goes_of_an_open_iteration_nor_of_the_one_it_stands_on(ws):
    entries = dvc_files.read_dvc_lock(dvc_files.dvc_lock_path(ws, 3))
    dvc_files.dvc_lock_path(ws, 3).write_text(
        dvc_files.dump_dvc_lock({n: e for n, e in entries.items() if n != "runs"})
    )
    chosen = garbage_collection.plan_prune(ws, older=timedelta(0))
    assert {one.iteration for one in chosen} == {1}
    with pytest.raises(BadInput, match="is open, and trains on them"):
        garbage_collection.plan_prune(ws, keep=1, training_data=True)


def test_a_rule_of_days_and_one_of_number_both_spare(still):
    assert garbage_collection.plan_prune(still, older=timedelta(days=36_500)) == []
    assert {one.iteration for one in garbage_collection.plan_prune(still, keep=2, older=timedelta(0))} == {1}
    assert flywheel(still, "workspace", "gc")[0] == 2


@pytest.mark.exhaustive
def test_training_data_go_when_asked_for_and_come_back_for_a_run_that_reads_them(ws):
    assert garbage_collection.plan_prune(ws, keep=1, training_data=True) != garbage_collection.plan_prune(ws, keep=1)
    before = made_workspaces.content(ws)
    garbage_collection.prune_outputs(ws, garbage_collection.plan_prune(ws, keep=1, training_data=True))
    assert not ws.partition("steps", 1, "rollout").exists()
    assert list(verify.find_faults(ws)) == []
    backup.restore_damaged_outputs(ws)
    manifest.verify_manifest(ws, 3)
    assert all(
        made_workspaces.content(ws)[path] == before[path] for path in before if "table=steps/iteration=001" in path
    )


@pytest.mark.exhaustive
def test_garbage_of_the_cache_is_what_nothing_names(ws):
    assert garbage_collection.find_unreferenced_cache_files(ws) == []
    (ws.root / ".dvc/cache/files/md5/00").mkdir(exist_ok=True)
    stray = ws.root / ".dvc/cache/files/md5/00/0123"
    stray.write_bytes(b"stray")
    rollback.roll_back(ws, 2)
    assert garbage_collection.find_unreferenced_cache_files(ws) == [(stray, 5)]
    rollback.undo_rollback(ws)
    flywheel(ws, "workspace", "gc", "--keep", 1, "--cache", "--write")
    assert not stray.exists()
    assert garbage_collection.find_unreferenced_cache_files(ws) == []
    shutil.rmtree(ws.model(3, "ct"))
    shutil.rmtree(ws.partition("steps", 3, "rollout"))
    backup.restore_damaged_outputs(ws)
    assert list(verify.find_faults(ws)) == []


def test_a_cache_elsewhere_is_found_and_one_that_others_may_use_is_let_alone(ws, tmp_path):
    stray = "files/md5/00/0123"
    cache = shutil.move(ws.root / ".dvc" / "cache", ws.root / ".dvc" / "other")
    (ws.root / ".dvc" / "config.local").write_text("[cache]\n    dir = other\n")
    (cache / stray).parent.mkdir(exist_ok=True)
    (cache / stray).write_bytes(b"stray")
    assert garbage_collection.find_unreferenced_cache_files(ws) == [(cache / stray, 5)]
    shared = shutil.move(cache, tmp_path / "shared")
    (ws.root / ".dvc" / "config.local").write_text(f"[cache]\n    dir = {shared}\n")
    before = made_workspaces.content(ws)
    code, told = flywheel(ws, "workspace", "gc", "--keep", 1, "--cache", "--write")
    assert code == 2
    assert f"lies outside of the workspace, where others may use it ({shared}/files/md5)" in told
    assert made_workspaces.content(ws) == before
    assert (shared / stray).exists()


# -- adapters -----------------------------------------------------------------------------------------------------


def _put_adapter(ws: Workspace, k: int, name: str, size: float) -> Path:
    """An adapter in the model's place, on the weights of ct of iteration 1, which was not promoted."""
    folder, module = ws.model(k, name), "base_model.model.layer"
    tensors = {f"{module}.lora_A.weight": torch.ones(1, 2), f"{module}.lora_B.weight": torch.full((2, 1), size)}
    write_adapter(tensors, {"peft_type": "LORA", "r": 1, "lora_alpha": 1}, ws.model(1, "ct"), folder)
    return folder


def test_the_base_of_an_adapter_stays_and_is_held_against_its_digest(ws):
    base = ws.model(1, "ct")
    assert ws.relative(base) in {one.path for one in garbage_collection.plan_prune(ws, keep=1)}
    for name in ("merged", "sft"):
        _put_adapter(ws, 3, name, 1.0)
    assert ws.relative(base) not in {one.path for one in garbage_collection.plan_prune(ws, keep=1)}
    assert not any("base" in line for line in verify.find_faults(ws))
    weights = (base / "model.safetensors").read_bytes()
    _flip(base / "model.safetensors")
    (line,) = [line for line in verify.find_faults(ws) if "the adapter belongs to the weights" in line]
    assert "models/iteration=001/ct, now has" in line
    shutil.rmtree(base)
    (line,) = [line for line in verify.find_faults(ws) if "the base of the adapter" in line]
    assert "is not there" in line
    base.mkdir()
    (base / "model.safetensors").write_bytes(weights)
    assert not any("base" in line for line in verify.find_faults(ws))


def test_adapters_are_gone_back_from_and_come_back_on_their_base(ws):
    folders = [_put_adapter(ws, k, "merged", size) for k, size in ((2, 1.0), (3, 1.5))]
    digests = list(map(checkpoint_digest, folders))
    rollback.roll_back(ws, 1)
    assert not any(folder.exists() for folder in folders)
    rollback.undo_rollback(ws)
    assert list(map(checkpoint_digest, folders)) == digests
    assert all(find_base_checkpoint(folder).samefile(ws.model(1, "ct")) for folder in folders)


def test_two_adapters_are_compared(ws):
    folders = [_put_adapter(ws, k, "merged", size) for k, size in ((2, 1.0), (3, 1.5))]
    told = flywheel(ws, "iteration", "diff", 2, 3)[1]
    assert "they differ by 50.00% of what the first one adds to the base" in told
    assert all(checkpoint_digest(folder) in told for folder in folders)
    found = iteration_diff.compare_iterations(ws, 1, 2)
    assert ([row["iteration"] for row in found["adapters"]], found["adapter_distance"]) == ([2], None)


# -- the copy elsewhere -------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_fresh_clone_fetches_what_was_pushed_is_mended_compared_and_gone_back_in(ws, tmp_path):
    copy = tmp_path / "copy"
    assert backup.push_iterations(ws, str(copy)) == [1, 2, 3]
    assert backup.push_iterations(ws, str(copy)) == []
    before = made_workspaces.content(ws)
    made_workspaces.commit(ws, "with its remote")
    subprocess.run(["git", "clone", "-q", str(ws.root), str(tmp_path / "clone")], check=True)
    clone = Workspace(tmp_path / "clone")
    assert not clone.data.exists()
    backup.restore_damaged_outputs(clone)  # what a run does first: the iterations at work, and what training reads
    manifest.verify_manifest(clone, 3)
    for k in (1, 2):
        with dvc_files.open_dvc(clone) as repo:
            repo.pull(targets=[str(clone.iteration(k) / "dvc.yaml")])
    assert made_workspaces.content(clone) == before
    path = next(clone.partition("steps", 3, "rollout").glob("*.parquet"))
    _flip(path)
    shutil.rmtree(clone.model(3, "merged"))
    assert len(list(verify.find_faults(clone, [3]))) >= 2
    backup.restore_damaged_outputs(clone)
    assert list(verify.find_faults(clone)) == []
    assert made_workspaces.content(clone) == before
    assert flywheel(clone, "iteration", "diff", 2, 3)[0] == 0
    assert flywheel(clone, "iteration", "rollback", 2)[0] == 0
    assert stage_records.changed_stages(clone) == {}
    assert flywheel(clone, "iteration", "rollback", "--undo")[0] == 0
    assert made_workspaces.content(clone) == before


@pytest.mark.exhaustive
def test_a_remote_that_cannot_be_reached_is_told_and_pushed_to_later(ws, tmp_path):
    write_text(tmp_path / "file", "no folder")
    assert backup.push_iterations(ws, str(tmp_path / "file" / "within")) == []
    assert backup.push_iterations(ws, str(tmp_path / "copy")) == [1, 2, 3]


@pytest.mark.exhaustive
def test_what_is_decided_again_is_pushed_again(ws, tmp_path):
    backup.push_iterations(ws, str(tmp_path / "copy"))
    flywheel(ws, "data", "reroute", 2, "--band", 0.9, 1, "--write")
    flywheel(ws, "data", "reroute", 2, "--threshold", 0, "--write")
    assert backup.push_iterations(ws, str(tmp_path / "copy")) == [2, 3]
