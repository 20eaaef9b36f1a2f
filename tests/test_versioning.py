"""DVC records every stage: clean after each commit, past iterations untouched, deletions noticed and mended."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import least_work
import pytest
import yaml
from least_work import frozen, run_stage
from ruamel.yaml import YAML

from flywheel.errors import BadInput, DataError
from flywheel.files import write_text
from flywheel.progress import listening
from flywheel.settings import Settings
from flywheel.store import manifest, pipeline, versioning
from flywheel.workspace import Workspace

DVC = Path(sys.executable).with_name("dvc")


@pytest.fixture
def settings() -> Settings:
    return frozen(Settings(), recording={"sessions_per_iteration": 0})


@pytest.fixture
def ws(tmp_path: Path) -> Workspace:
    ws = Workspace(tmp_path)
    write_text(ws.params, "seed: 7\n")
    versioning.prepare(ws)
    manifest.genesis(ws, digest="abc")
    return ws


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git workspace after iteration 1, to be copied."""
    return least_work.turned(tmp_path_factory.mktemp("turned")).root


@pytest.fixture
def done(turned: Path, tmp_path: Path) -> Workspace:
    return Workspace(shutil.copytree(turned, tmp_path / "ws", symlinks=True))


def test_a_fresh_workspace_is_clean(ws):
    assert versioning.status(ws) == {}
    assert versioning.iterations(ws) == []


def test_each_stage_is_clean_once_it_is_recorded(ws, settings):
    versioning.add_iteration(ws, 1, settings)
    names = versioning.stages(ws)
    assert versioning.unfinished(ws, names, 1) == list(names)
    for stage in names:
        run_stage(ws, stage, 1)
        versioning.commit(ws, stage, 1)
        assert versioning.is_done(ws, stage, 1)
    assert versioning.unfinished(ws, names, 1) == []
    assert versioning.status(ws) == {}


