"""Roll back to an earlier iteration, discard an incomplete one, and finish what a killed command left half done.

A rollback to NNN moves the later iterations to `.flywheel/aside/after-NNN-N` (N: a running number), without copying. It
moves the newest first, and of each iteration its folder under `iterations` last, so an interrupted move can be resumed
from the folders alone. An undo moves them back in the same way, oldest first. A discard removes the folder under
`iterations` last too: by it the next call finds what is left.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from flywheel import config
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.evaluation import promotion_review
from flywheel.maintenance import promotion_override, reroute
from flywheel.store.versioning import backup, dvc_files, git_tags, stage_records
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_json


def plan_rollback(ws: Workspace, iteration: int) -> list[int]:
    """List the iterations that rolling back to `iteration` would set aside, oldest first; nothing is changed.

    iteration: 0 sets all aside; the newest gives []. Raises BadInput where it has not been begun, DataError where DVC's
    file of an iteration is lost.
    """
    begun = stage_records.list_iterations(ws)
    if iteration not in (0, *begun):
        first_to_last = " to ".join(map(iteration_label, (begun[0], begun[-1]))) if begun else ""
        known = f"begun are {first_to_last}" if begun else "none has been begun"
        raise BadInput(f"iteration {iteration} has not been begun", where="ITERATION", fix=known)
    return [k for k in begun if k > iteration]


def roll_back(ws: Workspace, iteration: int) -> Path:
    """Move all iterations after `iteration` to a new folder under `.flywheel/aside`; return that folder.

    Call it under the workspace's lock, with a number that `plan_rollback` accepts; without later iterations the folder
    is not made. What an interrupted run was asked for is forgotten. Commits where `versioning.git` is set.
    `resume_rollback` finishes an interrupted call, `undo_rollback` brings the iterations back. Raises as
    `resume_rollback`.
    """
    aside = ws.state / "aside"
    number = 1 + max((int(path.name.rpartition("-")[2]) for path in aside.glob("after-*-*")), default=0)
    folder = aside / f"after-{iteration_label(iteration)}-{number}"
    write_json(_journal_path(ws), {"iteration": iteration, "aside": folder.name, "back": False})
    resume_rollback(ws)
    return folder


def map_rollbacks(ws: Workspace) -> dict[int, Path]:
    """Return iteration -> the folder with what the last rollback to that iteration set aside, for `undo_rollback`."""
    found = {}
    for path in sorted((ws.state / "aside").glob("after-*-*"), key=lambda one: int(one.name.rpartition("-")[2])):
        found[int(path.name.split("-")[1])] = path
    return found


def undo_rollback(ws: Workspace) -> int:
    """Undo the last rollback to the iteration that is now the newest; return the number of that iteration.

    Call it under the workspace's lock. Commits where `versioning.git` is set; `resume_rollback` finishes an interrupted
    call. Raises BadInput where nothing was set aside, or the decision that the next iteration began with was overridden
    since; DataError for a damaged dvc.lock or `review.json`, and what `resume_rollback` does.
    """
    there, now = map_rollbacks(ws), max(stage_records.list_iterations(ws), default=0)
    if now not in there:
        known = f"after {', '.join(map(iteration_label, there))} something was: go back to that first" if there else ""
        raise BadInput(f"nothing was set aside after iteration {iteration_label(now)}", where="--undo", fix=known)
    if _was_overridden_since(ws, now, there[now]):
        what = (
            f"iteration {iteration_label(now + 1)} began with another decision about iteration {iteration_label(now)}"
        )
        raise BadInput(what, where="--undo", fix=f"it stays in {ws.relative(there[now])}: `flywheel run` begins anew")
    write_json(_journal_path(ws), {"iteration": now, "aside": there[now].name, "back": True})
    resume_rollback(ws)
    return now


def _was_overridden_since(ws: Workspace, iteration: int, aside: Path) -> bool:
    """Tell whether the promotion of `iteration` was overridden since the next one, which lies in `aside`, read it."""
    review, path = promotion_review.read_review(ws, iteration), ws.relative(ws.promotion(iteration))
    if not review or not review.overrides:
        return False
    entries = dvc_files.read_dvc_lock(dvc_files.dvc_lock_path(Workspace(aside), iteration + 1)).values()
    read = {one["md5"] for entry in entries for one in entry.get("deps", ()) if one["path"] == path}
    return bool(read - {dvc_files.file_md5(ws.promotion(iteration))})


def resume_rollback(ws: Workspace) -> None:
    """Finish an interrupted rollback or its undoing, if there is one. Call it under the workspace's lock.

    Raises DataError where DVC's file of an iteration is lost or damaged, BadInput where params.yaml is wrong,
    FlywheelError where git refuses, DiskFull.
    """
    try:
        going = json.loads(_journal_path(ws).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    k, back = going["iteration"], going["back"]
    here, there = ws, Workspace(ws.state / "aside" / going["aside"])
    source, target = (there, here) if back else (here, there)
    numbers = source.list_iteration_folders()
    for number in numbers if back else [one for one in reversed(numbers) if one > k]:
        for path in _iteration_paths(source, number):
            _move_path(path, target.root / path.relative_to(source.root))
    if not back:
        ws.run_target.unlink(missing_ok=True)
    dvc_files.set_newest_iteration(ws, max(stage_records.list_iterations(ws), default=0))
    if config.load_settings(ws.params).versioning.git:
        label, there_now = iteration_label(k), [name for name in _TRACKED if (ws.root / name).exists()]
        words = f"What came after iteration {label} is back" if back else f"Back to iteration {label}"
        git_tags.commit_to_git(ws.root, words, ("--all", *there_now))
    if back:  # only empty folders are left
        for path in (*sorted(there.root.rglob("*"), reverse=True), there.root):
            path.rmdir()
    _journal_path(ws).unlink()


_TRACKED = ("iterations", "iterations.yaml", "dvc.lock")  # files that git tracks


def _iteration_paths(ws: Workspace, number: int) -> list[Path]:
    """List the existing folders and files of an iteration, its own folder last."""
    name = f"iteration={iteration_label(number)}"
    paths = [*sorted(ws.data.glob(f"*/{name}")), ws.root / "models" / name, ws.state / "staging" / name]
    return [path for path in (*paths, ws.run_history(number), ws.iteration(number)) if path.exists()]


def _move_path(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    os.utime(target)  # the new time tells `compaction.py` that the iteration changed


def _journal_path(ws: Workspace) -> Path:
    return ws.state / "rollback.json"


@dataclass(frozen=True)
class DiscardPlan:
    """Hold what discarding `iteration` removes. paths: absolute, the iteration's own folder last."""

    iteration: int
    paths: tuple[Path, ...]


