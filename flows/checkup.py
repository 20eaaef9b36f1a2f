"""Run a check-up of the newest model on fresh tasks as a Prefect flow, between iterations."""

from __future__ import annotations

from prefect import flow, tags
from prefect.runtime import flow_run
from prefect.states import Completed, State
from prefect.utilities.timeout import timeout

from flows.workspace_lock import run_with_workspace_lock
from flywheel import config as parameters
from flywheel.config import OperationsSettings
from flywheel.config.workspace import Workspace
from flywheel.maintenance import checkup as looking
from flywheel.utils.errors import FlywheelError
from tasks import run_history as named


@flow(name="checkup", flow_run_name="checkup")
def checkup(workspace: str) -> State | None:
    """Let the newest model play fresh tasks, which had no part in making or choosing it.

    A model that has played them is not asked again. While another run is at work in the workspace, the check-up is
    skipped and scheduled again 50 seconds later, ten times at most.

    Args:
        workspace: Folder of the workspace.
    """
    return run_with_workspace_lock(workspace, _run_checkup, comes_again=True)


class _TooLong(TimeoutError):
    pass


def _run_checkup(ws: Workspace, rules: OperationsSettings) -> State:
    try:
        with tags(named.workspace_tag(ws)), timeout(rules.stage_timeout_s, _TooLong):
            found = looking.run_checkup(ws, parameters.load_settings(ws.params), run_id=flow_run.id or "")
    except _TooLong:
        raise FlywheelError(
            f"the check-up took more than {rules.stage_timeout_s:g} s",
            where="operations.stage_timeout_s",
            fix="allow more, or ask for fewer operations.checkup_tasks; what was played is kept",
        ) from None
    if found.before:
        return Completed(name="NothingToDo", message=f"{found}, as was known before")
    return Completed(message=str(found))
