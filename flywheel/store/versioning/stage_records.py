"""Record an iteration's stages in DVC, tell what changed since, and check data out.

Each iteration has a dvc.yaml of its own, made from what the stages declare (`flywheel/pipeline/dag.py`), and a dvc.lock
beside it: what is done here costs the same, whichever the iteration's number.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store import manifest
from flywheel.store.versioning import dvc_files, lock_comparison
from flywheel.store.versioning.dvc_files import VersioningError
from flywheel.utils.errors import BadInput, DataError
from flywheel.utils.files import write_text

log = logging.getLogger(__name__)

_STAGE = re.compile(r"^  ([\w-]+):", re.MULTILINE)
_CONFIG = "[core]\n    analytics = false\n    autostage = false\n    check_update = false\n"


def stage_names(ws: Workspace, iteration: int) -> tuple[str, ...]:
    """Name the iteration's stages, in the order they run. Raises BadInput where it has not been begun."""
    try:
        return tuple(_STAGE.findall(dvc_files.dvc_yaml_path(ws, iteration).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise BadInput(
            f"iteration {iteration_label(iteration)} has not been begun",
            where=ws.relative(dvc_files.dvc_yaml_path(ws, iteration)),
            fix=f"type `flywheel run --iterations {iteration}`",
        ) from None


def stage_address(ws: Workspace, stage: str, iteration: int) -> str:
    """Name a stage of an iteration: `rollout@007`, for DVC `iterations/007/dvc.yaml:rollout`.

    Raises BadInput where the iteration has none of that name.
    """
    known = stage_names(ws, iteration)
    if stage not in known:
        raise BadInput(
            f"iteration {iteration_label(iteration)} has no stage {stage}",
            where=ws.relative(dvc_files.dvc_yaml_path(ws, iteration)),
            fix=f"use one of: {', '.join(known)}; `flywheel run` adds a new one to an iteration that is not complete",
        )
    return f"{stage}@{iteration_label(iteration)}"


def init_dvc_project(ws: Workspace) -> None:
    """Make the folder a DVC project of this version. What runs have made stays; git's index is not touched."""
    dvc, in_git = ws.root / ".dvc", (ws.root / ".git").exists()  # DVC wants git's top there, or nowhere
    if not (dvc / "config").exists():
        write_text(dvc / "config", _CONFIG + ("" if in_git else "    no_scm = true\n"))
        write_text(dvc / ".gitignore", "/config.local\n/tmp\n/cache\n")
    if not (ws.root / ".dvcignore").exists():
        write_text(ws.root / ".dvcignore", dvc_files.DVCIGNORE)
    begun = list_iterations(ws)
    manifest.init_manifests(ws, begun)
    dvc_files.write_workspace_dvc_yaml(ws, max(begun, default=0))


def list_iterations(ws: Workspace) -> list[int]:
    """List the iterations that were begun, oldest first. Raises DataError where DVC's file of one is lost."""
    folders = [int(path.name) for path in (ws.root / "iterations").glob("[0-9]*") if path.name.isdigit()]
    begun = sorted(k for k in folders if dvc_files.dvc_yaml_path(ws, k).exists())
    lost = [k for k in range(1, max(begun, default=0)) if k not in set(begun)]
    if lost := sorted({*lost, *(k for k in folders if dvc_files.dvc_lock_path(ws, k).exists())} - set(begun)):
        path = dvc_files.dvc_yaml_path(ws, lost[0])
        others = f", and those of {len(lost) - 1} more iterations" if len(lost) > 1 else ""
        raise DataError(
            f"the stages of iteration {iteration_label(lost[0])} are lost{others}",
            where=path,
            fix=f"restore them: `git checkout HEAD -- {ws.relative(path)}`",
        )
    return begun


def check_iterations_begun(ws: Workspace, which: Iterable[int]) -> None:
    """Check that the iterations `which` were begun. Raises BadInput for the first that was not."""
    begun = list_iterations(ws)
    for k in which:
        if k not in begun:
            raise BadInput(f"iteration {k} has not been begun", where="ITERATION", fix="see `flywheel status`")


def active_iterations(ws: Workspace) -> list[int]:
    """List the newest iteration, and, while it is not complete, before it the one that it reads.

    Empty before the first iteration.
    """
    begun = list_iterations(ws)
    return begun[-1:] if not begun or dvc_files.is_iteration_complete(ws, begun[-1]) else begun[-2:]


def forget_iteration(ws: Workspace, iteration: int) -> None:
    """Remove an iteration's dvc.yaml and dvc.lock, and let DVC name the one before as the newest.

    iteration: the newest; its data stay, in DVC's cache too. Files that are not there are no error.
    """
    dvc_files.dvc_lock_path(ws, iteration).unlink(missing_ok=True)
    dvc_files.dvc_yaml_path(ws, iteration).unlink(missing_ok=True)
    dvc_files.set_newest_iteration(ws, max(list_iterations(ws), default=0))


def record_stage(ws: Workspace, stage: str, iteration: int) -> None:
    """Record the inputs, parameters and outputs of a stage of `iteration` as they are now (`dvc commit --force`).

    Outputs go to DVC's cache; git is not touched. With an iteration's last stage, the workspace's files name it as the
    newest that ended. stage: its name. Raises VersioningError naming what is missing, BadInput for an unknown stage.
    """
    name = stage_address(ws, stage, iteration)
    with dvc_files.open_dvc(ws) as repo:
        (recorded,) = load_dvc_stages(repo, ws, iteration, [stage])
        missing = [str(item) for item in (*recorded.deps, *recorded.outs) if not item.exists]
        if missing:
            raise VersioningError(
                f"the stage {name} cannot be recorded: missing {', '.join(missing)}",
                where=ws.root,
                fix=f"type `flywheel stage {stage} --iteration {iteration}`",
            )
        began = time.perf_counter()
        # What `repo.commit` does, less its run cache, which works only where the process stands in the workspace.
        with repo.lock:
            recorded.save(run_cache=False)
            recorded.commit()
            dvc_files.add_lock_entries(ws, iteration, [recorded])
        log.info("recorded %s in DVC in %.2f s", name, time.perf_counter() - began)
    if stage == dvc_files.LAST_STAGE and iteration == list_iterations(ws)[-1]:
        dvc_files.set_newest_iteration(ws, iteration)


def rerecord_changed(ws: Workspace, iteration: int, names: Collection[str]) -> int:
    """Record stages again whose declaration or files changed; returns how many.

    iteration: whose stages. names: those that may be recorded again; those that do not differ from their record stay.
    """
    with dvc_files.open_dvc(ws) as repo, repo.lock:
        other = [stage for stage in load_dvc_stages(repo, ws, iteration) if stage.name in names and _changes(ws, stage)]
        for stage in other:
            stage.save(run_cache=False)
            stage.commit()
        dvc_files.add_lock_entries(ws, iteration, other)
    return len(other)


def is_stage_done(ws: Workspace, stage: str, iteration: int) -> bool:
    """Tell whether a stage of `iteration` is recorded, and unchanged since: command, parameters, inputs, outputs.

    Raises BadInput where the iteration has no such stage.
    """
    return not unfinished_stages(ws, (stage,), iteration)


def unfinished_stages(ws: Workspace, names: Iterable[str], iteration: int) -> list[str]:
    """Name those of the stages `names` of `iteration` that are not recorded or changed since, in order.

    DVC is opened once, and only where one may have changed. Raises BadInput where the iteration has no such stage.
    """
    names = [stage_address(ws, name, iteration).partition("@")[0] for name in names]
    unchanged = lock_comparison.find_unchanged_stages(ws, iteration)
    left = [name for name in names if name not in unchanged]
    if not set(left).intersection(dvc_files.recorded_stages(ws, iteration)):
        return left
    with dvc_files.open_dvc(ws) as repo, repo.lock:
        return [stage.name for stage in load_dvc_stages(repo, ws, iteration, left) if _changes(ws, stage)]


def iterations_to_compare(ws: Workspace, which: Iterable[int]) -> list[int]:
    """List those of the iterations in which a stage is not recorded, or may have changed: DVC has to look."""
    return [k for k in which if not lock_comparison.find_unchanged_stages(ws, k).issuperset(stage_names(ws, k))]


def changed_stages(ws: Workspace, which: Iterable[int] | None = None) -> dict[str, dict[str, str]]:
    """Find stages that changed since they were recorded, or are not: `{"merge@001": {path: change}}`; empty if none.

    which: iterations to look at; default: all. Changes are DVC's words, such as `modified` and `deleted`; paths are
    relative to the workspace. What was pruned is no change.
    """
    asked = iterations_to_compare(ws, list_iterations(ws) if which is None else which)
    if not asked:
        return {}
    found = {}
    with dvc_files.open_dvc(ws) as repo, repo.lock:
        for k in asked:
            for stage in load_dvc_stages(repo, ws, k):
                if changes := _changes(ws, stage):
                    found[f"{stage.name}@{iteration_label(k)}"] = changes
            dvc_files.forget_dvc_listings()
    return found


def _changes(ws: Workspace, stage) -> dict[str, str]:
    """What changed of one stage: path -> change; not what was pruned. Paths from the workspace; DVC's own status has
    them from the current folder."""
    changes = {"dvc.yaml": "command modified"} if stage.changed_stage() else {}
    gone = dvc_files.read_pruned(ws, int(Path(stage.path).parent.name))
    found = [(item, item.status()) for item in stage.deps]
    found += [(item, item.workspace_status()) for item in stage.outs]  # what is here need not lie in the cache too
    for item, status in found:
        for change in status.values():
            path = Path(os.path.relpath(item.fs_path, ws.root)).as_posix()
            if path in gone and not item.exists:
                continue
            if not isinstance(change, str):  # of a parameter file: parameter -> change
                change = ", ".join(f"{name} {what}" for name, what in change.items())
            changes[path] = change
    return changes


def load_dvc_stages(repo: Any, ws: Workspace, iteration: int, names: Iterable[str] | None = None) -> list[Any]:
    """Load DVC's stages of an iteration, those of these names or all; its dvc.yaml and dvc.lock are read once."""
    from dvc.dvcfile import load_file

    loader = load_file(repo, str(dvc_files.dvc_yaml_path(ws, iteration))).stages
    return [loader[name] for name in (loader if names is None else names)]
