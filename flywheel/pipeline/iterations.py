"""Decide which iterations a run makes, and tell which are complete."""

from __future__ import annotations

import json

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.pipeline import dag, preflight
from flywheel.policy import checkpoint
from flywheel.store import manifest
from flywheel.store.versioning import dvc_files, iteration_params, stage_records
from flywheel.utils.errors import BadInput, DataError


def plan_iterations(
    ws: Workspace, settings: Settings, iterations: int | None = None, iteration: int | None = None
) -> list[int]:
    """The iterations that a run is to make: the one asked for; else those that a killed run still owes, where no number
    is asked for; else `iterations` more (default: settings.iterations), of which one that is not complete is the first.

    Raises BadInput for an iteration out of order.
    """
    newest = newest_iteration(ws)
    if iteration is not None:
        if not 1 <= iteration <= newest + 1:
            raise BadInput(
                f"iteration {iteration} cannot be next", where="--iteration", fix=f"the next is {newest + 1}"
            )
        if iteration == newest + 1 and newest and not check_iteration_complete(ws, newest):
            raise BadInput(f"iteration {newest} is not complete", where="--iteration", fix="type `flywheel run` first")
        return [iteration]
    interrupted = _interrupted_iterations(ws)
    if interrupted and iterations is None:
        return interrupted
    first = interrupted[0] if interrupted else newest + 1
    if not interrupted and newest and not check_iteration_complete(ws, newest):
        first = newest
    return list(range(first, first + (iterations or settings.iterations)))


def check_iteration(ws: Workspace, settings: Settings, number: int) -> None:
    """Preflight, with the parameters that the iteration has: its own, where it was begun."""
    if not ws.frozen_params(number).exists():
        preflight.run_preflight(ws, settings, number)
        return
    with iteration_params.name_params_file_in_errors(ws, number):
        preflight.run_preflight(ws, iteration_params.load_iteration_params(ws, number), number)


def record_base_model(ws: Workspace, settings: Settings) -> None:
    """The model that the workspace begins from, in its manifest."""
    first = checkpoint.resolve_checkpoint(settings.policy.base, ws.root)
    manifest.init_first_checkpoint(ws, checkpoint.checkpoint_digest(first), settings.policy.base)


def newest_iteration(ws: Workspace) -> int:
    """The newest iteration that was begun; 0 before the first."""
    return max(stage_records.list_iterations(ws), default=0)


def check_iteration_complete(ws: Workspace, iteration: int) -> bool:
    """Raises DataError where it was complete once and is not so any more: it is never done again in silence."""
    if iteration > newest_iteration(ws):
        return False
    iteration_params.load_iteration_params(ws, iteration)  # lost or wrong parameters are told first
    changed = stage_records.unfinished_stages(ws, stage_records.stage_names(ws, iteration), iteration)
    if changed and dvc_files.is_iteration_complete(ws, iteration):
        stage = stage_records.stage_address(ws, changed[0], iteration)
        path, change = next(iter(stage_records.changed_stages(ws, [iteration])[stage].items()))
        at = f"{ws.relative(dag.dvc_yaml_path(ws, iteration))}:{changed[0]}"
        raise DataError(
            f"{path} was changed ({change}) since {stage} was recorded, and a complete iteration is not done again",
            where=ws.root,
            fix=f"take it back (`git checkout HEAD -- {path}`), or record it as it is (`dvc commit --force {at}`)",
        )
    return not changed and not ws.closing(iteration).exists()


def _interrupted_iterations(ws: Workspace) -> list[int]:
    """Iterations that a killed run still owes."""
    try:
        target = json.loads(ws.run_target.read_text(encoding="utf-8"))
        return [k for k in range(target["first"], target["last"] + 1) if not check_iteration_complete(ws, k)]
    except (OSError, ValueError, KeyError):
        return []
