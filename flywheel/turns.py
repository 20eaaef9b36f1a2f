"""Which iterations are to be made, and which are complete."""

from __future__ import annotations

import json

from flywheel import preflight
from flywheel.errors import BadInput, DataError
from flywheel.policy import checkpoint
from flywheel.settings import Settings
from flywheel.store import dvc_lock, frozen, manifest, pipeline, recovery, versioning
from flywheel.upkeep import again, rollback
from flywheel.workspace import Workspace


def mend(ws: Workspace) -> None:
    """End what another command left half done, and bring back recorded files that are damaged or missing. Under the
    workspace's lock, before anything else."""
    again.resume(ws)
    rollback.resume(ws)
    recovery.mend(ws)


def plan(ws: Workspace, settings: Settings, iterations: int | None = None, iteration: int | None = None) -> list[int]:
    """The iterations that a run is to make: the one asked for; else those that a killed run still owes, where no number
    is asked for; else `iterations` more (default: settings.iterations), of which one that is not complete is the first.

    Raises BadInput for an iteration out of order.
    """
    newest = last(ws)
    if iteration is not None:
        if not 1 <= iteration <= newest + 1:
            raise BadInput(
                f"iteration {iteration} cannot be next", where="--iteration", fix=f"the next is {newest + 1}"
            )
        if iteration == newest + 1 and newest and not complete(ws, newest):
            raise BadInput(f"iteration {newest} is not complete", where="--iteration", fix="type `flywheel run` first")
        return [iteration]
    interrupted = _interrupted(ws)
    if interrupted and iterations is None:
        return interrupted
    first = interrupted[0] if interrupted else newest + 1
    if not interrupted and newest and not complete(ws, newest):
        first = newest
    return list(range(first, first + (iterations or settings.iterations)))


def look(ws: Workspace, settings: Settings, number: int) -> None:
    """Preflight, with the parameters that the iteration has: its own, where it was begun."""
    if not ws.frozen_params(number).exists():
        preflight.check(ws, settings, number)
        return
    with frozen.named(ws, number):
        preflight.check(ws, frozen.load(ws, number), number)


def found(ws: Workspace, settings: Settings) -> None:
    """The model that the workspace begins from, in its manifest."""
    first = checkpoint.resolve(settings.policy.base, ws.root)
    manifest.genesis(ws, checkpoint.digest(first), settings.policy.base)


def last(ws: Workspace) -> int:
    """The newest iteration that was begun; 0 before the first."""
    return max(versioning.iterations(ws), default=0)


def complete(ws: Workspace, iteration: int) -> bool:
    """Raises DataError where it was complete once and is not so any more: it is never done again in silence."""
    if iteration > last(ws):
        return False
    frozen.load(ws, iteration)  # lost or wrong parameters are told first
    changed = versioning.unfinished(ws, versioning.stages(ws, iteration), iteration)
    if changed and dvc_lock.complete(ws, iteration):
        stage = versioning.address(ws, changed[0], iteration)
        path, change = next(iter(versioning.status(ws, [iteration])[stage].items()))
        at = f"{ws.relative(pipeline.path(ws, iteration))}:{changed[0]}"
        raise DataError(
            f"{path} was changed ({change}) since {stage} was recorded, and a complete iteration is not done again",
            where=ws.root,
            fix=f"take it back (`git checkout HEAD -- {path}`), or record it as it is (`dvc commit --force {at}`)",
        )
    return not changed and not ws.closing(iteration).exists()


def _interrupted(ws: Workspace) -> list[int]:
    """Iterations that a killed run still owes."""
    try:
        target = json.loads(ws.run_target.read_text(encoding="utf-8"))
        return [k for k in range(target["first"], target["last"] + 1) if not complete(ws, k)]
    except (OSError, ValueError, KeyError):
        return []
