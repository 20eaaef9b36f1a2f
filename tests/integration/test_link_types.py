"""Workspaces as teams share them: DVC's cache by every kind of link, clones with other line ends; mends that work."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import made_workspaces
import pytest
from made_workspaces import flywheel
from night import by_day

from flywheel.config.workspace import Workspace
from flywheel.pipeline import iterations
from flywheel.store import partitions
from flywheel.store.versioning import dvc_files, git_tags, stage_records
from flywheel.utils.errors import DataError


@pytest.fixture
def ws(three_iterations, tmp_path) -> Workspace:
    return Workspace(shutil.copytree(three_iterations, tmp_path / "ws", symlinks=True))


def linked(ws: Workspace, kind: str, shared: Path | None) -> None:
    """Let DVC's files be links of a kind to its cache, in a folder outside of the workspace if one is named."""
    settings = f"[cache]\n    type = {kind}\n"
    if shared is not None:
        shutil.move(ws.root / ".dvc" / "cache", shared)
        settings += f"    dir = {shared}\n"
    (ws.root / ".dvc" / "config.local").write_text(settings)
    with dvc_files.open_dvc(ws) as repo:
        repo.checkout(relink=True, force=True)


CACHES = [(kind, outside) for kind in ("symlink", "hardlink", "copy", "reflink,copy") for outside in (True, False)]


@pytest.mark.parametrize(("kind", "outside"), by_day(CACHES))
def test_a_cache_by_links_changes_nothing(ws, tmp_path, kind, outside):
    linked(ws, kind, tmp_path / "shared" if outside else None)
    part = partitions.partition_files(ws, "steps", 1, "rollout")[0]
    assert part.is_symlink() == (kind == "symlink")
    assert ws.relative(part) == f"data/steps/iteration=001/stage=rollout/{part.name}"
    cached = {path: path.read_bytes() for path in dvc_files.find_cache_folder(ws).rglob("*") if path.is_file()}
    assert flywheel(ws, "data", "reroute", 1, "--threshold", 0, "--write")[0] == 0
    assert stage_records.changed_stages(ws) == {}
    code, told = flywheel(ws, "workspace", "verify")
    assert (code, told.strip()) == (0, "every file is as it was recorded")
    assert flywheel(ws, "data", "export", "webdataset", "--store", "sft", "--output", tmp_path / "out")[0] == 0
    assert all(path.read_bytes() == content for path, content in cached.items())  # nothing is written through a link


def typed(ws: Workspace, command: str) -> None:
    """A command as a message prints it."""
    path = f"PATH={Path(sys.executable).parent}:$PATH"
    subprocess.run(["sh", "-c", f"{path}; {command}"], cwd=ws.root, check=True, capture_output=True)


@pytest.mark.exhaustive
def test_what_is_printed_as_a_mend_mends(ws):
    """Of a file of a partition by links, of a record that Git keeps."""
    linked(ws, "symlink", None)
    partitions.partition_files(ws, "steps", 1, "rollout")[0].unlink()
    ws.levels(2).write_text("{}")
    faults = flywheel(ws, "workspace", "verify")[1].splitlines()
    assert len(faults) == 2
    for fault in faults:
        typed(ws, re.search("type `([^`]+)`", fault)[1])
    assert flywheel(ws, "workspace", "verify")[0] == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", ["rows of a stage", "a record", "a stage run again"])
def test_a_complete_iteration_that_changed_is_taken_back_as_its_message_says(ws, what):
    part = partitions.partition_files(ws, "scores", 2, "score")[0]
    if what == "a record":
        ws.levels(2).write_text("{}")
    else:
        part.unlink()
        part.write_bytes(b"other rows")
    if what == "a stage run again":
        typed(ws, f"dvc commit --force {ws.relative(dvc_files.dvc_yaml_path(ws, 2))}:score")
    with pytest.raises(DataError, match="a complete iteration is not done again") as caught:
        iterations.check_iteration_complete(ws, 2)
    typed(ws, re.search("`([^`]+)`", caught.value.fix)[1])
    assert iterations.check_iteration_complete(ws, 2)
    assert flywheel(ws, "workspace", "verify")[0] == 0


def clone(ws: Workspace, folder: Path) -> Workspace:
    subprocess.run(["git", "clone", "-q", "-c", "core.autocrlf=true", ws.root, folder], check=True)
    shutil.copytree(ws.root / ".dvc" / "cache", folder / ".dvc" / "cache")
    copy = Workspace(folder)
    with dvc_files.open_dvc(copy) as repo:
        repo.checkout(force=True)
    return copy


def test_a_clone_has_the_line_ends_that_were_recorded(ws, tmp_path):
    copy = clone(ws, tmp_path / "clone")
    assert stage_records.changed_stages(copy) == {}
    assert iterations.plan_iterations(copy, stage_records.load_iteration_params(copy, 3), 1) == [4]


@pytest.mark.exhaustive
def test_a_clone_whose_line_ends_git_changed_is_told_once_with_a_mend(ws, tmp_path):
    """As of a workspace that was made before `.gitattributes` was."""
    (ws.root / ".gitattributes").unlink()
    made_workspaces.commit(ws, "as before")
    copy = clone(ws, tmp_path / "clone")
    with pytest.raises(DataError, match=r"files have other line ends than were recorded, iterations/000/") as caught:
        iterations.plan_iterations(copy, stage_records.load_iteration_params(copy, 3), 1)
    for command in (("status",), ("workspace", "verify")):
        told = flywheel(copy, *command)[1]
        assert told.count("other line ends") == 1
        assert not re.search("changed since|not as ", told)
    typed(copy, re.search("`([^`]+)`", caught.value.fix)[1])
    git_tags.check_line_ends(copy.root)
    assert stage_records.changed_stages(copy) == {}
    assert flywheel(copy, "workspace", "verify")[0] == 0
