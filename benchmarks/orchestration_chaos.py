"""A turn that is killed at random moments, beside one that nobody disturbs.

With SIGKILL one of flow, server, browser and trainer is ended, whichever is there, and the same command is typed again
where it has ended. On PostgreSQL stages run beside one another, and their worker and the database are killed too; a
service manager would begin the database again, so we do. Each answer is computed by itself, so what both turns store
must have the same hashes. No shard that was finished is done again. Afterwards Prefect knows of each run what was so.
"""

from __future__ import annotations

import contextlib
import random
import re
import subprocess
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

import orchestration_history as history
import orchestration_turn as turn
import psutil
from bench_case import BenchCase
from orchestration_postgres import Postgres, database, suffix

from flywheel.config.workspace import Workspace
from flywheel.pipeline import iterations as pipeline_iterations
from flywheel.utils.errors import FlywheelError

_TRAINERS = {"sft.processes": 2}  # elsewhere the flow's own process trains
_BESIDE = {"cluster.max_parallel_stages": 2}
_DATABASE_AWAY_S = 10.0  # at most
_DONE = re.compile(r"(\S+): (\S+) done$", re.MULTILINE)


def cases(options: Namespace) -> Iterator[BenchCase]:
    with database(options.database) as cluster:
        yield from _cases(options, cluster)


def _cases(options: Namespace, cluster: Postgres | None) -> Iterator[BenchCase]:
    on, parameters = suffix(cluster), turn.LEAST | turn.SAME_BITS | _TRAINERS | (_BESIDE if cluster else {})
    whole = turn.make(options.folder / "whole", **parameters)
    began = time.monotonic()
    _turn(whole, 1)
    seconds = time.monotonic() - began
    killed = turn.make(options.folder / "killed", **parameters)
    kills = _killed(killed, options.kills, seconds, random.Random(options.seed), cluster)
    iterations = range(1, pipeline_iterations.newest_iteration(killed) + 1)
    for k in iterations[1:]:
        _turn(whole, k)

    kinds = dict(Counter(kind for kind, _ in kills))
    yield turn.figure(
        f"chaos_kills{on}", "kills", len(kills), options.kills, len(kills) >= options.kills, by_kind=kinds
    )
    ours, theirs = ({(k, name): one for k in iterations for name, one in turn.hashes(ws, k).items()}
                    for ws in (killed, whole))  # fmt: skip
    differ = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    yield turn.figure(
        f"chaos_differences{on}", "of hashes", len(differ), 0, not differ, of=len(theirs), differ=differ[:5]
    )
    again = _done_again(killed)
    yield turn.figure(f"chaos_done_again{on}", "shards", len(again), 0, not again, shards=again[:5])
    wrong = history.false(killed, [at for kind, at in kills if kind == "flow"], iterations)
    yield turn.figure(f"history_false{on}", "rows", len(wrong), 0, not wrong, rows=wrong[:5])


def _turn(ws: Workspace, iteration: int) -> None:
    turn.ends(ws, turn.start(ws, "run", "-k", str(iteration)))


def _killed(
    ws: Workspace, count: int, seconds: float, chance: random.Random, cluster: Postgres | None
) -> list[tuple[str, datetime]]:
    """What was killed, and when: each up to a quarter of a turn after the one before, so that some find it as it starts
    and most at work. A turn that is over before all kills are done is followed by the next one."""
    kills: list[tuple[str, datetime]] = []
    k, process = 1, turn.start(ws, "run", "-k", "1")
    while len(kills) < count:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0, seconds / 4))
        if process.poll() is None:
            victims = _alive(process) | ({"database": cluster} if cluster else {})
            kind = chance.choice(sorted(victims))
            with contextlib.suppress(psutil.NoSuchProcess):
                victims[kind].kill()
                kills.append((kind, datetime.now(UTC)))
            if cluster and kind == "database":
                time.sleep(chance.uniform(0, _DATABASE_AWAY_S))
                cluster.start()
            if kind == "flow":
                process.wait(turn.END_S)
        if process.poll() is not None:
            k += process.returncode == 0
            process = turn.start(ws, "run", "-k", str(k))
    with contextlib.suppress(FlywheelError):  # of a part that was killed last
        turn.ends(ws, process)
    _turn(ws, k)
    return kills


def _alive(process: subprocess.Popen) -> dict[str, psutil.Process]:
    """By kind, what may be killed now."""
    flow = psutil.Process(process.pid)
    return turn.by_kind(flow.children(recursive=True)) | {"flow": flow}


def _done_again(ws: Workspace) -> list[str]:
    """Shards whose end was told more often than there are turns."""
    said = turn.log(ws).read_text(encoding="utf-8", errors="replace")
    told = Counter(_DONE.findall(said))
    return sorted(
        f"{stage}: {shard}"
        for (stage, shard), times in told.items()
        if times > pipeline_iterations.newest_iteration(ws)
    )
