"""`flywheel workspace up` with nothing to do and ten schedules: its share of a core, the growth of its database."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from unittest import mock

import orchestration_turn as turn
import psutil
from bench_case import BenchCase

from flows.ops import supervisor, tied_process
from flywheel.config.workspace import Workspace, workspace_name
from flywheel.utils import credentials

_GOAL = 0.03
_SCHEDULES = 10
_SETTLES_S = 60  # the first looks of Prefect's services


def cases(options: Namespace) -> Iterator[BenchCase]:
    ws = turn.make(options.folder / "idle")
    up = supervisor.start_supervisor(ws, options.port)
    try:
        _schedules(ws, up["prefect"])
        time.sleep(_SETTLES_S)
        family = [psutil.Process(up["pid"]), *psutil.Process(up["pid"]).children(recursive=True)]
        before, size = {one.pid: _cpu(one) for one in family}, _database(ws)
        time.sleep(60 * options.minutes)
        used: Counter[str] = Counter()
        for one in family:
            if one.is_running():
                used[_name(one)] += _cpu(one) - before[one.pid]
        grown = _database(ws) - size
    finally:
        supervisor.stop_supervisor(ws)
    share = sum(used.values()) / (60 * options.minutes)
    parts = {name: seconds / (60 * options.minutes) for name, seconds in used.items()}
    extra = {"minutes": options.minutes, "by_process": parts}
    yield turn.figure("idle_cpu", "of a core", share, _GOAL, share < _GOAL, **extra)
    rate = grown / options.minutes * 60 * 24 / 2**20
    yield turn.figure("idle_database", "MiB a day", rate, None, True)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _name(process: psutil.Process) -> str:
    """The module that it runs; several may have the same."""
    words = process.cmdline()
    modules = [word for word in words if word.startswith("flows.") and word != tied_process.__name__]
    return modules[0] if modules else " ".join(words)[-60:]


def _database(ws: Workspace) -> int:
    """Bytes, of what waits in its write-ahead log too."""
    return sum(path.stat().st_size for path in ws.prefect_home.glob("prefect.db*"))


def _schedules(ws: Workspace, url: str) -> None:
    """Ten deployments, each of which begins once a day."""
    login = {"PREFECT_API_URL": f"{url}/api", "PREFECT_API_AUTH_STRING": credentials.workspace_credentials(ws.state)}
    with mock.patch.dict(os.environ, login):
        from prefect.client.schemas.schedules import CronSchedule
        from prefect.context import refresh_global_settings_context
        from prefect.flows import Flow

        from flows.ops.deployments import ENTRYPOINT, SOURCE, work_pool_name

        refresh_global_settings_context()
        flow = Flow.from_source(source=str(SOURCE), entrypoint=ENTRYPOINT)
        for number in range(_SCHEDULES):
            flow.to_deployment(
                f"{workspace_name(ws)}-{number}",
                parameters={"workspace": str(ws.root)},
                schedules=[CronSchedule(cron=f"{number} {(time.gmtime().tm_hour + 12) % 24} * * *", timezone="UTC")],
            ).apply(work_pool_name=work_pool_name(ws))
