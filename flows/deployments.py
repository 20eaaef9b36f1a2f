"""What Prefect is told of a workspace: its pool; an iteration, an ingest and a check-up on their schedules; and a
stage, which an iteration asks for."""

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

from flywheel import due, identity
from flywheel.errors import BadInput
from flywheel.settings import Operations
from flywheel.workspace import Workspace
from tasks import tags

SOURCE = Path(__file__).resolve().parent.parent
ENTRYPOINT = "flows/iteration.py:iteration"
CHECKUP = "flows/checkup.py:checkup"
_STAGE_ENTRYPOINT = "flows/apart.py:apart"
# Of one deployment; over deployments the workspace's lock sees to it.
_ONE_AT_A_TIME = ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)


def pool(ws: Workspace) -> str:
    """The workspace's own pool: its worker runs nothing of another workspace, which may be on another machine."""
    return identity.of(ws)


def worker_name() -> str:
    """Of this process as a worker: machine and process."""
    return f"{socket.gethostname()} {os.getpid()}"


def others_work(ws: Workspace, client: SyncPrefectClient) -> bool:
    """Whether the pool has workers besides those that `up` begins on this machine."""
    online = WorkerFilter(status=WorkerFilterStatus(any_=["ONLINE"]))
    found = client.read_workers_for_work_pool(pool(ws), worker_filter=online)
    return any(not one.name.startswith(f"{socket.gethostname()} ") for one in found)


def deploy(ws: Workspace, rules: Operations) -> dict[str, UUID]:
    """Make the workspace's pool and deployments, or bring them up to date; ids of `iteration`, `ingest` and `checkup`.

    Raises BadInput naming a schedule that Prefect cannot read.
    """
    deploy_stages(ws)
    turn, look = (Flow.from_source(source=str(SOURCE), entrypoint=one) for one in (ENTRYPOINT, CHECKUP))
    found = {}
    for name, flow, until, parameter, words in (
        ("iteration", turn, {"until": None}, "schedule", "An iteration of the flywheel, or what is left of one."),
        (due.INGEST, turn, {"until": due.INGEST}, "ingest_schedule", "The next iteration takes in recordings, waits."),
        ("checkup", look, {}, "checkup_schedule", "The newest model plays fresh tasks."),
    ):
        schedule = getattr(rules, parameter)
        deployment = flow.to_deployment(
            f"{identity.of(ws)}-{name}",
            parameters={"workspace": str(ws.root), **until},
            schedules=[_cron(f"operations.{parameter}", schedule, rules.timezone)] if schedule else [],
            concurrency_limit=_ONE_AT_A_TIME,
            tags=[tags.workspace(ws)],
            description=f"{words} Workspace: {ws.root}",
        )
        found[name] = deployment.apply(work_pool_name=pool(ws))
    return found


def deploy_stages(ws: Workspace) -> None:
    """Make the workspace's pool and the deployment of its stages, or bring them up to date."""
    with get_client(sync_client=True) as client, contextlib.suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=pool(ws), type="process"))
    deployment = Flow.from_source(source=str(SOURCE), entrypoint=_STAGE_ENTRYPOINT).to_deployment(
        f"{identity.of(ws)}-stage",
        tags=[tags.workspace(ws)],
        description=f"A stage beside others, asked for by its iteration. Workspace: {ws.root}",
    )
    deployment.apply(work_pool_name=pool(ws))


def of_stages(ws: Workspace) -> str:
    """By which an iteration asks for a stage."""
    return f"stage-apart/{identity.of(ws)}-stage"


def _cron(parameter: str, text: str, timezone: str) -> CronSchedule:
    try:
        return CronSchedule(cron=text, timezone=timezone)
    except ValueError:
        raise BadInput(f"not a cron schedule: {text}", where=parameter, fix='such as "0 1 * * *": at one') from None
