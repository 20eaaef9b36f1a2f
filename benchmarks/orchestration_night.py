"""A night without a person, its hours made short: schedules, kills, and what was there in the morning.

`flywheel workspace up` with an iteration and an ingest by the clock; with SIGKILL flow, worker, server or browser is
ended at random moments. What is told: iterations that were begun are complete, no two were at work at once, nothing was
failed or lost, and the history is true.
"""

from __future__ import annotations

import contextlib
import random
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

import orchestration_history as history
import orchestration_turn as turn
import psutil
from bench_case import BenchCase

from flows.ops import supervisor
from flywheel.config import run_lock
from flywheel.config.workspace import Workspace
from flywheel.pipeline import iterations
from flywheel.store.catalog import database
from flywheel.utils.errors import FlywheelError

_HOURS = 8
_EVERY = {"operations.schedule": "*/{hour} * * * *", "operations.ingest_schedule": "*/{half} * * * *"}
_ENDS_S = 1200
_LOOK_S = 1.0
_AT_ONCE = """
WITH turns AS (FROM runs WHERE kind = 'flow' AND parent_id = '')
SELECT count(*) AS n FROM turns a JOIN turns b ON a.iteration < b.iteration
WHERE a.started_at < b.ended_at AND b.started_at < a.ended_at
"""


def cases(options: Namespace) -> Iterator[BenchCase]:
    hour = options.hour_minutes
    every = {name: text.format(hour=hour, half=max(1, hour // 2)) for name, text in _EVERY.items()}
    rules = every | {
        "operations.trigger_min_recordings": 2,
        "operations.halt_after_rejected": 0,
        "operations.halt_after_empty": 0,
    }
    ws = turn.make(options.folder / "night", **turn.LEAST, **rules)
    supervisor.start_supervisor(ws, options.port)
    try:
        kills = _kills(ws, 60 * hour * _HOURS, 60 * hour / 2, random.Random(options.seed))
        _rest(ws)
    finally:
        supervisor.stop_supervisor(ws)

    made = iterations.newest_iteration(ws)
    complete = [k for k in range(1, made + 1) if iterations.check_iteration_complete(ws, k)]
    by_kind = dict(Counter(kind for kind, _ in kills))
    yield turn.figure(
        "night_iterations", "complete", len(complete), None, True, begun=made, kills=by_kind, hours=_HOURS
    )
    wrong = history.false(ws, [at for kind, at in kills if kind == "flow"], complete)
    yield turn.figure("night_history_false", "rows", len(wrong), 0, not wrong, rows=wrong[:5])
    at_once = database.query_catalog(ws, _AT_ONCE).to_pylist()[0]["n"]
    yield turn.figure("night_at_once", "pairs of iterations", at_once, 0, not at_once)
    failed = database.query_catalog(ws, "SELECT name, message FROM runs WHERE state = 'Failed'").to_pylist()
    yield turn.figure("night_failed", "runs", len(failed), 0, not failed, rows=failed[:5])


def _kills(ws: Workspace, seconds: float, apart: float, chance: random.Random) -> list[tuple[str, datetime]]:
    """What was killed and when, about each `apart` seconds."""
    found, over = [], time.monotonic() + seconds
    while (left := over - time.monotonic()) > 0:
        time.sleep(min(left, chance.uniform(0, 2 * apart)))
        alive = _alive(ws)
        kind = chance.choice(sorted(alive)) if alive else ""
        with contextlib.suppress(psutil.NoSuchProcess, KeyError):
            alive[kind].kill()
            found.append((kind, datetime.now(UTC)))
    return found


def _alive(ws: Workspace) -> dict[str, psutil.Process]:
    found = {}
    with contextlib.suppress(psutil.Error, KeyError):
        up = psutil.Process(supervisor.find_supervisor(ws)["pid"])
        flow = _at_work(ws)
        found = turn.by_kind([*up.children(recursive=True), *(flow.children(recursive=True) if flow else [])])
        if flow:
            found["flow"] = flow
    return found


def _at_work(ws: Workspace) -> psutil.Process | None:
    """The process of the run, also of one whose worker was killed."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid) if (pid := run_lock.workspace_holder(ws)) else None


def _rest(ws: Workspace) -> None:
    """Until the iteration that was begun is complete and nothing is at work; nobody helps."""
    deadline = time.monotonic() + _ENDS_S
    while time.monotonic() < deadline:
        if not run_lock.is_workspace_busy(ws) and iterations.check_iteration_complete(
            ws, iterations.newest_iteration(ws)
        ):
            return
        time.sleep(_LOOK_S)
    raise FlywheelError(
        f"iteration {iterations.newest_iteration(ws)} was not complete {_ENDS_S} s later", where=ws.state / "up.log"
    )
