"""Discard an iteration that is not complete, so that the next run begins it anew.

Its folder `iterations/NNN` goes last: an interrupted removal is found by it, and the next call ends it.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store.versioning import dvc_files, git_tags, stage_records
from flywheel.utils.errors import BadInput


@dataclass(frozen=True)
class DiscardPlan:
    """List what discarding removes. paths: in the order they go."""

    iteration: int
    paths: tuple[Path, ...]


def plan_discard(ws: Workspace, iteration: int | None = None) -> DiscardPlan:
    """Plan what discarding an iteration removes. Nothing is changed.

    iteration: by default the newest one. Raises BadInput where there is none, where it is complete or released, or
    where a later one stands on it.
    """
    begun = _begun_iterations(ws)
    if not begun:
        raise BadInput("no iteration has been begun", where=ws.root, fix="there is nothing to discard")
    k = begun[-1] if iteration is None else iteration
    if k not in begun:
        raise BadInput(
            f"iteration {k} has not been begun",
            where="--iteration",
            fix=f"begun are {', '.join(map(iteration_label, begun))}",
        )
    if dvc_files.is_iteration_complete(ws, k):
        raise BadInput(
            f"iteration {iteration_label(k)} is complete: it cannot be dropped",
            where="--iteration",
            fix=f"`flywheel iteration rollback {k - 1}` sets it aside",
        )
    if dvc_files.is_promotion_decided(ws, k) or git_tags.is_iteration_tagged(ws, k):
        raise BadInput(
            f"iteration {iteration_label(k)} is released: its promotion is decided",
            where="--iteration",
            fix="`flywheel run` brings it to its end",
        )
    if k != begun[-1]:
        raise BadInput(
            f"iteration {iteration_label(begun[-1])} stands on iteration {iteration_label(k)}",
            where="--iteration",
            fix=f"discard {begun[-1]} first",
        )
    name = f"iteration={iteration_label(k)}"
    paths = [
        *sorted(ws.data.glob(f"*/{name}")),
        ws.root / "models" / name,
        ws.state / "staging" / name,
        ws.run_history(k),
        ws.run_target,
        ws.iteration(k),
    ]
    return DiscardPlan(k, tuple(path for path in paths if path.exists()))


def discard_lines(ws: Workspace, chosen: DiscardPlan) -> list[str]:
    """List the paths that go, relative to the workspace. chosen: what `plan_discard` planned."""
    return [ws.relative(path) for path in chosen.paths]


def discard_iteration(ws: Workspace, chosen: DiscardPlan) -> None:
    """Remove an iteration that `plan_discard` planned. Call it under the workspace's lock.

    Its files in DVC's cache stay, without a name; git is not touched. After a kill, `plan_discard` plans what is left.
    """
    last = ws.iteration(chosen.iteration)
    for path in (path for path in chosen.paths if path != last):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    stage_records.forget_iteration(ws, chosen.iteration)
    if last.exists():
        shutil.rmtree(last)


def _begun_iterations(ws: Workspace) -> list[int]:
    """Iterations, and folders that a removal left over."""
    folders = [int(path.name) for path in (ws.root / "iterations").glob("[0-9]*") if path.name.isdigit()]
    return sorted({k for k in (*stage_records.list_iterations(ws), *folders) if k > 0})
