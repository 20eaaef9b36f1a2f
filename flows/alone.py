"""How a run has a workspace to itself, and how it ends where it cannot: lock, progress, who is told, states."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from prefect.runtime import deployment
from prefect.states import Cancelled, Failed, State

from flows import code, telling
from flows.later import again_later
from flows.notify import notify
from flywheel import due, run_lock
from flywheel import settings as parameters
from flywheel.errors import FlywheelError
from flywheel.settings import Operations
from flywheel.workspace import Workspace

# How parameters of the command are called by who fills in a form of Prefect's.
_IN_A_FORM = {"--set": "settings", "--iteration": "number"}


def unwatched() -> bool:
    """Whether the flow at work was deployed: nobody sits before it."""
    return deployment.id is not None


def alone(
    workspace: str, work: Callable[[Workspace, Operations], State | None], *, comes_again: bool = False
) -> State | None:
    """Do the work of a flow with the workspace's lock; its state.

    A deployed run says what came of it by its state, in one line: *Skipped* where another run is at work (comes_again:
    and it has another to come in its stead), *Failed* where it raised a FlywheelError, such as other code than the
    deployment was made with. One that is not deployed raises it.
    """
    try:
        ws = Workspace.find(workspace)
        with run_lock.hold_or_keep(ws), telling.to_prefect():
            rules = parameters.load(ws.params).operations
            with _told(ws, rules):
                if unwatched():
                    code.check(deployment.version)
                return work(ws, rules)
    except run_lock.AtWork as busy:
        if not unwatched():
            raise
        later = again_later() if comes_again else ""
        return Cancelled(name="Skipped", message=f"{busy}{later}")
    except FlywheelError as error:
        if not unwatched():
            raise
        error.where = _IN_A_FORM.get(error.where, error.where)
        return Failed(message=str(error))


@contextlib.contextmanager
def _told(ws: Workspace, rules: Operations) -> Iterator[None]:
    """Who wants to know of it is told of an error within the block."""
    try:
        yield
    except Exception as error:
        notify(ws, rules, "stopped" if isinstance(error, due.Stopped) else "failed", str(error))
        raise
