"""Run one stage: within its iteration's process, or in a process of its own that a worker begins."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, State
from prefect.utilities.timeout import timeout

from flows import code_version, run_progress
from flows.human_input import ask_for_route_labels, ask_reviewer
from flows.ops import deployments
from flywheel import cluster
from flywheel.cluster import resources
from flywheel.config import ClusterSettings, Settings, run_lock
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.maintenance import status
from flywheel.pipeline import dag
from flywheel.pipeline.stage import StageContext
from flywheel.store import partitions
from flywheel.store.versioning import stage_records
from flywheel.utils.errors import ClusterError, FlywheelError, ShardBusy, WorkerLost
from flywheel.utils.files import atomic_file, file_lock
from flywheel.utils.processes import run_periodically
from flywheel.utils.progress import report_progress, report_time_left
from tasks import run_history
from tasks.shards import do_shards, finish_stage, record_version


@flow
def stage_flow(workspace: str, number: int, name: str) -> str:
    """Run a stage in the process of its iteration. Returns its summary, in a line."""
    ctx = StageContext.open(Workspace.find(workspace), number, name, run_id=flow_run.id or "")
    with run_progress.log_progress_to_prefect():
        return run_stage_tasks(ctx)


def run_stage_tasks(ctx: StageContext) -> str:
    """Run the stage of `ctx` in a flow (questions to people, shards, finish, record in DVC); return its summary line.

    Shards that were done before are not done again. Raises what the stage raises; shards done by then stay done.
    """
    report_progress(ctx.stage, "begins")
    partitions.hide_pandas_from_pyarrow()
    with run_progress.track_stage(ctx) as record:
        _report_time_left(ctx)
        ask_for_route_labels(ctx, record)
        ask_reviewer(ctx, record)
        with run_history.without_tags():
            with cluster.current_cluster().open_workers(dag.find_stage(ctx.stage), ctx) as workers:
                shards = dag.find_stage(ctx.stage).plan(ctx)
                record.plan(shards)
                with run_progress.show_progress_bar(ctx, shards):
                    results = do_shards(ctx, shards, workers)
            outcome = finish_stage(ctx, results)
            record_version(ctx)
    summary = ", ".join(f"{key} {value}" for key, value in outcome.summary.items())
    report_progress(ctx.stage, f"ended: {summary}")
    return summary


def _report_time_left(ctx: StageContext) -> None:
    """Report the expected time left, where an iteration before has all stages that are left."""
    if (now := status.read_work_status(ctx.ws)) and now.seconds_left:
        report_time_left(now.seconds_left)


# A stage as a process of its own, which a worker of the workspace's pool starts, on this machine or another.
#
# Two locks connect it with its iteration; the kernel releases each when its holder ends. The iteration holds the lease
# for as long as it wants the stage: a stage whose lease is free ends itself. The stage holds the other lock while it
# runs: by it the iteration sees that the process is gone, and the next attempt waits for the end of this one.

_LOOK_S = 1.0
_END_S = 10.0  # to end in order; then it is killed
_DEAD_S = 60.0  # without its lock: after that its process counts as gone


class StageProcess:
    """Request a process for a stage from Prefect, within the iteration's flow, and follow it.

    k: the iteration. name: of the stage. limits: block `cluster`. longest_s: seconds that the stage may work; before
    that it may wait as long for a GPU. Raises httpx.HTTPError where Prefect's server does not answer.
    """

    def __init__(self, ws: Workspace, k: int, name: str, limits: ClusterSettings, longest_s: float) -> None:
        self.name, self.longest_s = name, longest_s
        self._ws, self._limits = ws, limits
        self._wanted = contextlib.ExitStack()
        self._lease = _lease_path(ws, f"{name}-{uuid4().hex}")
        self._wanted.enter_context(
            run_lock.hold_exclusively(self._lease, "the lease is taken", fix="type the same command")
        )
        self._asked = self._alive = time.monotonic()
        asked = self._ask(
            {
                "workspace": str(ws.root),
                "number": k,
                "name": name,
                "lease": self._lease.name,
                "limits": limits.model_dump(mode="json"),
                "longest_s": longest_s,
                "made_with": code_version.compute_code_version(),
            },
            f"{iteration_label(k)} {name}",
            [*run_history.iteration_run_tags(ws, k), run_history.stage_tag(name)],
        )
        self.run_id: UUID = asked.id

    def _ask(self, parameters: dict[str, Any], name: str, named: list[str]) -> FlowRun:
        """Request the run from Prefect; make its deployment where there is none: the pool is not flywheel's own."""
        ask = partial(
            run_deployment,
            deployments.stage_deployment_name(self._ws),
            parameters=parameters,
            flow_run_name=name,
            tags=named,
            timeout=0,
            as_subflow=True,
        )
        try:
            return ask()
        except ObjectNotFound:
            deployments.deploy_stages(self._ws)
            return ask()

    def poll(self, client: SyncPrefectClient) -> str | None:
        """Return the summary of the stage, in a line, once it has ended; None while it has not.

        client: of Prefect. Raises the error of its process where that is known; WorkerLost where the process is gone,
        ClusterError where no worker took it within cluster.acquire_timeout_s, or it does not end; httpx.HTTPError where
        the server does not answer.
        """
        run, now = client.read_flow_run(self.run_id), time.monotonic()
        if run.state.is_completed():
            return run.state.message or ""
        if run.state.is_final():
            raise self._why(run.state)
        waits = run.state.is_scheduled() or run.state.is_pending()
        if waits and now - self._asked > self._limits.acquire_timeout_s:
            raise ClusterError(
                f"no worker took it for {self._limits.acquire_timeout_s:g} s",
                where=f"stage {self.name}",
                fix=f"start one: `prefect worker start --pool {deployments.work_pool_name(self._ws)}`",
            )
        if waits or run_lock.is_lock_held(_stage_lock_path(self._ws, self.name)):
            self._alive = now
        again = {"where": f"stage {self.name}", "fix": "type the same command: what was finished is kept"}
        if now - self._alive > _DEAD_S:
            raise WorkerLost("its process is gone", **again)
        if now - self._asked > self._limits.acquire_timeout_s + 2 * self.longest_s + _DEAD_S:
            raise ClusterError("its process does not end", **again)
        return None

    def _why(self, state: State) -> FlywheelError:
        try:
            return pickle.loads(_error_path(self._lease).read_bytes())
        except FileNotFoundError:
            kind = WorkerLost if state.is_crashed() else FlywheelError
            return kind(state.message or state.name, where=f"stage {self.name}", fix="look at its run in Prefect")

    def release(self, client: SyncPrefectClient) -> None:
        """Free the lease, so that the process ends by itself, and wait up to 12 seconds for its end.

        client: of Prefect, where the run is cancelled if the server answers.
        """
        self._wanted.close()
        with contextlib.suppress(httpx.HTTPError):
            if not client.read_flow_run(self.run_id).state.is_final():
                client.set_flow_run_state(self.run_id, Cancelled(message="its iteration has ended"), force=True)
        deadline = time.monotonic() + _END_S + 2 * _LOOK_S
        while run_lock.is_lock_held(_stage_lock_path(self._ws, self.name)) and time.monotonic() < deadline:
            time.sleep(_LOOK_S / 10)