def plan_discard(ws: Workspace, iteration: int | None = None) -> DiscardPlan:
    """Plan what discarding an incomplete iteration would remove; nothing is changed.

    iteration: its number; None: the newest one. Raises BadInput where there is none, where it is complete or released
    (promotion decided, or tagged), or where a later iteration builds on it; DataError where DVC's file of an iteration
    is lost; FlywheelError where git refuses.
    """
    left = ws.list_iteration_folders()  # also those that an interrupted removal left
    begun = sorted({k for k in (*stage_records.list_iterations(ws), *left) if k > 0})
    if not begun:
        raise BadInput("no iteration has been begun", where=ws.root, fix="there is nothing to discard")
    k = begun[-1] if iteration is None else iteration
    if k not in begun:
        what, fix = f"iteration {k} has not been begun", f"begun are {', '.join(map(iteration_label, begun))}"
    elif dvc_files.is_iteration_complete(ws, k):
        what = f"iteration {iteration_label(k)} is complete: it cannot be dropped"
        fix = f"`flywheel iteration rollback {k - 1}` sets it aside"
    elif dvc_files.is_promotion_decided(ws, k) or git_tags.is_iteration_tagged(ws, k):
        what = f"iteration {iteration_label(k)} is released: its promotion is decided"
        fix = "`flywheel run` brings it to its end"
    elif k != begun[-1]:
        what = f"iteration {iteration_label(begun[-1])} stands on iteration {iteration_label(k)}"
        fix = f"discard {begun[-1]} first"
    else:
        return DiscardPlan(k, (*[ws.run_target] * ws.run_target.exists(), *_iteration_paths(ws, k)))
    raise BadInput(what, where="--iteration", fix=fix)


def discard_iteration(ws: Workspace, chosen: DiscardPlan) -> None:
    """Remove an incomplete iteration: the files and folders of `chosen`, the plan from `plan_discard`.

    Call it under the workspace's lock. What an interrupted run was asked for goes too. The iteration's files in DVC's
    cache stay, unreferenced; git is not touched. After a kill, `plan_discard` lists what is left. Raises DataError
    where DVC's file of another iteration is lost or damaged, DiskFull.
    """
    last = ws.iteration(chosen.iteration)
    for path in (path for path in chosen.paths if path != last):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    stage_records.forget_iteration(ws, chosen.iteration)
    if last.exists():
        shutil.rmtree(last)


def recover_workspace(ws: Workspace) -> None:
    """Finish interrupted rerouting, rollbacks and promotion overrides; restore damaged or missing files from DVC.

    Call it before anything else, under the workspace's lock, which it does not take itself. Files come from DVC's cache
    or its remote, and replace those that were changed by hand. Raises DataError where one cannot be restored, and as
    `reroute.resume_pending_decisions`, `resume_rollback` and `promotion_override.resume_promotion_override`.
    """
    reroute.resume_pending_decisions(ws)
    resume_rollback(ws)
    promotion_override.resume_promotion_override(ws)
    backup.restore_damaged_outputs(ws)
