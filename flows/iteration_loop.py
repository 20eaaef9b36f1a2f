"""Run as many iterations as asked for in one workspace (`flywheel run`), resumable at any moment."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from flows.ops.prefect_server import find_external_server, open_prefect_server
from flywheel import config
from flywheel.config import run_lock
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.maintenance.rollback import recover_workspace
from flywheel.pipeline import dag
from flywheel.pipeline import iterations as pipeline_iterations
from flywheel.store.versioning import stage_records
from flywheel.utils.errors import BadInput, FlywheelError, first_line
from flywheel.utils.files import write_json
from flywheel.utils.processes import run_periodically
from flywheel.utils.progress import announce

_LOOK_S = 1.0


@dataclass(frozen=True)
class RunOutcome:
    """Hold which iterations `run_iterations` worked on (`ran`), and which were wanted, but complete (`done_before`)."""

    ran: tuple[int, ...] = ()
    done_before: tuple[int, ...] = ()


def run_iterations(
    ws: Workspace,
    overrides: Mapping[str, Any],
    *,
    iterations: int | None = None,
    iteration: int | None = None,
    until: str | None = None,
) -> RunOutcome:
    """Run `iterations` more (default: as the settings say), or only the one numbered `iteration`.

    overrides: parameters for iterations that are begun now, by their dotted names. until: the last stage to run, of one
    iteration, which then is incomplete, and gone on with by the next run; None: all. A run that was killed is resumed
    first, to the iteration it had been asked to reach, and keeps the overrides that it was begun with; one with `until`
    does a part of that. Recorded files that are damaged or missing are restored before anything else. Raises BadInput
    for an iteration out of order, an unknown stage, `until` with `iterations`, parameters that cannot work, or
    overrides that no iteration of the run would use, before anything is frozen; WorkspaceBusy where another process
    holds the workspace; FlywheelError where Prefect's server stops answering; as `recover_workspace`, and what a failed
    stage raises.
    """
    if until is not None:
        if iterations is not None:
            what = f"{iterations} iterations are asked for, and one that ends with {until} is not complete"
            raise BadInput(what, where="--until", fix="leave --iterations out")
        iterations = 1
    with run_lock.hold_workspace(ws):
        config.load_settings(ws.params, dict(overrides))  # wrong ones are refused first
        recover_workspace(ws)
        before = pipeline_iterations.read_interrupted_overrides(ws)
        given = {**before, **overrides}
        chosen = config.load_settings(ws.params, given)
        wanted = pipeline_iterations.plan_iterations(ws, chosen, iterations, iteration)
        todo = [k for k in wanted if not pipeline_iterations.check_iteration_complete(ws, k)]
        if until is not None:
            begun = ws.frozen_params(wanted[0]).exists()
            own = stage_records.load_iteration_params(ws, wanted[0]) if begun else chosen
            dag.stages_until(until, list(own.synthesis.domains))  # raises for an unknown stage
        if not todo:
            return RunOutcome(done_before=tuple(wanted))
        pipeline_iterations.check_overrides_used(ws, overrides, chosen, todo)
        for k in todo:
            pipeline_iterations.check_iteration(ws, chosen, k)
        run_lock.record_run(ws, todo[0], run_lock.RUN_COMMAND)
        find_external_server()  # raises here where it does not answer
        announce("run", _plan_line(ws, todo))
        if kept := [f"{name}={value}" for name, value in before.items() if name not in overrides]:
            announce("run", f"with what the run that was killed was begun with: {', '.join(kept)}")

        def meanwhile() -> None:
            pipeline_iterations.record_base_model(ws, chosen)
            importlib.import_module("flows.iteration")  # takes two seconds; the server takes five to start

        with open_prefect_server(ws, meanwhile=meanwhile) as url:
            if until is None:
                write_json(ws.run_target, {"first": todo[0], "last": todo[-1], "settings": given})
            from flows import iteration as flow  # after the server has configured Prefect

            announce(
                "prefect",
                f"runs are shown at {url} while this runs (log in: `cat .flywheel/auth`), later with `flywheel ui`",
            )
            try:
                with _stage_worker(ws, chosen):
                    for k in todo:
                        flow.iteration(str(ws.root), k, given, until)
            except httpx.HTTPError as error:
                raise FlywheelError(
                    f"Prefect's server stopped answering: {first_line(str(error))}",
                    where=ws.prefect_home / "server.log",
                    fix="type the same command: what was finished is kept",
                ) from error
        if until is None:  # else what a killed run was asked for is still to be done
            ws.run_target.unlink()
        return RunOutcome(ran=tuple(todo), done_before=tuple(k for k in wanted if k not in todo))


def _plan_line(ws: Workspace, todo: Sequence[int]) -> str:
    """Describe what the run will do: announced once nothing can refuse it, before imports that take seconds."""
    names = iteration_label(todo[0]) if len(todo) == 1 else f"{iteration_label(todo[0])} to {iteration_label(todo[-1])}"
    return f"iteration {names} of {ws.root} {'goes on' if ws.frozen_params(todo[0]).exists() else 'begins'}"


@contextlib.contextmanager
def _stage_worker(ws: Workspace, chosen: config.Settings) -> Iterator[None]:
    """Run a worker for parallel stages within the block, besides others of the pool; none where stages run singly."""
    if chosen.cluster.max_parallel_stages == 1:
        yield
        return
    from flows.ops import deployments
    from flows.ops.worker import run_worker

    deployments.deploy_stages(ws)
    with (
        (ws.state / "worker.log").open("ab") as out,
        run_worker(deployments.work_pool_name(ws), out) as worker,
        run_periodically(worker.restart_if_dead, _LOOK_S),
    ):
        yield