def clear_stage_leases(ws: Workspace) -> None:
    """Remove the leases that killed iterations left. Call it under the workspace's lock: no lease is in use."""
    shutil.rmtree(_lease_path(ws, "").parent, ignore_errors=True)


@flow(name="stage-apart")
def stage_process(
    workspace: str, number: int, name: str, lease: str, limits: dict[str, Any], longest_s: float, made_with: str
) -> State:
    """Run a stage in the process that a worker has begun.

    Args:
        workspace: Folder of the workspace, at the same path on all machines.
        number: Number of the iteration.
        name: Name of the stage.
        lease: The name of the iteration's lock.
        limits: The block `cluster` as the iteration has it.
        longest_s: Seconds that it may work.
        made_with: Version of the iteration's code.
    """
    ws = Workspace.find(workspace)
    wanted = _lease_path(ws, lease)
    if not run_lock.is_lock_held(wanted):
        return Cancelled(message="its iteration has ended")
    try:
        code_version.check_code_version(made_with, by="its iteration")
        ctx = StageContext.open(ws, number, name, run_id=flow_run.id or "")
        chosen = ctx.settings.model_copy(update={"cluster": ClusterSettings(**limits)})
        with (
            file_lock(_stage_lock_path(ws, name), _DEAD_S, f"at {name}", ShardBusy),
            run_periodically(_LeaseWatch(wanted).end_if_free, _LOOK_S),
        ):
            return Completed(message=_run_with_limits(ctx, chosen, longest_s))
    except FlywheelError as error:
        with atomic_file(_error_path(wanted)) as temporary:
            temporary.write_bytes(pickle.dumps(error))
        raise


def _run_with_limits(ctx: StageContext, chosen: Settings, longest_s: float) -> str:
    with (
        run_progress.log_progress_to_prefect(),
        stage_records.name_params_file_in_errors(ctx.ws, ctx.iteration),
        resources.hold_gpu(ctx, chosen.cluster, longest_s),
        timeout(longest_s),
        cluster.open_cluster(ctx.ws, chosen),
    ):
        return run_stage_tasks(ctx)


class _LeaseWatch:
    def __init__(self, lease: Path) -> None:
        self._lease, self._since = lease, 0.0

    def end_if_free(self) -> None:
        """End this process where nobody holds its lease: in order (Prefect's answer to SIGTERM), then by force."""
        if self._since and time.monotonic() - self._since > _END_S:
            os.kill(os.getpid(), signal.SIGKILL)
        elif not self._since and not run_lock.is_lock_held(self._lease):
            self._since = time.monotonic()
            os.kill(os.getpid(), signal.SIGTERM)


def _lease_path(ws: Workspace, name: str) -> Path:
    return ws.state / "stages" / "leases" / name


def _error_path(lease: Path) -> Path:
    return lease.with_name(f"{lease.name}.error")


def _stage_lock_path(ws: Workspace, name: str) -> Path:
    return ws.state / "stages" / f"{name}.lock"
