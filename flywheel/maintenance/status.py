"""Report the state of a workspace (`flywheel status`); damage is shown with its repair and hides nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.store import partitions
from flywheel.store.catalog import database
from flywheel.store.versioning import backup, dvc_files, git_tags, stage_records
from flywheel.utils.errors import DataError, FlywheelError

_SHOWN = 10


@dataclass(frozen=True)
class WorkspaceStatus:
    """Hold the state of a workspace.

    begun: the iterations. looked_at: those of them whose files were compared with what is recorded. rows: the view
    `iterations`, empty where a file that it reads is damaged; fault: what then is wrong. unknown: why the three below
    could not be looked at, or "". damage: recorded outputs that are not as they were. changed: stage -> path -> what
    happened, of stages that are not as they are recorded. recorded: the stages that are, by iteration.
    """

    begun: tuple[int, ...]
    looked_at: tuple[int, ...] = ()
    rows: tuple[dict[str, Any], ...] = ()
    fault: str = ""
    unknown: str = ""
    damage: tuple[backup.DamagedOutput, ...] = ()
    changed: dict[str, dict[str, str]] | None = None
    recorded: dict[int, list[str]] | None = None


def read_workspace_status(ws: Workspace, *, everything: bool = False) -> WorkspaceStatus:
    """Compare the files of the open iterations with what is recorded of them; nothing is changed.

    everything: of all iterations. It needs DVC's lock; where its file cannot be written, `unknown` says so. Raises
    DataError where DVC's file of an iteration is lost, data are there and no iteration is on record, or a list of what
    was pruned is damaged; VersioningError where DVC fails, for a damaged record too, or another process holds its lock
    for five minutes; FlywheelError where git does not answer.
    """
    backup.check_iterations_recorded(ws)
    begun = tuple(stage_records.list_iterations(ws))
    rows, fault = (), ""
    try:
        rows = partitions.retry_while_replaced(partial(_query_iterations, ws))
    except FlywheelError as error:
        fault = str(error)
    if not begun:
        return WorkspaceStatus(begun, (), rows, fault, changed={})
    try:
        git_tags.check_line_ends(ws.root)
    except DataError as error:
        return WorkspaceStatus(begun, (), rows, fault, str(error))
    which = begun if everything else tuple(stage_records.active_iterations(ws))
    try:
        asked = stage_records.iterations_to_compare(ws, which)
        damage, changed = tuple(backup.find_damaged_outputs(ws, asked)), stage_records.changed_stages(ws, asked)
    except OSError as error:  # DVC looks under a lock, which is a file
        unknown = f"what changed is not looked at: {error.strerror}: {error.filename}"
        return WorkspaceStatus(begun, (), rows, fault, unknown)
    recorded = {k: dvc_files.recorded_stages(ws, k) for k in which}
    return WorkspaceStatus(begun, which, rows, fault, "", damage, changed, recorded)


def _query_iterations(ws: Workspace) -> tuple[dict[str, Any], ...]:
    sql = "FROM iterations"
    with database.connect_catalog(ws, reads=sql) as connection:
        return tuple(database.query_json_rows(connection, sql))


def status_lines(standing: WorkspaceStatus) -> Iterator[tuple[str, str]]:
    """Yield the report as (style, line); a style is a colour's name, "" for none.

    standing: what `read_workspace_status` returned.
    """
    if standing.unknown:
        yield "yellow", standing.unknown
        return
    yield from _damage_lines(standing.damage)
    waiting = []
    for name, changes in (standing.changed or {}).items():
        stage, _, iteration = name.partition("@")
        if stage not in standing.recorded.get(int(iteration), ()):
            waiting.append(int(iteration))
        elif not set(changes) <= {one.path for one in standing.damage}:  # damage is told already
            changed_paths = ", ".join(f"{path} ({change})" for path, change in changes.items())
            yield "yellow", f"{name}: changed since it was recorded: {changed_paths}"
    for k in sorted(set(waiting)):
        done = len(standing.recorded.get(k, ()))
        yield (
            "yellow",
            f"iteration {iteration_label(k)} is not complete ({done} of {done + waiting.count(k)} stages): "
            "`flywheel run` goes on with it, `flywheel iteration drop` gives it up",
        )
    if not standing.changed and not standing.damage:
        yield "", "every stage is recorded in DVC and unchanged"
    if len(standing.looked_at) < len(standing.begun):
        looked_at = " and ".join(map(iteration_label, standing.looked_at))
        yield "", f"looked at is {looked_at}: `flywheel status --all` looks at all"


def _damage_lines(damage: tuple[backup.DamagedOutput, ...]) -> Iterator[tuple[str, str]]:
    if len(damage) > _SHOWN and not any(one.kept == "cache" for one in damage):
        first = f"({damage[0].path}, ...): type {damage[0].repair_command}"
        yield "red", f"{len(damage)} recorded files and folders are not here {first}"
        return
    for one in damage[:_SHOWN]:
        yield "red", f"{one.path} is {one.change} since {one.stage} was recorded: type {one.repair_command}"
    if len(damage) > _SHOWN:
        yield "red", f"and {len(damage) - _SHOWN} more: `dvc checkout --force` brings all of them back"
