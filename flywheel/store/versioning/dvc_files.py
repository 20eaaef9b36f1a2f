"""Read and write DVC's files of a workspace and its iterations, and open its DVC repository."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from flywheel.config.workspace import FORMAT, Workspace, iteration_label
from flywheel.utils.errors import DataError, FlywheelError
from flywheel.utils.files import file_lock, write_json, write_text

# `iterations/NNN/dvc.lock` is read and written as text: DVC's own way keeps comments, and takes five times longer.

LAST_STAGE = "runs"  # the stage that ends an iteration
DVCIGNORE = "# Patterns of files that DVC ignores\n.flywheel\n.venv\n"
_PARTITION = re.compile(r"path: (data/(\w+)/iteration=\d+/stage=[\w.-]+)$", re.MULTILINE)
_SECTION, _SIZE = re.compile(r"  (?:- |  )(\w+):"), re.compile(r"      size: (\d+)$")
_ENTRY = re.compile(r"^  ['\"]?([\w-]+)['\"]?:", re.MULTILINE)


def dvc_yaml_path(ws: Workspace, iteration: int) -> Path:
    """Return the path of the iteration's dvc.yaml, which is there from the iteration's beginning on."""
    return ws.iteration(iteration) / "dvc.yaml"


def dvc_lock_path(ws: Workspace, iteration: int) -> Path:
    """Return the path of the iteration's dvc.lock, which is there once a stage is recorded."""
    return ws.iteration(iteration) / "dvc.lock"


def recorded_stages(ws: Workspace, iteration: int) -> list[str]:
    """Name the iteration's stages that are recorded, in the file's order; their files are not checked.

    Empty where there is no dvc.lock.
    """
    return _ENTRY.findall(_lock_text(ws, iteration))


def recorded_partitions(ws: Workspace, iteration: int) -> set[tuple[str, str]]:
    """List (table, folder relative to the workspace) of the partitions that the iteration's stages read and wrote."""
    return {(table, folder) for folder, table in _PARTITION.findall(_lock_text(ws, iteration))}


def recorded_bytes(ws: Workspace, iteration: int) -> int:
    """Return the bytes of all that the iteration's stages wrote, as recorded; 0 where there is no dvc.lock."""
    total, section = 0, ""
    for line in _lock_text(ws, iteration).splitlines():
        if key := _SECTION.match(line):
            section = key[1]
        elif section == "outs" and (size := _SIZE.match(line)):
            total += int(size[1])
    return total


def _lock_text(ws: Workspace, iteration: int) -> str:
    try:
        return dvc_lock_path(ws, iteration).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def is_iteration_complete(ws: Workspace, iteration: int) -> bool:
    """Tell whether the iteration was completed once, whatever became of its files since."""
    return LAST_STAGE in recorded_stages(ws, iteration)


def is_promotion_decided(ws: Workspace, iteration: int) -> bool:
    """Tell whether the iteration's promotion is decided: its model was released, or kept back for good."""
    return "promote" in recorded_stages(ws, iteration)


def add_lock_entries(ws: Workspace, iteration: int, stages: Iterable[Any]) -> None:
    """Enter stages of the iteration as DVC has them now. stages: DVC's own objects, of `open_dvc`.

    Raises DataError for a damaged dvc.lock, DiskFull.
    """
    from dvc.stage.serialize import to_single_stage_lockfile

    entries = {stage.name: to_single_stage_lockfile(stage) for stage in stages}
    write_text(dvc_lock_path(ws, iteration), dump_dvc_lock(read_dvc_lock(dvc_lock_path(ws, iteration)) | entries))


def recorded_outputs(ws: Workspace, iteration: int) -> dict[str, dict[str, Any]]:
    """Return what is recorded of each output of `iteration`, by path relative to the workspace.

    Keys: `path`, `hash`, `md5`, `size` (bytes), of a folder `nfiles`. Empty where nothing is recorded. Raises DataError
    for a damaged dvc.lock.
    """
    entries = read_dvc_lock(dvc_lock_path(ws, iteration)).values()
    return {out["path"]: out for entry in entries for out in entry.get("outs", ())}


