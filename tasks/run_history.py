"""Tag runs in Prefect, mark killed ones, and read what its server knows of an iteration's runs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterTags,
    LogFilter,
    LogFilterFlowRunId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType, TaskRun
from prefect.client.schemas.sorting import FlowRunSort, LogSort, TaskRunSort
from prefect.context import TagsContext
from prefect.runtime import flow_run
from prefect.states import Crashed

from flywheel.config.workspace import Workspace, iteration_label, iteration_run_id, workspace_name
from flywheel.utils.progress import announce

# Tags, by which runs of a workspace, an iteration or a stage are found, in Prefect's pages and here.


def workspace_tag(ws: Workspace) -> str:
    """Return the tag of all runs of a workspace. Raises as `workspace_name`."""
    return f"workspace:{workspace_name(ws)}"


def iteration_attempt_tag(ws: Workspace, iteration: int) -> str:
    """Return the tag of the runs of this attempt at an iteration, not of an earlier one under the same number.

    Raises as `iteration_run_id`.
    """
    return f"turn:{iteration_run_id(ws, iteration)}"


def iteration_run_tags(ws: Workspace, number: int) -> list[str]:
    """Return the tags of the runs of the iteration `number`: the workspace's, the iteration's, the attempt's.

    Raises as `iteration_run_id`.
    """
    return [workspace_tag(ws), f"iteration:{iteration_label(number)}", iteration_attempt_tag(ws, number)]


def stage_tag(name: str) -> str:
    """Return the tag of the runs of the stage `name`."""
    return f"stage:{name}"


def without_tags() -> TagsContext:
    """Start Prefect tasks without tags within the block: they are found by the tags of their flow.

    Before it begins, a task with tags asks the server for the limit of each tag, by a connection that the server closes
    after five seconds: the retry comes two seconds later, for nearly every task of a stage.
    """
    return TagsContext(current_tags=set())


# Run history: what Prefect's server knows of an iteration, stored as Parquet since the server forgets within days.

_PAGE = 200
_TASK_ENDS_S = 30.0
_KILLED = "its process was killed, and the next run went on from here; last heard of at "


def mark_killed_runs(
    ws: Workspace, *, older_than_s: float = 0, worker: bool = True, client: SyncPrefectClient | None = None
) -> list[FlowRun]:
    """Set the flow runs of killed processes, which Prefect's server shows as unfinished, and their tasks to Crashed.

    Call it under the workspace's lock, or with `older_than_s` (seconds) while nobody has held the lock for so long: a
    run whose state is older then belongs to a process that was killed. The calling run is left out. Prefect dates the
    new state by now; its message, and the table `runs`, say when the run was last heard of. worker: whether a worker
    may be about to begin a run. client: an open one of Prefect; None opens one for the call. Returns these flow runs.
    Raises httpx.HTTPError where the server does not answer, and as `workspace_name`.
    """
    unfinished = {"any_": [StateType.SCHEDULED, StateType.RUNNING, StateType.PENDING, StateType.PAUSED]}
    states = FlowRunFilter(state=FlowRunFilterState(type=unfinished), tags=FlowRunFilterTags(all_=[workspace_tag(ws)]))
    with client or get_client(sync_client=True) as client:
        stale = read_all_pages(client.read_flow_runs, FlowRunSort.START_TIME_ASC, flow_run_filter=states)
        since = datetime.now(UTC) - timedelta(seconds=older_than_s)
        stale = [run for run in stale if not _may_be_at_work(run, worker) and run.state.timestamp <= since]
        for run in stale:
            own = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
            tasks = read_all_pages(client.read_task_runs, TaskRunSort.END_TIME_DESC, flow_run_filter=own)
            message = _KILLED + _last_heard_of(client, run, tasks).isoformat()
            for task in tasks:
                if task.state is None or not task.state.is_final():
                    client.set_task_run_state(task.id, Crashed(message=message), force=True)
            client.set_flow_run_state(run.id, Crashed(message=message), force=True)
    return stale


def _may_be_at_work(run: FlowRun, worker: bool) -> bool:
    """Tell whether a run is the calling one, or one that a worker is about to begin and no stage of an iteration."""
    waits = (StateType.SCHEDULED, StateType.PENDING) if worker else (StateType.SCHEDULED,)
    begins = run.parent_task_run_id is None and run.state_type in waits
    return (begins and run.deployment_id is not None) or str(run.id) == flow_run.id


def _last_heard_of(client: SyncPrefectClient, run: FlowRun, tasks: Sequence[TaskRun]) -> datetime:
    """Return the latest time in the run's own record, its tasks and its log."""
    of_run = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id]))
    logs = client.read_logs(of_run, limit=1, sort=LogSort.TIMESTAMP_DESC)
    times = [run.start_time, run.created, *(log.timestamp for log in logs)]
    times += [moment for task in tasks for moment in (task.start_time, task.end_time)]
    return max(moment for moment in times if moment)


