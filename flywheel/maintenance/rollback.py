"""Roll back to an earlier iteration: set aside, whole, what came after it, or bring that back.

Folders are moved, not copied, to `.flywheel/aside/after-NNN-1` (NNN: the iteration gone back to), the newest first, and
`iterations/NNN` of each last; an interrupted move needs nothing else to go on. They come back in the same way, the
oldest first.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from flywheel import config
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store.versioning import dvc_files, git_tags, stage_records
from flywheel.utils.errors import BadInput
from flywheel.utils.files import write_json


def plan_rollback(ws: Workspace, iteration: int) -> list[int]:
    """List the iterations that rolling back to `iteration` would set aside, oldest first; nothing is changed.

    iteration: 0 sets all aside; the newest gives an empty list. Raises BadInput where it has not been begun.
    """
    begun = stage_records.list_iterations(ws)
    if iteration not in (0, *begun):
        known = (
            f"begun are {iteration_label(begun[0])} to {iteration_label(begun[-1])}" if begun else "none has been begun"
        )
        raise BadInput(f"iteration {iteration} has not been begun", where="ITERATION", fix=known)
    return [k for k in begun if k > iteration]


def roll_back(ws: Workspace, iteration: int) -> Path:
    """Move what came after `iteration` to a new folder under `.flywheel/aside`; returns it.

    Call it under the workspace's lock, with a number that `plan_rollback` took. Commits where `versioning.git` is set.
    `resume_rollback` finishes one that was cut off, `undo_rollback` brings the iterations back.
    """
    aside = ws.state / "aside"
    number = 1 + max((int(path.name.rpartition("-")[2]) for path in aside.glob("after-*-*")), default=0)
    folder = aside / f"after-{iteration_label(iteration)}-{number}"
    write_json(_journal_path(ws), {"iteration": iteration, "aside": folder.name, "back": False})
    resume_rollback(ws)
    return folder


def rolled_back_iterations(ws: Workspace) -> dict[int, Path]:
    """Map the iterations that something was set aside after, each with what was last."""
    found = {}
    for path in sorted((ws.state / "aside").glob("after-*-*"), key=lambda one: int(one.name.rpartition("-")[2])):
        found[int(path.name.split("-")[1])] = path
    return found


def undo_rollback(ws: Workspace) -> int:
    """Bring back what was set aside last after the newest iteration; returns the number of that iteration.

    Call it under the workspace's lock. Commits where `versioning.git` is set; `resume_rollback` finishes one that was
    cut off. Raises BadInput where nothing was set aside.
    """
    there, now = rolled_back_iterations(ws), max(stage_records.list_iterations(ws), default=0)
    if now not in there:
        known = f"after {', '.join(map(iteration_label, there))} something was: go back to that first" if there else ""
        raise BadInput(f"nothing was set aside after iteration {iteration_label(now)}", where="--undo", fix=known)
    write_json(_journal_path(ws), {"iteration": now, "aside": there[now].name, "back": True})
    resume_rollback(ws)
    return now


def resume_rollback(ws: Workspace) -> None:
    """Finish a rollback, or its undoing, that was interrupted, if there is one. Call it under the workspace's lock."""
    try:
        going = json.loads(_journal_path(ws).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    k, back = going["iteration"], going["back"]
    here, there = ws, Workspace(ws.state / "aside" / going["aside"])
    source, target = (there, here) if back else (here, there)
    numbers = sorted(int(path.name) for path in (source.root / "iterations").glob("[0-9]*"))
    for number in numbers if back else [one for one in reversed(numbers) if one > k]:
        for path in (*_iteration_paths(source, number), source.iteration(number)):
            _move_path(path, target.root / path.relative_to(source.root))
    if not back:
        ws.run_target.unlink(missing_ok=True)
    dvc_files.set_newest_iteration(ws, max(stage_records.list_iterations(ws), default=0))
    if config.load_settings(ws.params).versioning.git:
        words = (
            f"What came after iteration {iteration_label(k)} is back"
            if back
            else f"Back to iteration {iteration_label(k)}"
        )
        git_tags.commit_to_git(
            ws.root, words, ("--all", *(name for name in ("iterations", *_FILES) if (ws.root / name).exists()))
        )
    if back:
        _remove_empty(there.root)
    _journal_path(ws).unlink()


_FILES = ("iterations.yaml", "dvc.lock")


def _iteration_paths(ws: Workspace, number: int) -> list[Path]:
    """What an iteration has outside of its folder."""
    name = f"iteration={iteration_label(number)}"
    paths = [*ws.data.glob(f"*/{name}"), ws.root / "models" / name, ws.run_history(number)]
    return [path for path in (*paths, ws.state / "staging" / name) if path.exists()]


def _move_path(path: Path, target: Path) -> None:
    if not path.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    os.utime(target)  # by it a closed iteration is known as another


def _remove_empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir()
    folder.rmdir()


def _journal_path(ws: Workspace) -> Path:
    return ws.state / "rollback.json"
