"""What is not work of an iteration of the default settings, and what a command costs that has nothing to do.

Work is what shards do, stages' finishes, DVC's records of them and the report. All else is orchestration: to import,
to start Prefect's server and to end it, the runs and tasks around the work, to look before the run and to close after
it.
"""

from __future__ import annotations

import shutil
import time
from argparse import Namespace
from collections.abc import Iterator

import orchestration_turn as turn
import store_iterations
from bench_case import BenchCase

from flywheel.cli import scaffold
from flywheel.config.workspace import Workspace
from flywheel.store.catalog import database

_GOAL, _NOOP_GOAL_S, _MANY = 0.05, 10.0, 200
_TRIES = 3
_WORK = """
SELECT 'shards' AS what, sum(value) AS seconds FROM metrics WHERE iteration = 1 AND name = 'seconds'
UNION ALL
SELECT regexp_extract(name, '^[a-z]+') AS what, sum(seconds) FROM runs
WHERE iteration = 1 AND kind = 'task' AND regexp_matches(name, '^(finish|version) |^report$') GROUP BY what
"""


def cases(options: Namespace) -> Iterator[BenchCase]:
    folder = options.folder / "overhead"
    shutil.rmtree(folder, ignore_errors=True)
    ws = scaffold.create_workspace(folder)
    whole = _seconds(ws, "run", "-k", "1")
    work = {row["what"]: row["seconds"] for row in database.query_catalog(ws, _WORK).to_pylist()}
    rest = whole - sum(work.values())
    extra = {"seconds": rest, "of": whole, "work": work}
    yield turn.figure("overhead", "of an iteration", rest / whole, _GOAL, rest / whole < _GOAL, **extra)
    yield _noop(ws, "noop_seconds", 1)
    many = store_iterations.workspace((options.folder / f"iterations-{_MANY}").resolve(), _MANY)
    yield _noop(many, f"noop_seconds_{_MANY}", _MANY)


def _noop(ws: Workspace, name: str, iteration: int) -> BenchCase:
    """The median of several."""
    found = sorted(_seconds(ws, "run", "-k", str(iteration)) for _ in range(_TRIES))
    ours = found[_TRIES // 2]
    extra = {"n": _TRIES, "all": found}
    return turn.figure(name, "s", ours, _NOOP_GOAL_S, ours < _NOOP_GOAL_S, **extra)


def _seconds(ws: Workspace, *words: str) -> float:
    began = time.monotonic()
    turn.ends(ws, turn.start(ws, *words))
    return time.monotonic() - began