def read_run_rows(ws: Workspace, iteration: int, *, ends: str = "", error: str = "") -> list[dict[str, Any]]:
    """Read each flow run and task run of an iteration, failed and killed ones too, as rows of the table `runs`.

    Times are ISO 8601. Runs of an earlier attempt under the same number are left out (`iteration_attempt_tag`). ends:
    id of the calling run, where this is its last act: it counts as completed now, or as failed with this `error`; "":
    the calling run goes on. Where it completes, the call waits up to half a minute for the server to hear that all its
    tasks have ended. Raises httpx.HTTPError where the server does not answer, and as `iteration_run_id`.
    """
    own = FlowRunFilter(tags=FlowRunFilterTags(all_=[iteration_attempt_tag(ws, iteration)]))
    with get_client(sync_client=True) as client:
        if ends and not error:
            _wait_for_task_ends(client, own)
        flows = read_all_pages(client.read_flow_runs, FlowRunSort.START_TIME_ASC, flow_run_filter=own)
        rows = [_row(run, "flow", run.parent_task_run_id, run.run_count, run.parameters) for run in flows]
        for run in read_all_pages(client.read_task_runs, TaskRunSort.END_TIME_DESC, flow_run_filter=own):
            rows.append(_row(run, "task", run.flow_run_id, run.run_count, {}))
    now = datetime.now(UTC)
    for row in rows:
        if row["run_id"] == ends:
            seconds = (now - datetime.fromisoformat(row["started_at"])).total_seconds()
            state = "Failed" if error else "Completed"
            row |= {"state": state, "message": error, "ended_at": now.isoformat(), "seconds": seconds}
    return list({row["run_id"]: row for row in rows}.values())


def _wait_for_task_ends(client: SyncPrefectClient, own: FlowRunFilter) -> None:
    """Wait until the server knows that all tasks have ended: their states reach it as events, a moment late, or some
    seconds where it was just restarted."""
    at_work = TaskRunFilterState(type=TaskRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING]))
    unfinished = TaskRunFilter(state=at_work)
    deadline = time.monotonic() + _TASK_ENDS_S
    while client.read_task_runs(flow_run_filter=own, task_run_filter=unfinished, limit=1):
        if time.monotonic() > deadline:
            announce(
                "runs",
                f"the server has not heard of the end of each task in {_TASK_ENDS_S:g} s: the history says Running",
            )
            return
        time.sleep(0.2)


def read_all_pages(read, sort, **filters) -> list:
    """Read all pages of results of `read`, a method of Prefect's client, with its arguments `sort` and `filters`."""
    found, offset = [], 0
    while page := read(**filters, sort=sort, limit=_PAGE, offset=offset):
        found += page
        offset += len(page)
    return found


def _row(run: FlowRun | TaskRun, kind: str, parent, attempts: int, parameters: dict) -> dict[str, Any]:
    seconds, ended = run.total_run_time.total_seconds() if run.total_run_time else None, run.end_time
    message = run.state.message if run.state else None
    if message and message.startswith(_KILLED):
        ended = datetime.fromisoformat(message.removeprefix(_KILLED))
        seconds = (ended - run.start_time).total_seconds() if run.start_time else None
    return {
        "run_id": str(run.id),
        "parent_id": str(parent or ""),
        "kind": kind,
        "name": run.name,
        "state": run.state_name or "",
        "attempts": attempts,
        "started_at": _time(run.start_time),
        "ended_at": _time(ended),
        "seconds": seconds,
        "parameters": json.dumps(parameters, default=str, sort_keys=True),
        "message": message or "",
    }


def _time(moment) -> str | None:
    return moment.isoformat() if moment else None
