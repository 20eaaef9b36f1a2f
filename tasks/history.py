"""Run history: what Prefect's server knows of an iteration, kept as Parquet since the server forgets within days."""

from __future__ import annotations

import json
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName, FlowRunFilterState
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.sorting import FlowRunSort, TaskRunSort
from prefect.states import Crashed

from flywheel.workspace import label

_PAGE = 200


def mark_killed_runs() -> int:
    """Flow runs that the server believes running, though no run is at work here, become Crashed. Returns how many.

    Called under the workspace's lock, so whatever still says Running belongs to a process that was killed.
    """
    states = FlowRunFilterState(type={"any_": [StateType.RUNNING, StateType.PENDING, StateType.PAUSED]})
    with get_client(sync_client=True) as client:
        stale = _all(client.read_flow_runs, FlowRunSort.START_TIME_ASC, flow_run_filter=FlowRunFilter(state=states))
        for run in stale:
            message = "its process was killed; the next run went on from here"
            client.set_flow_run_state(run.id, Crashed(message=message), force=True)
    return len(stale)


def runs_of(iteration: int) -> list[dict[str, Any]]:
    """Rows of the table `runs`, times as ISO 8601: each flow run and task run of an iteration, earlier tries too."""
    named = FlowRunFilterName(like_=f"{label(iteration)} "), FlowRunFilterName(like_=f"iteration {label(iteration)}")
    rows = []
    with get_client(sync_client=True) as client:
        for name in named:
            flows = FlowRunFilter(name=name)
            for run in _all(client.read_flow_runs, FlowRunSort.START_TIME_ASC, flow_run_filter=flows):
                rows.append(_row(run, "flow", run.parent_task_run_id, run.run_count, run.parameters))
            for run in _all(client.read_task_runs, TaskRunSort.END_TIME_DESC, flow_run_filter=flows):
                rows.append(_row(run, "task", run.flow_run_id, run.run_count, {}))
    return list({row["run_id"]: row for row in rows}.values())


def _all(read, sort, **filters) -> list:
    found, offset = [], 0
    while page := read(**filters, sort=sort, limit=_PAGE, offset=offset):
        found += page
        offset += len(page)
    return found


def _row(run, kind: str, parent, attempts: int, parameters: dict) -> dict[str, Any]:
    seconds = run.total_run_time.total_seconds() if run.total_run_time else None
    return {
        "run_id": str(run.id),
        "parent_id": str(parent or ""),
        "kind": kind,
        "name": run.name,
        "state": run.state_name or "",
        "attempts": attempts,
        "started_at": _time(run.start_time),
        "ended_at": _time(run.end_time),
        "seconds": seconds,
        "parameters": json.dumps(parameters, default=str, sort_keys=True),
    }


def _time(moment) -> str | None:
    return moment.isoformat() if moment else None
