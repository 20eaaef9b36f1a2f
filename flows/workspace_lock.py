"""Run a flow while it holds its workspace's lock; skip or reschedule a deployed run that finds it taken."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

from prefect.client.orchestration import get_client
from prefect.runtime import deployment, flow_run
from prefect.states import Cancelled, Failed, Scheduled, State

from flows import code_version, run_progress
from flows.notifications import notify
from flywheel import config as parameters
from flywheel.config import OperationsSettings, run_lock
from flywheel.config.workspace import Workspace
from flywheel.pipeline import iterations
from flywheel.utils.errors import FlywheelError

# An iteration that finds the workspace locked is scheduled again: else an ingest on the same schedule would block it
# every time.

_LATER = "later:"  # tag, with how often the run was scheduled again
# Not a whole minute: schedules are, so it would meet an ingest of each minute again.
_WAIT_S = 50
_TIMES = 10


def reschedule_run() -> str:
    """Schedule a new run in place of the calling deployed run, ten times in a row at most.

    Returns the end of a message about it, such as "; it comes again in 50 s"; "" where none is scheduled. Raises
    httpx.HTTPError where Prefect's server does not answer.
    """
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(flow_run.id)
        times = max((int(tag.removeprefix(_LATER)) for tag in run.tags if tag.startswith(_LATER)), default=0)
        if times == _TIMES:
            return ""
        client.create_flow_run_from_deployment(
            deployment.id,
            parameters=run.parameters,
            idempotency_key=f"later:{run.id}",
            tags=[*(tag for tag in run.tags if not tag.startswith(_LATER)), f"{_LATER}{times + 1}"],
            state=Scheduled(scheduled_time=datetime.now(UTC) + timedelta(seconds=_WAIT_S)),
        )
    return f"; it comes again in {_WAIT_S} s"


# Running a flow under the lock: progress, notifications, and the run's state where it is locked out.

# Option of the command -> its name in Prefect's form.
_IN_A_FORM = {"--set": "settings", "--iteration": "number", "--until": "until"}


def is_deployed_run() -> bool:
    """Tell whether the current flow run is of a deployment, so that nobody watches a terminal."""
    return deployment.id is not None


def run_with_workspace_lock(
    workspace: str, work: Callable[[Workspace, OperationsSettings], State | None], *, comes_again: bool = False
) -> State | None:
    """Do the work of a flow under the workspace's lock; return the state of the flow run, None where `work` does.

    workspace: its folder. work: called with the workspace and its block `operations`. A deployed run reports its
    outcome in its state, in one line: *Skipped* where another process holds the lock (comes_again: and a later run is
    scheduled), *Failed* where it raised a FlywheelError, such as for other code than the deployment was made with. One
    that is not deployed raises these errors.
    """
    try:
        ws = Workspace.find(workspace)
        with run_lock.hold_workspace_reentrant(ws), run_progress.log_progress_to_prefect():
            rules = parameters.load_settings(ws.params).operations
            with _notify_of_errors(ws, rules):
                if is_deployed_run():
                    code_version.check_code_version(deployment.version)
                return work(ws, rules)
    except run_lock.WorkspaceBusy as busy:
        if not is_deployed_run():
            raise
        later = reschedule_run() if comes_again else ""
        return Cancelled(name="Skipped", message=f"{busy}{later}")
    except FlywheelError as error:
        if not is_deployed_run():
            raise
        error.where = _IN_A_FORM.get(error.where, error.where)
        return Failed(message=str(error))


@contextlib.contextmanager
def _notify_of_errors(ws: Workspace, rules: OperationsSettings) -> Iterator[None]:
    """Notify people of an error within the block, and raise it."""
    try:
        yield
    except Exception as error:
        notify(ws, rules, "stopped" if isinstance(error, iterations.LoopHalted) else "failed", str(error))
        raise