def update_lock_entries(ws: Workspace, iteration: int, files: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
    """Replace what the dvc.lock of `iteration` records of some files and folders, as inputs and as outputs.

    files: path -> (md5 that was recorded, what to record now); one that is recorded with another md5 stays. Raises
    DataError for a damaged dvc.lock, DiskFull.
    """
    entries = read_dvc_lock(dvc_lock_path(ws, iteration))
    for entry in entries.values():
        for one in (*entry.get("deps", ()), *entry.get("outs", ())):
            before, now = files.get(one["path"], ("", {}))
            if one.get("md5") == before:
                one |= now
    write_text(dvc_lock_path(ws, iteration), dump_dvc_lock(entries))


def read_dvc_lock(file: Path) -> dict[str, Any]:
    """Read the dvc.lock `file`: name of a stage -> what is recorded (`cmd`, `deps`, `params`, `outs`); empty if there
    is none.

    Raises DataError for a damaged file.
    """
    from ruamel.yaml import YAMLError

    if not file.exists():
        return {}
    fix = "restore it, for example with `git checkout`"
    try:
        raw = parse_dvc_yaml(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, YAMLError) as error:
        raise DataError(f"not valid YAML: {' '.join(str(error).split())}", where=file, fix=fix) from None
    stages = raw.get("stages") if isinstance(raw, dict) else None
    if not isinstance(stages, dict) or not all(map(_is_entry, stages.values())):
        raise DataError("not a dvc.lock: it has no mapping `stages` of what was recorded", where=file, fix=fix)
    return stages


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    deps, outs = entry.get("deps", []), entry.get("outs", [])
    listed = isinstance(deps, list) and isinstance(outs, list)
    return listed and all(isinstance(one, dict) and isinstance(one.get("path"), str) for one in (*deps, *outs))


def parse_dvc_yaml(text: str) -> Any:
    """Return what the YAML `text` holds, as DVC reads it. Raises ruamel.yaml's YAMLError for wrong YAML."""
    return _yaml().load(text)


def dump_dvc_lock(entries: Mapping[str, Any]) -> str:
    """Render a dvc.lock as text. entries: name of a stage -> what is recorded, as `read_dvc_lock` gives it."""
    stream = io.StringIO()
    _yaml().dump({"schema": "2.0", "stages": dict(entries)}, stream)
    return stream.getvalue()


# As DVC names what it records: a file by the MD5 of its bytes, a folder by that of the list of its files.


def file_md5(path: Path) -> str:
    """Hash the bytes of the file `path` with MD5, in 32 hex digits. Raises FileNotFoundError where it is missing."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def list_folder(folder: Path) -> tuple[str, list[dict[str, str]]]:
    """List the files of `folder` and below (`md5`, `relpath`), as the JSON text that DVC's cache keeps, and as a list,
    in the order of their path's parts; none where there is no such folder. All files are read."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    entries = [{"md5": file_md5(path), "relpath": path.relative_to(folder).as_posix()} for path in files]
    entries.sort(key=lambda one: one["relpath"].split("/"))
    return json.dumps(entries, sort_keys=True), entries


def folder_md5(folder: Path) -> str:
    """Hash the folder `folder` as DVC does: 32 hex digits and `.dir`. All files are read."""
    text, _ = list_folder(folder)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() + ".dir"


def describe_output(path: Path) -> dict[str, Any]:
    """Return what DVC records of the file or folder `path`, but for its path: `hash`, `md5`, `size` (bytes of all
    files), and of a folder `nfiles`. All files are read. Raises FileNotFoundError where a file is missing."""
    if not path.is_dir():
        return {"hash": "md5", "md5": file_md5(path), "size": path.stat().st_size}
    sizes = [file.stat().st_size for file in path.rglob("*") if file.is_file()]
    return {"hash": "md5", "md5": folder_md5(path), "size": sum(sizes), "nfiles": len(sizes)}


def find_cache_folder(ws: Workspace) -> Path:
    """Find where DVC's cache keeps files by their MD5, as DVC's settings say: an absolute path, there or not.

    Raises VersioningError as `open_dvc` does.
    """
    with open_dvc(ws) as repo:
        return Path(repo.cache.local.path)


def _yaml() -> Any:
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe")  # as DVC reads: PyYAML writes 008 bare, which is a number to DVC (YAML 1.2)
    yaml.default_flow_style = False
    return yaml


# What `flywheel workspace gc` removed of an iteration: `iterations/NNN/pruned.json`. It is not missing, nor fetched.


def read_pruned(ws: Workspace, iteration: int) -> frozenset[str]:
    """Read the paths, relative to the workspace, of outputs of `iteration` that were pruned; none where none were.

    Raises DataError for a damaged list.
    """
    path = ws.iteration(iteration) / "pruned.json"
    try:
        return frozenset(json.loads(path.read_text(encoding="utf-8"))["paths"])
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError, KeyError, TypeError) as error:
        where = ws.relative(path)
        raise DataError(f"not a list of what was pruned: {error!r}", where=where, fix="restore it from git") from None


