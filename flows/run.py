"""`flywheel run`: as many turns as asked for, in one workspace, resumable at any moment."""

from __future__ import annotations

import json
from dataclasses import dataclass

import httpx

from flows.server import prefect_server
from flywheel import cluster, preflight, run_lock
from flywheel.errors import BadInput, DataError, FlywheelError
from flywheel.files import write_json
from flywheel.policy import checkpoint
from flywheel.progress import tell
from flywheel.report import page
from flywheel.settings import Settings
from flywheel.stages import ingest
from flywheel.stages.base import Context, clear_staging, run_stage
from flywheel.store import closed, dvc_lock, frozen, git, manifest, pipeline, recovery, remote, versioning
from flywheel.upkeep import again, rollback
from flywheel.workspace import Workspace, label


@dataclass(frozen=True)
class Outcome:
    """ran: iterations that this call worked on; done_before: asked for, but complete already."""

    ran: tuple[int, ...] = ()
    done_before: tuple[int, ...] = ()


def run(ws: Workspace, settings: Settings, *, iterations: int | None = None, iteration: int | None = None) -> Outcome:
    """Run `iterations` turns more (default: settings.iterations), or the one `iteration` asked for.

    A run that was killed is gone on with first, to the iteration it had been asked to reach. Recorded files that are
    damaged or missing are brought back before anything else. Raises BadInput for an iteration out of order or
    parameters that cannot work, before anything is frozen; FlywheelError where another run is at work here.
    """
    with run_lock.hold(ws):
        again.resume(ws)
        rollback.resume(ws)
        recovery.mend(ws)
        wanted = _plan(ws, settings, iterations, iteration)
        todo = [k for k in wanted if not _complete(ws, k)]
        if not todo:
            return Outcome(done_before=tuple(wanted))
        for k in todo:
            _look(ws, settings, k)
        versioning.prepare(ws)
        remote.name(ws, settings.versioning.remote)
        with cluster.open_cluster(ws, settings), prefect_server(ws, meanwhile=lambda: _found(ws, settings)) as url:
            write_json(ws.run_target, {"first": todo[0], "last": todo[-1]})
            from flows.turn import turn  # after the server has configured Prefect
            from tasks import history

            history.mark_killed_runs()
            tell(
                "prefect",
                f"runs are shown at {url} while this runs (log in: `cat .flywheel/auth`), later with `flywheel ui`",
            )
            try:
                for k in todo:
                    begin(ws, settings, k)
                    with frozen.named(ws, k):
                        turn(str(ws.root), k)
                    _close(ws, settings, k, history.runs_of(k))
            except httpx.TransportError as error:
                raise FlywheelError(
                    f"Prefect's server stopped answering: {error}",
                    where=ws.prefect_home / "server.log",
                    fix="type the same command: what was finished is kept",
                ) from error
        ws.run_target.unlink()
        return Outcome(ran=tuple(todo), done_before=tuple(k for k in wanted if k not in todo))


def _look(ws: Workspace, settings: Settings, iteration: int) -> None:
    """Preflight, with the parameters that the iteration has: its own, where it was begun."""
    if not ws.frozen_params(iteration).exists():
        preflight.check(ws, settings, iteration)
        return
    with frozen.named(ws, iteration):
        preflight.check(ws, frozen.load(ws, iteration), iteration)


def _found(ws: Workspace, settings: Settings) -> None:
    """The model that the workspace begins from, in its manifest."""
    first = checkpoint.resolve(settings.policy.base, ws.root)
    manifest.genesis(ws, checkpoint.digest(first), settings.policy.base)


def begin(ws: Workspace, settings: Settings, iteration: int) -> None:
    """Give an iteration its frozen parameters and its place in DVC's index; nothing where it has them."""
    later = ingest.later(ws, settings, iteration)
    if versioning.add_iteration(ws, iteration, settings, later) != settings:
        where = ws.relative(ws.frozen_params(iteration))
        tell("run", f"iteration {label(iteration)} goes on with the parameters it began with ({where})")


def _close(ws: Workspace, settings: Settings, iteration: int, runs: list[dict]) -> None:
    """After the turn: its run history as Parquet, the report, and git where the workspace is flywheel's own."""
    write_json(ws.run_history(iteration), runs)
    ctx = Context.open(ws, iteration, "runs")
    run_stage(pipeline.get("runs"), ctx)
    versioning.commit(ws, "runs", iteration)
    clear_staging(ctx)
    closed.bring_up_to_date(ws)
    page.build(ws)
    if settings.versioning.git:
        git.tag(ws, iteration)
    remote.push(ws, settings.versioning.remote)


def _plan(ws: Workspace, settings: Settings, iterations: int | None, iteration: int | None) -> list[int]:
    last = last_iteration(ws)
    if iteration is not None:
        if not 1 <= iteration <= last + 1:
            raise BadInput(f"iteration {iteration} cannot be next", where="--iteration", fix=f"the next is {last + 1}")
        if iteration == last + 1 and last and not _complete(ws, last):
            raise BadInput(f"iteration {last} is not complete", where="--iteration", fix="type `flywheel run` first")
        return [iteration]
    interrupted = _interrupted(ws)
    if interrupted and iterations is None:
        return interrupted
    first = interrupted[0] if interrupted else last + 1
    if not interrupted and last and not _complete(ws, last):
        first = last
    return list(range(first, first + (iterations or settings.iterations)))


def last_iteration(ws: Workspace) -> int:
    """The newest iteration that was begun; 0 before the first."""
    return max(versioning.iterations(ws), default=0)


def _interrupted(ws: Workspace) -> list[int]:
    """Iterations that a killed run still owes."""
    try:
        target = json.loads(ws.run_target.read_text(encoding="utf-8"))
        return [k for k in range(target["first"], target["last"] + 1) if not _complete(ws, k)]
    except (OSError, ValueError, KeyError):
        return []


def _complete(ws: Workspace, iteration: int) -> bool:
    """Raises DataError where it was complete once and is not so any more: it is never done again in silence."""
    if iteration > last_iteration(ws):
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
    return not changed
