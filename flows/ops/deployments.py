"""Deploy a workspace's flows to Prefect: a work pool, and deployments for iteration, ingest, check-up and stages."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import WorkerFilter, WorkerFilterStatus
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectAlreadyExists
from prefect.flows import Flow

from flywheel.config import OperationsSettings
from flywheel.config.workspace import Workspace, workspace_name
from flywheel.pipeline import iterations
from flywheel.utils.errors import BadInput
from tasks import run_history

SOURCE = Path(__file__).resolve().parents[2]
ENTRYPOINT = "flows/iteration.py:iteration"
CHECKUP = "flows/checkup.py:checkup"
_STAGE_ENTRYPOINT = "flows/stage_run.py:stage_process"
# One run of a deployment at a time; the workspace's lock ensures the same across deployments.
_ONE_AT_A_TIME = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)


def work_pool_name(ws: Workspace) -> str:
    """Return the name of the workspace's own work pool, whose workers run nothing of another workspace.

    Raises as `workspace_name`.
    """
    return workspace_name(ws)


def worker_name() -> str:
    """Return the name of this process as a Prefect worker: machine and process id."""
    return f"{socket.gethostname()} {os.getpid()}"


def has_other_workers(ws: Workspace, client: SyncPrefectClient) -> bool:
    """Tell whether the workspace's pool has online workers besides those that flywheel starts on this machine.

    client: of Prefect. Raises httpx.HTTPError where the server does not answer, prefect's ObjectNotFound where there is
    no pool.
    """
    online = WorkerFilter(status=WorkerFilterStatus(any_=["ONLINE"]))
    found = client.read_workers_for_work_pool(work_pool_name(ws), worker_filter=online)
    return any(not one.name.startswith(f"{socket.gethostname()} ") for one in found)


def deploy_workspace(ws: Workspace, rules: OperationsSettings) -> dict[str, UUID]:
    """Make the workspace's pool and deployments in Prefect, or bring them up to date.

    rules: block `operations`, with the schedules. Returns the ids of the deployments `iteration`, `ingest` and
    `checkup`, by these names. Raises BadInput naming a schedule that Prefect cannot read; what was made before it
    stays; httpx.HTTPError where the server does not answer.
    """
    deploy_stages(ws)
    turn, look = (Flow.from_source(source=str(SOURCE), entrypoint=one) for one in (ENTRYPOINT, CHECKUP))
    found = {}
    for name, flow, until, parameter, words in (
        ("iteration", turn, {"until": None}, "schedule", "An iteration of the flywheel, or what is left of one."),
        (
            iterations.INGEST,
            turn,
            {"until": iterations.INGEST},
            "ingest_schedule",
            "The next iteration takes in recordings, waits.",
        ),
        ("checkup", look, {}, "checkup_schedule", "The newest model plays fresh tasks."),
    ):
        schedule = getattr(rules, parameter)
        deployment = flow.to_deployment(
            f"{workspace_name(ws)}-{name}",
            parameters={"workspace": str(ws.root), **until},
            schedules=[_parse_cron(f"operations.{parameter}", schedule, rules.timezone)] if schedule else [],
            concurrency_limit=_ONE_AT_A_TIME,
            tags=[run_history.workspace_tag(ws)],
            description=f"{words} Workspace: {ws.root}",
        )
        found[name] = deployment.apply(work_pool_name=work_pool_name(ws))
    return found


def deploy_stages(ws: Workspace) -> None:
    """Make the workspace's pool and the deployment of its stages, or bring them up to date.

    Raises httpx.HTTPError where Prefect's server does not answer.
    """
    with get_client(sync_client=True) as client, contextlib.suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=work_pool_name(ws), type="process"))
    deployment = Flow.from_source(source=str(SOURCE), entrypoint=_STAGE_ENTRYPOINT).to_deployment(
        f"{workspace_name(ws)}-stage",
        tags=[run_history.workspace_tag(ws)],
        description=f"A stage beside others, asked for by its iteration. Workspace: {ws.root}",
    )
    deployment.apply(work_pool_name=work_pool_name(ws))


def stage_deployment_name(ws: Workspace) -> str:
    """Return the name of the deployment by which an iteration starts a stage of its workspace."""
    return f"stage-apart/{workspace_name(ws)}-stage"


def _parse_cron(parameter: str, text: str, timezone: str) -> CronSchedule:
    try:
        return CronSchedule(cron=text, timezone=timezone)
    except ValueError:
        raise BadInput(f"not a cron schedule: {text}", where=parameter, fix='such as "0 1 * * *": at one') from None