def test_repro_does_nothing_after_a_turn(done):
    result = subprocess.run(
        [DVC, "repro", "--dry"], cwd=done.root, capture_output=True, text=True, check=True, timeout=120
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
    assert {"dvc.lock", "dvc.yaml", "iterations.yaml", "iterations/001/manifest.json", ".dvc/config"} <= names
    assert not [name for name in names if name.startswith(("data/", "models/", ".dvc/cache"))]
    assert all(line.startswith("??") for line in result.stdout.splitlines()), "git's index was touched"


def test_the_next_iteration_leaves_the_last_one_unchanged(done, settings):
    before = yaml.safe_load((done.root / "dvc.lock").read_text())["stages"]
    versioning.add_iteration(done, 2, settings)
    changed = versioning.status(done)
    assert changed
    assert all(name.endswith("@002") for name in changed)
    for stage in ("synthesize", "ingest", "rollout"):
        run_stage(done, stage, 2)
        versioning.commit(done, stage, 2)
    assert not {name for name in versioning.status(done) if name.endswith("@001")}
    after = yaml.safe_load((done.root / "dvc.lock").read_text())["stages"]
    assert {name: stage for name, stage in after.items() if name.endswith("@001")} == before


def test_an_iteration_of_one_domain_has_one_specialist(ws, settings):
    one = frozen(settings, synthesis={"domains": {"games": ["tiles"]}}, merge={"weights": {"games": 1.0}})
    versioning.add_iteration(ws, 1, one)
    assert not {"rl-sites", "rl-control"} & set(versioning.stages(ws))
    for stage in versioning.stages(ws):
        run_stage(ws, stage, 1)
    subprocess.run([DVC, "commit", "--quiet", "--force"], cwd=ws.root, check=True, timeout=120)
    assert versioning.status(ws) == {}
    versioning.add_iteration(ws, 2, settings)
    with pytest.raises(BadInput, match="no stage rl-sites@001"):
        versioning.is_done(ws, "rl-sites", 1)
    assert not [name for name in versioning.status(ws) if name.endswith("@001")]
    assert {"rl-games@002", "rl-sites@002", "rl-control@002"} <= set(versioning.status(ws))


def test_numbers_stay_text_in_the_index(ws, settings):
    for k in range(1, 12):
        versioning.add_iteration(ws, k, settings)
        assert not versioning.is_done(ws, "ct", k)
    assert versioning.iterations(ws) == list(range(1, 12))


def test_the_lock_is_what_dvc_itself_writes(done):
    yaml = YAML(typ="safe")
    ours = yaml.load((done.root / "dvc.lock").read_text())
    (done.root / "dvc.lock").unlink()
    subprocess.run([DVC, "commit", "--quiet", "--force"], cwd=done.root, check=True, timeout=120)
    assert yaml.load((done.root / "dvc.lock").read_text()) == ours


def test_an_edit_of_the_parameters_changes_no_past_iteration(done, settings):
    write_text(done.params, "seed: 8\n")
    assert versioning.status(done) == {}
    kept = versioning.add_iteration(done, 1, frozen(settings, seed=8))
    assert kept.seed == 7
    assert versioning.status(done) == {}


def test_a_changed_parameter_marks_only_the_stages_that_read_it(done):
    path = done.frozen_params(1)
    raw = yaml.safe_load(path.read_text())
    raw["merge"]["weights"] = {"games": 0.4, "sites": 0.4, "control": 0.2}
    write_text(path, yaml.safe_dump(raw))
    assert versioning.status(done) == {"merge@001": {"iterations/001/params.yaml": "merge modified"}}
    assert not versioning.is_done(done, "merge", 1)
    assert versioning.is_done(done, "evaluate", 1)


def test_a_deleted_output_is_noticed_and_comes_back(done):
    folder = done.partition("steps", 1, "rollout")
    content = (folder / "part-00000.parquet").read_bytes()
    shutil.rmtree(folder)
    changed = {"data/steps/iteration=001/stage=rollout": "deleted"}
    assert versioning.status(done) == {"rollout@001": changed, "route@001": changed}
    assert not versioning.is_done(done, "rollout", 1)
    restored = versioning.checkout(done)
    assert [Path(path).name for path in restored["added"]] == ["stage=rollout"]
    assert (folder / "part-00000.parquet").read_bytes() == content
    assert versioning.status(done) == {}


def test_changed_work_is_not_thrown_away_unless_forced(done):
    path = done.model(1, "sft") / "part-00000.parquet"
    write_text(path, "edited by hand")
    with pytest.raises(versioning.VersioningError, match="DVC"):
        versioning.checkout(done)
    assert path.read_text() == "edited by hand"
    versioning.checkout(done, force=True)
    assert path.read_text() != "edited by hand"


def test_a_stage_with_a_missing_output_is_not_recorded(ws, settings):
    versioning.add_iteration(ws, 1, settings)
    run_stage(ws, "synthesize", 1)
    shutil.rmtree(ws.partition("general", 1, "synthesize"))
    with pytest.raises(versioning.VersioningError, match="general/iteration=001/stage=synthesize"):
        versioning.commit(ws, "synthesize", 1)
    assert not versioning.is_done(ws, "synthesize", 1)


def test_wrong_names_are_refused(ws, settings):
    with pytest.raises(BadInput, match="unknown stage rolout"):
        versioning.commit(ws, "rolout", 1)
    with pytest.raises(BadInput, match="no stage rollout@004"):
        versioning.is_done(ws, "rollout", 4)
    with pytest.raises(DataError, match="iteration 001 is not in the index"):
        versioning.add_iteration(ws, 2, settings)


def test_prepare_keeps_what_exists(done):
    before = {path: path.read_bytes() for path in done.root.rglob("*.yaml")}
    versioning.prepare(done)
    assert {path: path.read_bytes() for path in done.root.rglob("*.yaml")} == before


def test_a_workspace_of_an_earlier_version_goes_on(tmp_path, settings, monkeypatch):
    """Its pipeline declared other parameters and inputs: what it recorded stands, what was changed is still seen."""
    text = (Path(__file__).parent / "data" / "pipeline-before.yaml").read_text()
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "dvc_yaml", lambda domains: text)
        ws = least_work.turned(tmp_path / "ws")
    ws.held_out(0).unlink()  # it had none
    write_text(ws.model(1, "ct") / "part-00000.parquet", "changed since")
    before = versioning.status(ws)
    assert set(before) == {"ct@001", "sft@001"}
    told = []
    with listening(lambda *line: told.append(line)):
        versioning.prepare(ws)
    assert "recorded by the declaration of this version" in str(told)
    assert set(versioning.status(ws)) == set(before)
    assert versioning.is_done(ws, "evaluate", 1)
    domains = {**Settings().synthesis.domains, "sites": ["shop"], "web": ["settings"]}
    four = frozen(settings, synthesis={"domains": domains}, merge={"weights": dict.fromkeys(domains, 0.25)})
    versioning.add_iteration(ws, 2, four)
    assert {name for name in versioning.status(ws) if name.endswith("@001")} == set(before)
    assert "rl-web@002" in versioning.status(ws)
    versioning.prepare(ws)
    subprocess.run([DVC, "status"], cwd=ws.root, check=True, capture_output=True, timeout=120)


def test_the_repository_is_itself_a_workspace():
    root = Path(__file__).parents[1]
    assert (root / "dvc.yaml").read_text() == pipeline.dvc_yaml(list(Settings().synthesis.domains))


def test_no_other_file_of_the_source_is_taken_for_a_pipeline(project):
    """The source repository is a workspace too: DVC reads every file called dvc.yaml below it."""
    listed = subprocess.run(["git", "ls-files", "*dvc.yaml"], cwd=project, capture_output=True, text=True, check=True)
    assert listed.stdout.split() == ["dvc.yaml"]
