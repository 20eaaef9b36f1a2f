"""A stage of many shards that do nothing, as Prefect's tasks and as a plain loop.

Each shard is found by name as a completed task run: none is lost, and none failed for a lock of the database.
"""

from __future__ import annotations

import shutil
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import orchestration_turn as turn
from bench_case import BenchCase
from orchestration_postgres import database, suffix

from flows.ops.prefect_server import open_prefect_server
from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.pipeline.stage import InProcessWorker, Stage, StageContext, StageResult

_ARRIVE_S = 300  # for the last task runs to reach the server


def cases(options: Namespace) -> Iterator[BenchCase]:
    ws = turn.make(options.folder / "shards")
    with database(options.database) as cluster, open_prefect_server(ws):
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()
        yield from _cases(ws, options.shards, suffix(cluster))


def _cases(ws: Workspace, count: int, on: str) -> Iterator[BenchCase]:
    from prefect import flow, tags

    from tasks.run_history import workspace_tag
    from tasks.shards import do_shards

    shards = [f"shard-{number:04d}" for number in range(count)]
    stage = Stage("nothing", (), (), (), lambda ctx: shards, _nothing, lambda ctx, results: StageResult())

    @flow(name="shards")
    def all_of_them(ctx: StageContext) -> int:
        with InProcessWorker(stage, ctx) as worker:
            return len(do_shards(ctx, shards, worker))

    def seconds(do) -> float:
        shutil.rmtree(ws.staging(1, stage.name), ignore_errors=True)
        ctx = StageContext(ws, Settings(), 1, stage.name)
        began = time.monotonic()
        do(ctx)
        return (time.monotonic() - began) / count

    def plain(ctx: StageContext) -> None:
        with InProcessWorker(stage, ctx) as worker:
            for shard in shards:
                worker.do_shard(shard)

    peer = seconds(plain)
    with tags(workspace_tag(ws)):
        ours = seconds(all_of_them)
    states = _states(ws, count)
    yield BenchCase("orchestration", f"shards_{count}{on}", "s a shard", ours, peer, "a plain loop", None, None, True)
    lost = count - states["Completed"]
    yield turn.figure(f"shards_lost{on}", "task runs", lost, 0, lost == 0, states=dict(states))


def _nothing(ctx: StageContext, shard: str, folder: Path) -> str:
    return shard


def _states(ws: Workspace, count: int) -> Counter:
    """Of the task runs that the server knows; they reach it after the tasks have ended."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
    from prefect.client.schemas.sorting import TaskRunSort

    from tasks.run_history import read_all_pages, workspace_tag

    own = FlowRunFilter(tags=FlowRunFilterTags(all_=[workspace_tag(ws)]))
    deadline = time.monotonic() + _ARRIVE_S
    with get_client(sync_client=True) as client:
        while True:
            runs = read_all_pages(client.read_task_runs, TaskRunSort.END_TIME_DESC, flow_run_filter=own)
            found = Counter(run.state_name for run in {run.id: run for run in runs}.values())
            if found["Completed"] >= count or time.monotonic() > deadline:
                return found
            time.sleep(1)
