"""Load the parameters that an iteration began with, from its own file.

They can be corrected only there, so every error that names one names that file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flywheel import config
from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store.versioning import dvc_files
from flywheel.utils.errors import BadInput, FlywheelError

if TYPE_CHECKING:
    from flywheel.config import Settings


def load_iteration_params(ws: Workspace, iteration: int) -> Settings:
    """Load the iteration's own parameters. Raises BadInput where it has not been begun, or where its file is wrong."""
    path = ws.frozen_params(iteration)
    if not path.is_file() and dvc_files.recorded_stages(ws, iteration):
        raise BadInput("the iteration's parameters are missing", where=path, fix=_suggest_fix(ws, iteration))
    if not path.is_file():
        raise BadInput(
            f"iteration {iteration_label(iteration)} has not been begun", where=path, fix="`flywheel run` does"
        )
    try:
        return config.load_settings(path)
    except BadInput as error:
        from flywheel.config.params_file import MIGRATE_FIX

        fix = error.fix if error.fix == MIGRATE_FIX else _suggest_fix(ws, iteration)
        raise BadInput(error.what, where=error.where, fix=fix) from None


@contextmanager
def name_params_file_in_errors(ws: Workspace, iteration: int) -> Iterator[None]:
    """Name the iteration's own file in every error within the block that names a parameter, since it comes from there.

    Raises the same kind of error again, with the file in its place.
    """
    try:
        yield
    except FlywheelError as error:
        parameter = error.where.split(":")[0].split(",")[0]
        if not config.is_settings_parameter(parameter):
            raise
        where = f"{error.where} in {ws.relative(ws.frozen_params(iteration))}"
        fix = _suggest_fix(ws, iteration) if isinstance(error, BadInput) else ""
        fix = "; ".join(filter(None, (error.fix, fix)))
        raise type(error)(error.what, where=where, fix=fix) from error


def _suggest_fix(ws: Workspace, iteration: int) -> str:
    if dvc_files.is_iteration_complete(ws, iteration):
        return f"restore it: `git checkout HEAD -- {ws.relative(ws.frozen_params(iteration))}`"
    return (
        f"change it in {ws.relative(ws.frozen_params(iteration))} (params.yaml is for new iterations), "
        f"or give the iteration up with `flywheel iteration drop --iteration {iteration}`"
    )
