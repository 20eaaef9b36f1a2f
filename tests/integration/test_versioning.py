"""DVC records every stage: clean after each commit, past iterations untouched, deletions noticed and mended."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from dvc import lock
from fsspec.implementations.memory import MemoryFileSystem
from minimal_iterations import frozen, run_stage, run_stages
from night import by_day
from processes import PATIENCE_S
from ruamel.yaml import YAML

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.pipeline import dag
from flywheel.pipeline.iterations import begin_iteration
from flywheel.store import manifest
from flywheel.store.versioning import backup, dvc_files, stage_records
from flywheel.store.versioning.dvc_files import VersioningError
from flywheel.utils.errors import BadInput, DataError, TrainingError
from flywheel.utils.files import write_text
from flywheel.utils.progress import replace_listener

DVC = Path(sys.executable).with_name("dvc")


@pytest.fixture
def settings() -> Settings:
    return frozen(Settings(), recording={"sessions_per_iteration": 0})


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    ws = Workspace(tmp_path)
    write_text(ws.params, "seed: 7\n")
    stage_records.init_dvc_project(ws)
    manifest.init_first_checkpoint(ws, digest="abc")
    return ws


@pytest.fixture
def done(one_iteration: Path, tmp_path: Path) -> Workspace:
    return Workspace(shutil.copytree(one_iteration, tmp_path / "ws", symlinks=True))


def test_a_fresh_workspace_is_clean(ws):
    assert stage_records.changed_stages(ws) == {}
    assert stage_records.list_iterations(ws) == []


def test_a_dvc_command_of_a_person_is_waited_for(ws, monkeypatch):
    """DVC itself gives up after six tries in three seconds, which a `dvc push` takes any day."""
    monkeypatch.setattr(lock, "DEFAULT_TIMEOUT", 0)
    take, tries = lock.Lock._do_lock, []

    def busy_at_first(self) -> None:
        tries.append(self)
        if len(tries) < 20:
            raise lock.LockError("busy")
        take(self)

    monkeypatch.setattr(lock.Lock, "_do_lock", busy_at_first)
    with dvc_files.open_dvc(ws) as repo, repo.lock:
        assert len(tries) == 20
    tries.clear()
    monkeypatch.setattr(dvc_files, "_LOCK_TIMEOUT_S", -1)
    with pytest.raises(VersioningError, match="busy"), dvc_files.open_dvc(ws) as repo, repo.lock:
        pass


@pytest.mark.exhaustive
def test_each_stage_is_clean_once_it_is_recorded(ws, settings):
    begin_iteration(ws, 1, settings)
    names = stage_records.stage_names(ws, 1)
    assert stage_records.unfinished_stages(ws, names, 1) == list(names)
    for stage in names:
        run_stage(ws, stage, 1)
        stage_records.record_stage(ws, stage, 1)
        assert stage_records.is_stage_done(ws, stage, 1)
    assert stage_records.unfinished_stages(ws, names, 1) == []
    assert stage_records.changed_stages(ws) == {}


def test_repro_does_nothing_after_a_turn(done):
    result = subprocess.run(
        [DVC, "repro", "--dry"], cwd=done.root, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert "Data and pipelines are up to date." in result.stdout
    assert "Running stage" not in result.stdout


def test_git_sees_only_small_files(done):
    result = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=all"],
        cwd=done.root,
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line[3:] for line in result.stdout.splitlines()}
    assert {
        "dvc.lock",
        "dvc.yaml",
        "iterations.yaml",
        "iterations/001/dvc.yaml",
        "iterations/001/dvc.lock",
        ".dvc/config",
    } <= names
    assert not [name for name in names if name.startswith(("data/", "models/", ".dvc/cache"))]
    assert all(line.startswith("??") for line in result.stdout.splitlines()), "git's index was touched"


def test_the_next_iteration_leaves_the_last_one_unchanged(done, settings):
    files = (dvc_files.dvc_yaml_path(done, 1), dvc_files.dvc_lock_path(done, 1))
    before = [path.read_bytes() for path in files]
    begin_iteration(done, 2, settings)
    changed = stage_records.changed_stages(done)
    assert changed
    assert all(name.endswith("@002") for name in changed)
    run_stages(done, ("synthesize", "ingest", "rollout"), 2)
    assert not {name for name in stage_records.changed_stages(done) if name.endswith("@001")}
    assert [path.read_bytes() for path in files] == before


@pytest.mark.exhaustive
def test_an_iteration_of_one_domain_has_one_specialist(ws, settings):
    one = frozen(settings, synthesis={"domains": {"games": ["tiles"]}}, merge={"weights": {"games": 1.0}})
    begin_iteration(ws, 1, one)
    assert not {"rl-sites", "rl-control"} & set(stage_records.stage_names(ws, 1))
    for stage in stage_records.stage_names(ws, 1):
        run_stage(ws, stage, 1)
    subprocess.run([DVC, "commit", "--quiet", "--force"], cwd=ws.root, check=True, timeout=PATIENCE_S)
    assert stage_records.changed_stages(ws) == {}
    begin_iteration(ws, 2, settings)
    with pytest.raises(BadInput, match="iteration 001 has no stage rl-sites"):
        stage_records.is_stage_done(ws, "rl-sites", 1)
    assert not [name for name in stage_records.changed_stages(ws) if name.endswith("@001")]
    assert {"rl-games@002", "rl-sites@002", "rl-control@002"} <= set(stage_records.changed_stages(ws))


def test_numbers_stay_text_in_the_index(ws, settings):
    for k in range(1, 12):
        begin_iteration(ws, k, settings)
        assert not stage_records.is_stage_done(ws, "ct", k)
    assert stage_records.list_iterations(ws) == list(range(1, 12))


def test_the_lock_is_what_dvc_itself_writes(done):
    yaml = YAML(typ="safe")
    files = (done.root / "dvc.lock", dvc_files.dvc_lock_path(done, 1))
    ours = [yaml.load(file.read_text()) for file in files]
    for file in files:
        file.unlink()
    subprocess.run([DVC, "commit", "--quiet", "--force"], cwd=done.root, check=True, timeout=PATIENCE_S)
    assert [yaml.load(file.read_text()) for file in files] == ours


def test_an_edit_of_the_parameters_changes_no_past_iteration(done, settings):
    write_text(done.params, "seed: 8\n")
    assert stage_records.changed_stages(done) == {}
    kept = begin_iteration(done, 1, frozen(settings, seed=8))
    assert kept.seed == 7
    assert stage_records.changed_stages(done) == {}


def test_a_changed_parameter_marks_only_the_stages_that_read_it(done):
    path = done.frozen_params(1)
    raw = yaml.safe_load(path.read_text())
    raw["merge"]["weights"] = {"games": 0.4, "sites": 0.4, "control": 0.2}
    write_text(path, yaml.safe_dump(raw))
    assert stage_records.changed_stages(done) == {"merge@001": {"iterations/001/params.yaml": "merge modified"}}
    assert not stage_records.is_stage_done(done, "merge", 1)
    assert stage_records.is_stage_done(done, "evaluate", 1)


def test_a_look_leaves_no_listing_in_memory(done):
    """DVC goes through all of them for each new one: a process that looks often would slow down by the square."""
    kept = set(MemoryFileSystem.store)
    assert stage_records.changed_stages(done) == {}
    assert backup.find_damaged_outputs(done) == []
    stage_records.record_stage(done, "rollout", 1)
    assert set(MemoryFileSystem.store) <= kept


def checkout_data(ws, *, force=False):
    with dvc_files.open_dvc(ws) as repo:
        return repo.checkout(force=force)


def test_a_deleted_output_is_noticed_and_comes_back(done):
    folder = done.partition("steps", 1, "rollout")
    content = (folder / "part-00000.parquet").read_bytes()
    shutil.rmtree(folder)
    changed = {"data/steps/iteration=001/stage=rollout": "deleted"}
    readers = [name for name in stage_records.stage_names(done, 1) if name == "route" or name.startswith("rl-")]
    assert stage_records.changed_stages(done) == {f"{name}@001": changed for name in ("rollout", *readers)}
    assert not stage_records.is_stage_done(done, "rollout", 1)
    restored = checkout_data(done)
    assert [Path(path).name for path in restored["added"]] == ["stage=rollout"]
    assert (folder / "part-00000.parquet").read_bytes() == content
    assert stage_records.changed_stages(done) == {}


def test_changed_work_is_not_thrown_away_unless_forced(done):
    path = done.model(1, "sft") / "part-00000.parquet"
    write_text(path, "edited by hand")
    with pytest.raises(stage_records.VersioningError, match="DVC"):
        checkout_data(done)
    assert path.read_text() == "edited by hand"
    checkout_data(done, force=True)
    assert path.read_text() != "edited by hand"


def test_a_stage_with_a_missing_output_is_not_recorded(ws, settings):
    begin_iteration(ws, 1, settings)
    run_stage(ws, "synthesize", 1)
    shutil.rmtree(ws.partition("grounding_examples", 1, "synthesize"))
    with pytest.raises(stage_records.VersioningError, match="grounding_examples/iteration=001/stage=synthesize"):
        stage_records.record_stage(ws, "synthesize", 1)
    assert not stage_records.is_stage_done(ws, "synthesize", 1)


def test_wrong_names_are_refused(ws, settings):
    with pytest.raises(DataError, match="iteration 001 has not been begun"):
        begin_iteration(ws, 2, settings)
    begin_iteration(ws, 1, settings)
    with pytest.raises(BadInput, match="iteration 001 has no stage rolout"):
        stage_records.record_stage(ws, "rolout", 1)
    with pytest.raises(BadInput, match="iteration 004 has not been begun"):
        stage_records.is_stage_done(ws, "rollout", 4)


@pytest.mark.parametrize(
    ("where", "fix", "now", "is_changed_there"),
    [
        ("rl.max_logprob_diff_off_policy, rl games, step 2", "lower rl.max_staleness", "{0} in {1}, {2}", True),
        ("rl.max_logprob_diff_on_policy, rl games, step 2", "use the same weights", "{0} in {1}, {2}", False),
        ("RL, rl games, step 2", "lower rl.actor_lr", "{0}, {2}", True),
        ("the cluster, rl games", "raise cluster.acquire_timeout_s", "{0}, {2}", False),
        ("data/steps/iteration=001/part.parquet, rl games", "see iterations.yaml, params.yaml", "{0}, {2}", False),
    ],
)
def test_an_error_that_names_a_parameter_says_where_an_iteration_has_it(ws, where, fix, now, is_changed_there):
    """An iteration goes on with the parameters that it began with, so an edit of params.yaml would change nothing."""
    file = "iterations/001/params.yaml"
    with pytest.raises(TrainingError) as raised, stage_records.name_params_file_in_errors(ws, 1):
        raise TrainingError("it stops", where=where, fix=fix)
    first, _, rest = where.partition(", ")
    assert raised.value.where == now.format(first, file, rest)
    assert raised.value.fix.startswith(fix)
    assert (f"change it in {file}" in raised.value.fix) == is_changed_there


def test_prepare_keeps_what_exists(done):
    before = {path: path.read_bytes() for path in done.root.rglob("*.yaml")}
    stage_records.init_dvc_project(done)
    assert {path: path.read_bytes() for path in done.root.rglob("*.yaml")} == before


@pytest.mark.exhaustive
def test_an_iteration_at_work_gets_the_declarations_of_this_version(done, settings, monkeypatch):
    """What it recorded under others stands, what was changed since is still seen; a complete one keeps its own."""
    text = dag.render_dvc_yaml(2, list(settings.synthesis.domains))
    before = "".join(text.rsplit("      - iterations/001/levels.json\n", 1))  # the stage score did not read it
    with monkeypatch.context() as patched:
        patched.setattr(dag, "render_dvc_yaml", lambda iteration, domains: before)
        begin_iteration(done, 2, settings)
    run_stages(done, ("ingest", "synthesize", "rollout", "score"), 2)
    write_text(done.partition("images", 2, "rollout") / "part-00000.parquet", "changed since")
    changed = stage_records.changed_stages(done, [2])
    kept, told = dvc_files.dvc_yaml_path(done, 1).read_bytes(), []
    with replace_listener(lambda *line: told.append(line)):
        begin_iteration(done, 2, settings)
    assert dvc_files.dvc_yaml_path(done, 2).read_text() == text
    assert "recorded by the declaration of this version" in str(told)
    assert stage_records.changed_stages(done, [2]) == changed
    assert stage_records.is_stage_done(done, "score", 2)
    assert (dvc_files.dvc_yaml_path(done, 1).read_bytes(), stage_records.changed_stages(done, [1])) == (kept, {})


@pytest.mark.exhaustive
def test_a_stage_that_lacks_an_output_of_this_version_is_done_again(done, settings, monkeypatch):
    text = dag.render_dvc_yaml(2, list(settings.synthesis.domains))
    before = text.replace("      - data/metrics/iteration=002/stage=score\n", "")
    assert before != text
    with monkeypatch.context() as patched:
        patched.setattr(dag, "render_dvc_yaml", lambda iteration, domains: before)
        begin_iteration(done, 2, settings)
    run_stages(done, ("ingest", "synthesize", "rollout", "score"), 2)
    begin_iteration(done, 2, settings)
    assert [stage_records.is_stage_done(done, stage, 2) for stage in ("rollout", "score")] == [True, False]


def test_what_a_renamed_stage_wrote_goes_from_the_open_iteration(done, settings, monkeypatch):
    """Else queries count its rows beside those of the stage under its new name."""
    render = dag.render_dvc_yaml
    with monkeypatch.context() as patched:
        patched.setattr(dag, "render_dvc_yaml", lambda *of: re.sub(r"(stage.| {2})score\b", r"\1judge", render(*of)))
        begin_iteration(done, 2, settings)
        run_stages(done, ("ingest", "synthesize", "rollout", "judge"), 2)
        assert stage_records.find_orphaned_outputs(done, 2) == []
    others = {path for path in done.data.glob("*/iteration=*/stage=*") if path.name != "stage=judge"}
    told = []
    with replace_listener(lambda *line: told.append(line)):
        begin_iteration(done, 2, settings)
    assert set(done.data.glob("*/iteration=*/stage=*")) == others
    assert "removed what no stage of 002 writes: data/metrics/iteration=002/stage=judge" in str(told)
    assert set(dvc_files.recorded_stages(done, 2)) == {"ingest", "synthesize", "rollout"}
    assert not [name for name in stage_records.changed_stages(done, [2]) if name.startswith(("ingest", "rollout"))]
    told.clear()
    with replace_listener(lambda *line: told.append(line)):
        begin_iteration(done, 2, settings)
    assert told == []


# -- what is told without DVC is what DVC tells ------------------------------------------------------------------------
def _edit(path: str, old: str, new: str) -> Callable[[Path], object]:
    def change(root: Path) -> None:
        text = (root / path).read_text()
        assert old in text
        write_text(root / path, text.replace(old, new))

    return change


def _link_folder(root: Path) -> None:
    folder = root / "data/steps/iteration=001/stage=rollout"
    folder.rename(root / "elsewhere")
    folder.symlink_to(root / "elsewhere")


_STEPS = "data/steps/iteration=001/stage=rollout"
_CHANGES = {
    "nothing": lambda root: None,
    "a file of the same content in its place": lambda root: (
        shutil.copy(root / _STEPS / "part-00000.parquet", root / "copy"),
        (root / "copy").replace(root / _STEPS / "part-00000.parquet"),
    ),
    "touched": lambda root: (root / _STEPS / "part-00000.parquet").touch(),
    "content": lambda root: write_text(root / _STEPS / "part-00000.parquet", "other"),
    "content of the same size": _edit(f"{_STEPS}/part-00000.parquet", "rollout", "rollour"),
    "one file more": lambda root: write_text(root / _STEPS / "part-00001.parquet", "more"),
    "one file more in a folder": lambda root: write_text(root / _STEPS / "deep" / "part-00001.parquet", "more"),
    "one file less": lambda root: (root / _STEPS / "part-00000.parquet").unlink(),
    "an empty folder more": lambda root: (root / _STEPS / "empty").mkdir(),
    "a folder less": lambda root: shutil.rmtree(root / _STEPS),
    "a file in place of a folder": lambda root: (shutil.rmtree(root / _STEPS), write_text(root / _STEPS, "file")),
    "a small file": _edit("iterations/001/promotion.json", '"text": ""', '"text": "x"'),
    "an input": _edit("iterations/001/sessions.json", "[", "[\n"),
    "a parameter": _edit("iterations/001/params.yaml", "seed: 7", "seed: 8"),
    "a parameter of another type that is equal": _edit("iterations/001/params.yaml", "seed: 7", "seed: 7.0"),
    "a block of parameters that is gone": _edit("iterations/001/params.yaml", "merge:", "merged:"),
    "a command": _edit("iterations/001/dvc.yaml", "stage merge --iteration 001", "stage merge --iteration 1"),
    "an output more": _edit("iterations/001/dvc.yaml", f"      - {_STEPS}\n", f"      - {_STEPS}\n      - data/x\n"),
    "a record less": _edit("iterations/001/dvc.lock", "  merge:", "  merged:"),
    "a recorded hash": _edit("iterations/001/dvc.lock", "md5: ", "md5: 0"),
}
_LEFT_TO_DVC = {
    "a hidden file": lambda root: write_text(root / _STEPS / ".hidden", "hidden"),
    "a link": lambda root: (root / _STEPS / "link").symlink_to(root / "params.yaml"),
    "a folder that is a link": _link_folder,
    "files that DVC ignores": lambda root: (
        write_text(root / _STEPS / "more.log", "more"),
        write_text(root / ".dvcignore", dvc_files.DVCIGNORE + "*.log\n"),
    ),
    "a variable": _edit("iterations/001/dvc.yaml", "stages:", "vars:\n  - more: 7\nstages:"),
    "an option of an output": _edit("iterations/001/dvc.yaml", "cache: false", "cache: false\n          persist: true"),
    "a frozen stage": _edit("iterations/001/dvc.yaml", "  merge:\n", "  merge:\n    frozen: true\n"),
}


def _unchanged_by_dvc(ws: Workspace) -> set[str]:
    """The recorded stages of iteration 1 of which `dvc status` has nothing to say."""
    file = "iterations/001/dvc.yaml"
    with dvc_files.open_dvc(ws) as repo:
        changed = {name.rpartition(":")[2] for name in repo.status(targets=[file])}
    return {*dvc_files.recorded_stages(ws, 1)}.intersection(stage_records.stage_names(ws, 1)) - changed


@pytest.mark.parametrize("change", by_day(_CHANGES, 2))
def test_unchanged_stages_are_those_of_dvc(done, change, monkeypatch):
    monkeypatch.chdir(done.root)
    for _ in range(2):  # with nothing remembered, and with what was read before
        assert stage_records.find_unchanged_stages(done, 1) == {*stage_records.stage_names(done, 1)}
    _CHANGES[change](done.root)
    unchanged = stage_records.find_unchanged_stages(done, 1)
    assert unchanged == _unchanged_by_dvc(done)
    assert stage_records.find_unchanged_stages(done, 1) == unchanged


@pytest.mark.parametrize("change", by_day(_LEFT_TO_DVC))
def test_a_stage_that_dvc_may_see_otherwise_is_not_named(done, change, monkeypatch):
    monkeypatch.chdir(done.root)
    _LEFT_TO_DVC[change](done.root)
    assert stage_records.find_unchanged_stages(done, 1) < {*stage_records.stage_names(done, 1)}
    assert stage_records.find_unchanged_stages(done, 1) <= _unchanged_by_dvc(done)


@pytest.mark.parametrize(
    "text", by_day(["", "stages: 3", "stages: {merge: 3}", "stages:\n  - [", "\0", "schema: '2.0'"])
)
@pytest.mark.parametrize(
    ("file", "left"), by_day([("dvc.yaml", set()), ("dvc.lock", set()), ("params.yaml", {"runs"})])
)
def test_no_stage_is_unchanged_by_a_damaged_file(done, file, left, text):
    write_text(done.iteration(1) / file, text)
    assert stage_records.find_unchanged_stages(done, 1) <= left  # what reads no parameters


def test_what_is_much_to_read_is_left_to_dvc(done, monkeypatch):
    monkeypatch.setattr(stage_records, "_READ_BYTES", 100)
    assert stage_records.find_unchanged_stages(done, 1) < {*stage_records.stage_names(done, 1)}


def test_an_unchanged_iteration_is_told_without_dvc(done, monkeypatch):
    def opened(ws):
        raise AssertionError("DVC is loaded")

    monkeypatch.setattr(dvc_files, "open_dvc", opened)
    names = stage_records.stage_names(done, 1)
    assert stage_records.unfinished_stages(done, names, 1) == []
    assert stage_records.changed_stages(done) == {}
    assert backup.find_damaged_outputs(done) == []
    assert backup.restore_damaged_outputs(done) == []


def test_the_repository_is_itself_a_workspace():
    root = Path(__file__).parents[2]
    assert (root / "dvc.yaml").read_text() == dvc_files.WORKSPACE_DVC_YAML


def test_no_other_file_of_the_source_is_taken_for_a_pipeline(project):
    """The source repository is a workspace too: DVC reads every file called dvc.yaml below it."""
    listed = subprocess.run(["git", "ls-files", "*dvc.yaml"], cwd=project, capture_output=True, text=True, check=True)
    assert listed.stdout.split() == ["dvc.yaml"]
