"""From what data ask for to the run that they begin: one each, none by itself, also while the server is killed.

What asks is made up; who looks, the server, its worker and the process of each run are those of
`flywheel workspace up`.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import httpx
import orchestration_turn as turn
import psutil
from bench_case import BenchCase

from flows.ops.prefect_server import open_prefect_server
from flywheel.config import Settings
from flywheel.config.workspace import Workspace, workspace_name
from flywheel.pipeline import iterations
from flywheel.utils.errors import FlywheelError
from flywheel.utils.processes import run_periodically

_GOAL_S = 5.0
_STARTS_S = 120
_RESTARTS = 0.04  # of the events, those at which the server is killed
_LOOK_S = 1.0  # as `flywheel workspace up` looks
_ASK_S = 1.0


def cases(options: Namespace) -> Iterator[BenchCase]:
    ws = turn.make(options.folder / "events")
    with open_prefect_server(ws):
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()
        yield from _cases(ws, options.events, random.Random(options.seed))


def _cases(ws: Workspace, count: int, chance: random.Random) -> Iterator[BenchCase]:
    from flows.ops.deployments import work_pool_name
    from flows.ops.trigger_watcher import TriggerWatcher
    from flows.ops.worker import run_worker

    asked: list[iterations.DueRun] = []
    kills = set(chance.sample(range(count), round(_RESTARTS * count)))
    waited = []
    with (
        mock.patch.object(iterations, "due_runs", side_effect=lambda *_: list(asked)),
        run_worker(work_pool_name(ws)) as worker,
    ):
        watcher = TriggerWatcher(ws, {iterations.INGEST: _deployment(ws)})

        def look() -> None:
            with contextlib.suppress(httpx.HTTPError):  # of a server that was killed
                if watcher.start_due_runs(Settings()):
                    worker.poll_now()

        with run_periodically(look, _LOOK_S):
            for number in range(count):
                if number in kills:
                    _kill_server(ws)
                at = time.time()
                asked.append(
                    iterations.DueRun(
                        f"{workspace_name(ws)}:event:{number}", {"until": iterations.INGEST}, "a new recording"
                    )
                )
                waited.append(_started(ws, number) - at)
    begun = _runs(ws)
    keys = Counter(run.idempotency_key for run in begun)
    wrong = abs(len(begun) - count) + sum(times - 1 for times in keys.values())
    waited.sort()
    late = waited[min(len(waited) - 1, int(0.95 * len(waited)))]
    extra = {"n": count, "median": waited[len(waited) // 2], "longest": waited[-1], "server_kills": len(kills)}
    yield turn.figure("event_to_start", "s, 95%", late, _GOAL_S, late <= _GOAL_S, **extra)
    yield turn.figure("events_wrong", "runs", wrong, 0, wrong == 0, runs=len(begun))


def _deployment(ws: Workspace):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.flows import Flow

    from flows.ops.deployments import work_pool_name

    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=work_pool_name(ws), type="process"))
    flow = Flow.from_source(source=str(Path(__file__).parent), entrypoint="orchestration_nothing.py:nothing")
    return flow.to_deployment(f"{workspace_name(ws)}-event").apply(work_pool_name=work_pool_name(ws))


def _kill_server(ws: Workspace) -> None:
    note = json.loads((ws.prefect_home / "server.json").read_text(encoding="utf-8"))
    psutil.Process(note["pid"]).kill()


def _started(ws: Workspace, number: int) -> float:
    """When the run of the event began, as the run itself says: how often it is asked for does not count, but would
    take a core from what is measured."""
    key, deadline = f"{workspace_name(ws)}:event:{number}", time.monotonic() + _STARTS_S
    while time.monotonic() < deadline:
        time.sleep(_ASK_S)
        with contextlib.suppress(httpx.HTTPError):
            for run in _runs(ws, limit=5):
                if run.idempotency_key == key and run.start_time:
                    return run.start_time.timestamp()
    raise FlywheelError(f"event {number} began no run in {_STARTS_S} s", where=ws.prefect_home / "server.log")


def _runs(ws: Workspace, limit: int = 0) -> list:
    """Flow runs of the workspace, the newest ones first, so many at most."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
    from prefect.client.schemas.sorting import FlowRunSort

    from tasks.run_history import read_all_pages, workspace_tag

    own = FlowRunFilter(tags=FlowRunFilterTags(all_=[workspace_tag(ws)]))
    with get_client(sync_client=True) as client:
        if limit:
            sort = FlowRunSort.EXPECTED_START_TIME_DESC
            return client.read_flow_runs(flow_run_filter=own, sort=sort, limit=limit)
        return read_all_pages(client.read_flow_runs, FlowRunSort.EXPECTED_START_TIME_DESC, flow_run_filter=own)
