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

# `iterations/NNN/dvc.lock` is read and written without DVC, whose way keeps comments and takes five times longer.

LAST_STAGE = "runs"  # the stage that ends an iteration
DVCIGNORE = "# Patterns of files that DVC ignores\n.flywheel\n.venv\n"
_PARTITION = re.compile(r"path: (data/(\w+)/iteration=\d+/stage=[\w.-]+)$", re.MULTILINE)
_SECTION, _SIZE = re.compile(r"  (?:- |  )(\w+):"), re.compile(r"      size: (\d+)$")
_ENTRY = re.compile(r"^  ['\"]?([\w-]+)['\"]?:", re.MULTILINE)


def dvc_yaml_path(ws: Workspace, iteration: int) -> Path:
    """Return the path of the iteration's dvc.yaml, which exists once the iteration has begun."""
    return ws.iteration(iteration) / "dvc.yaml"


def dvc_lock_path(ws: Workspace, iteration: int) -> Path:
    """Return the path of the iteration's dvc.lock, which exists once a stage is recorded."""
    return ws.iteration(iteration) / "dvc.lock"


def recorded_stages(ws: Workspace, iteration: int) -> list[str]:
    """Return the names of the iteration's recorded stages, in the file's order; their files are not checked.

    Empty where there is no dvc.lock.
    """
    return _ENTRY.findall(_lock_text(ws, iteration))


def recorded_partitions(ws: Workspace, iteration: int) -> set[tuple[str, str]]:
    """Return (table, folder relative to the workspace) of the partitions that the iteration's stages read and wrote."""
    return {(table, folder) for folder, table in _PARTITION.findall(_lock_text(ws, iteration))}


def recorded_bytes(ws: Workspace, iteration: int) -> int:
    """Return the size in bytes of all outputs of the iteration's stages, as recorded; 0 where there is no dvc.lock."""
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
    """Tell whether the iteration was completed once, whatever happened to its files since."""
    return LAST_STAGE in recorded_stages(ws, iteration)


def explain_change_repair(ws: Workspace, iteration: int, stage: str) -> str:
    """Return the commands that deal with a recorded stage whose inputs or outputs have changed since, in words.

    stage: its name, such as `sft`. The words fit into an error's `fix`.
    """
    if not is_iteration_complete(ws, iteration):
        return "`flywheel run` does it again"
    of_iteration = ws.relative(dvc_yaml_path(ws, iteration))
    back = f"git checkout HEAD -- {ws.relative(ws.iteration(iteration))} && dvc checkout --force {of_iteration}"
    return f"take it back (`{back}`), or record it as it is (`dvc commit --force {of_iteration}:{stage}`)"


def is_promotion_decided(ws: Workspace, iteration: int) -> bool:
    """Tell whether the iteration's promotion is decided: its model was promoted, or not promoted for good."""
    return "promote" in recorded_stages(ws, iteration)


def add_lock_entries(ws: Workspace, iteration: int, stages: Iterable[Any]) -> None:
    """Enter stages of the iteration in its dvc.lock. stages: DVC's own objects, from `open_dvc`.

    Raises DataError for a damaged dvc.lock, DiskFull.
    """
    from dvc.stage.serialize import to_single_stage_lockfile

    entries = {stage.name: to_single_stage_lockfile(stage) for stage in stages}
    write_text(dvc_lock_path(ws, iteration), dump_dvc_lock(read_dvc_lock(dvc_lock_path(ws, iteration)) | entries))


def recorded_outputs(ws: Workspace, iteration: int) -> dict[str, dict[str, Any]]:
    """Return the recorded entry of each output of `iteration`, by path relative to the workspace.

    Keys: `path`, `hash`, `md5`, `size` (bytes), for a folder `nfiles`. Empty where nothing is recorded. Raises
    DataError for a damaged dvc.lock.
    """
    entries = read_dvc_lock(dvc_lock_path(ws, iteration)).values()
    return {out["path"]: out for entry in entries for out in entry.get("outs", ())}


