"""The parameters that an iteration began with: its own file, which an edit of `params.yaml` does not change.

What is wrong with them is mended there, or not at all: every error that speaks of one names that file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flywheel import settings
from flywheel.errors import BadInput, FlywheelError
from flywheel.settings import Settings
from flywheel.store import dvc_lock
from flywheel.workspace import Workspace, label


def load(ws: Workspace, iteration: int) -> Settings:
    """Raises BadInput where the iteration has not been begun, or where its file is wrong."""
    path = ws.frozen_params(iteration)
    if not path.is_file() and dvc_lock.recorded(ws, iteration):
        raise BadInput("the iteration's parameters are missing", where=path, fix=_fix(ws, iteration))
    if not path.is_file():
        raise BadInput(f"iteration {label(iteration)} has not been begun", where=path, fix="`flywheel run` does")
    try:
        return settings.load(path, earlier=True)
    except BadInput as error:
        raise BadInput(error.what, where=error.where, fix=_fix(ws, iteration)) from None


@contextmanager
def named(ws: Workspace, iteration: int) -> Iterator[None]:
    """An error within the block that speaks of a parameter names the iteration's file, since it comes from there."""
    try:
        yield
    except FlywheelError as error:
        parameter = error.where.split(":")[0].split(",")[0]
        if not settings.is_parameter(parameter):
            raise
        where = f"{error.where} in {ws.relative(ws.frozen_params(iteration))}"
        fix = _fix(ws, iteration) if isinstance(error, BadInput) else ""
        fix = "; ".join(filter(None, (error.fix, fix)))
        raise type(error)(error.what, where=where, fix=fix) from error


def _fix(ws: Workspace, iteration: int) -> str:
    if dvc_lock.complete(ws, iteration):
        return f"restore it: `git checkout HEAD -- {ws.relative(ws.frozen_params(iteration))}`"
    return (
        f"change it in {ws.relative(ws.frozen_params(iteration))} (params.yaml is for new iterations), "
        f"or give the iteration up with `flywheel discard --iteration {iteration}`"
    )