def add_pruned(ws: Workspace, iteration: int, paths: Iterable[str]) -> None:
    """Add `paths` of outputs, relative to the workspace, to those of `iteration` that were pruned; nothing is removed.

    Raises DataError for a damaged list, DiskFull.
    """
    every = sorted(read_pruned(ws, iteration) | set(paths))
    write_json(ws.iteration(iteration) / "pruned.json", {"paths": every})


# The workspace's own dvc.yaml has one stage, which depends on the newest iteration; each iteration has its stages in
# its own folder, so DVC's files do not grow with history. `dvc repro`, typed in the workspace, begins here.

REPORT_STAGE = "report"
WORKSPACE_DVC_YAML = resources.files("flywheel.store.versioning").joinpath("pipeline_template.yaml").read_text("utf-8")


def write_workspace_dvc_yaml(ws: Workspace, iteration: int) -> None:
    """Write the workspace's dvc.yaml, which depends on the end of `iteration`, and what `set_newest_iteration` does.

    iteration: 0: on none. Raises DataError for a damaged dvc.lock of the iteration, DiskFull.
    """
    _write_if_changed(ws, "dvc.yaml", WORKSPACE_DVC_YAML)
    set_newest_iteration(ws, iteration)


def set_newest_iteration(ws: Workspace, iteration: int) -> None:
    """Write which iteration is the newest to `iterations.yaml`, with the workspace's format. iteration: 0: none.

    Once its last stage is recorded, the workspace's dvc.lock also gets what that stage wrote, as what the report
    depends on; until then it stays. Files that say so already are not written. Raises DataError for a damaged dvc.lock
    of the iteration, DiskFull.
    """
    newest = [iteration_label(iteration)] if iteration else []
    _write_if_changed(ws, ws.iterations_index.name, f"format: {FORMAT}\nnewest: {newest}\n")
    last = read_dvc_lock(dvc_lock_path(ws, iteration)).get(LAST_STAGE) if iteration else None
    if last:
        wanted = f"data/runs/iteration={iteration_label(iteration)}/stage={LAST_STAGE}"
        deps = [out for out in last.get("outs", ()) if out["path"] == wanted]
        entries = {f"{REPORT_STAGE}@{iteration_label(iteration)}": {"cmd": "flywheel iteration report", "deps": deps}}
        _write_if_changed(ws, "dvc.lock", dump_dvc_lock(entries))


def _write_if_changed(ws: Workspace, file: str, text: str) -> None:
    path = ws.root / file
    if not path.exists() or path.read_text(encoding="utf-8", errors="replace") != text:
        write_text(path, text)


# DVC in this process (0.2 s a call, against 0.6 s for its command): one at a time, its errors in one line.

_LOCK_TIMEOUT_S = 300.0
_LISTING = re.compile(r"\.tmp(\.with_meta)?$")


class VersioningError(FlywheelError):
    """DVC could not record, compare or restore something, or another process held it past five minutes."""


@contextmanager
def open_dvc(ws: Workspace) -> Iterator:
    """Open DVC's view of the workspace, a `dvc.repo.Repo`, fresh from disk, and hold it as `lock_dvc` does.

    DVC's errors, as it is opened and within the block, become VersioningError, in one line.
    """
    os.environ.setdefault("DVC_NO_ANALYTICS", "1")
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.WARNING)
    with lock_dvc(ws):
        try:
            with Repo(str(ws.root)) as repo:
                repo.lock.lock = partial(_await_dvc_lock, repo.lock.lock)
                yield repo
        except DvcException as error:
            raise VersioningError(f"DVC: {error}", where=ws.root, fix="type `dvc status` there for more") from error
        finally:
            forget_dvc_listings()


def _await_dvc_lock(lock: Callable[[], None]) -> None:
    """Take DVC's own lock. A person's `dvc push` holds it for as long as it takes; DVC gives up after three seconds."""
    from dvc.lock import LockError

    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            return lock()
        except LockError:
            if time.monotonic() > deadline:
                raise


def forget_dvc_listings() -> None:
    """Drop the folders' listings that DVC made in memory to compare or record them, once nobody needs them.

    It keeps each one until the process ends, and goes through all of them for the next: a process that looks at 200
    iterations would take time by their square.
    """
    from fsspec.implementations.memory import MemoryFileSystem

    for name in [name for name in MemoryFileSystem.store if _LISTING.search(name)]:
        del MemoryFileSystem.store[name]


@contextmanager
def lock_dvc(ws: Workspace) -> Iterator[None]:
    """Hold DVC of this workspace for this process, since parallel DVC processes meet lock errors.

    A hold within a hold waits for itself. Raises VersioningError where another holds it past five minutes.
    """
    with file_lock(ws.state / "dvc.lock", _LOCK_TIMEOUT_S, "recording", VersioningError):
        yield