def update_lock_entries(ws: Workspace, iteration: int, files: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
    """Replace what the dvc.lock of `iteration` records of some files and folders, among inputs and among outputs.

    files: path, relative to the workspace -> (recorded md5, mapping that is put over what is recorded, as of
    `describe_output`); a path recorded with another md5 is not changed. Where nothing is recorded, an empty dvc.lock is
    written. Raises DataError for a damaged dvc.lock, DiskFull.
    """
    entries = read_dvc_lock(dvc_lock_path(ws, iteration))
    for entry in entries.values():
        for one in (*entry.get("deps", ()), *entry.get("outs", ())):
            before, now = files.get(one["path"], ("", {}))
            if one.get("md5") == before:
                one |= now
    write_text(dvc_lock_path(ws, iteration), dump_dvc_lock(entries))


def read_dvc_lock(file: Path) -> dict[str, Any]:
    """Read the dvc.lock `file`: stage's name -> what is recorded of it, in the file's order; {} if there is no file.

    Keys of what is recorded: `cmd`, `deps`, `params`, `outs`. Raises DataError for a damaged file.
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
    """Parse the YAML `text` as DVC does. Raises ruamel.yaml's YAMLError for wrong YAML."""
    from ruamel.yaml import YAMLError

    try:
        return _yaml().load(text)
    except (ValueError, LookupError, AttributeError, RecursionError) as error:  # such as a date 2026-99-99
        raise YAMLError(str(error)) from None


def dump_dvc_lock(entries: Mapping[str, Any]) -> str:
    """Render a dvc.lock as text. entries: stage's name -> what is recorded, as `read_dvc_lock` returns it."""
    stream = io.StringIO()
    _yaml().dump({"schema": "2.0", "stages": dict(entries)}, stream)
    return stream.getvalue()


# DVC identifies a file by the MD5 of its bytes, a folder by the MD5 of the list of its files.


def file_md5(path: Path) -> str:
    """Hash the bytes of the file `path` with MD5, in 32 hex digits. Raises FileNotFoundError where it is missing."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def list_folder(folder: Path) -> tuple[str, list[dict[str, str]]]:
    """List the files in and below `folder` as DVC does; return the JSON text of the list, and the list.

    An entry has `md5` and `relpath`; the text is that in DVC's cache. Files are in the order of their paths' parts;
    none where there is no such folder. All files are read.
    """
    files = [path for path in folder.rglob("*") if path.is_file()]
    entries = [{"md5": file_md5(path), "relpath": path.relative_to(folder).as_posix()} for path in files]
    entries.sort(key=lambda one: one["relpath"].split("/"))
    return json.dumps(entries, sort_keys=True), entries


def folder_md5(folder: Path) -> str:
    """Hash the `folder` as DVC does: 32 hex digits and `.dir`.

    All files are read; a missing folder counts as an empty one.
    """
    text, _ = list_folder(folder)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() + ".dir"


def describe_output(path: Path) -> dict[str, Any]:
    """Return what DVC records of the file or folder `path`, except the path itself.

    Keys: `hash`, `md5`, `size` (bytes of all files), and for a folder `nfiles`. All files are read. Raises
    FileNotFoundError where a file is missing.
    """
    if not path.is_dir():
        return {"hash": "md5", "md5": file_md5(path), "size": path.stat().st_size}
    sizes = [file.stat().st_size for file in path.rglob("*") if file.is_file()]
    return {"hash": "md5", "md5": folder_md5(path), "size": sum(sizes), "nfiles": len(sizes)}


def find_cache_folder(ws: Workspace) -> Path:
    """Return the absolute path where DVC's cache keeps files by MD5, as DVC's settings say; it need not exist.

    Raises VersioningError as `open_dvc` does.
    """
    with open_dvc(ws) as repo:
        return Path(repo.cache.local.path)


def _yaml() -> Any:
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe")  # like DVC: PyYAML writes 008 bare, which DVC reads as a number (YAML 1.2)
    yaml.default_flow_style = False
    return yaml


# `iterations/NNN/pruned.json` lists what `flywheel workspace gc` removed: it is neither missing nor to be fetched.


def read_pruned(ws: Workspace, iteration: int) -> frozenset[str]:
    """Return the paths of the outputs of `iteration` that were deleted to save disk space (`flywheel workspace gc`).

    They are relative to the workspace; empty where there are none. Raises DataError for a damaged list.
    """
    path = ws.iteration(iteration) / "pruned.json"
    try:
        paths = json.loads(path.read_text(encoding="utf-8"))["paths"]
        if not isinstance(paths, list) or not all(isinstance(one, str) for one in paths):
            raise ValueError("`paths` is no list of texts")
        return frozenset(paths)
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError, KeyError, TypeError) as error:
        where = ws.relative(path)
        raise DataError(f"not a list of what was pruned: {error!r}", where=where, fix="restore it from git") from None


def add_pruned(ws: Workspace, iteration: int, paths: Iterable[str]) -> None:
    """Add paths to the list of the outputs of `iteration` that are deleted on purpose; no file is removed.

    paths: of outputs, relative to the workspace. `read_pruned` returns the list. Raises DataError for a damaged list,
    DiskFull.
    """
    every = sorted(read_pruned(ws, iteration) | set(paths))
    write_json(ws.iteration(iteration) / "pruned.json", {"paths": every})


# The workspace's own dvc.yaml has one stage, which depends on the newest iteration; each iteration has its stages in
# its own folder, so DVC's files do not grow with history. `dvc repro` in the workspace begins with the former.

REPORT_STAGE = "report"
WORKSPACE_DVC_YAML = resources.files("flywheel.store.versioning").joinpath("pipeline_template.yaml").read_text("utf-8")


def write_workspace_dvc_yaml(ws: Workspace, iteration: int) -> None:
    """Write the workspace's dvc.yaml for the newest `iteration`, and the files that `set_newest_iteration` writes.

    iteration: 0: there is none yet. Raises DataError for a damaged dvc.lock of the iteration, DiskFull.
    """
    _write_if_changed(ws, "dvc.yaml", WORKSPACE_DVC_YAML)
    set_newest_iteration(ws, iteration)


def set_newest_iteration(ws: Workspace, iteration: int) -> None:
    """Write the number of the newest iteration, and the workspace's format, to `iterations.yaml`. iteration: 0: none.

    Once the iteration's last stage is recorded, that stage's output is entered in the workspace's dvc.lock as the input
    of the report; until then this file is not changed. Unchanged files are not written. Raises DataError for a damaged
    dvc.lock of the iteration, DiskFull.
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


# DVC runs in this process (0.2 s per call, 0.6 s for its command), one call at a time, with its errors in one line.

_LOCK_TIMEOUT_S = 300.0
_LISTING = re.compile(r"\.tmp(\.with_meta)?$")


class VersioningError(FlywheelError):
    """Signal that DVC failed to record, compare or restore, or that another process held it for over five minutes."""


@contextmanager
def open_dvc(ws: Workspace) -> Iterator:
    """Open the workspace's DVC repository, a `dvc.repo.Repo`, freshly read from disk, and hold it as `lock_dvc` does.

    DVC's errors, on opening and within the block, become VersioningError, in one line. Raises as `lock_dvc` too.
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
    """Take DVC's own lock. A person's `dvc push` may hold it for long, and DVC itself gives up after three seconds."""
    from dvc.lock import LockError

    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            return lock()
        except LockError:
            if time.monotonic() > deadline:
                raise


def forget_dvc_listings() -> None:
    """Drop the listings of folders that DVC keeps in memory to compare or record them, once they are not needed.

    DVC keeps each one until the process ends, and goes through all of them for the next: for a process that compares
    200 iterations, the time would grow with the square of their number.
    """
    from fsspec.implementations.memory import MemoryFileSystem

    for name in [name for name in MemoryFileSystem.store if _LISTING.search(name)]:
        del MemoryFileSystem.store[name]


@contextmanager
def lock_dvc(ws: Workspace) -> Iterator[None]:
    """Hold the lock of the workspace's DVC within the block, since parallel DVC processes fail with lock errors.

    It is not reentrant: a second hold within the block would wait for the first. Raises VersioningError where another
    process holds it for more than five minutes, OSError where the lock file cannot be made (a read-only disk).
    """
    with file_lock(ws.state / "dvc.lock", _LOCK_TIMEOUT_S, "recording", VersioningError):
        yield
