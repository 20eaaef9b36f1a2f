"""A turn that is killed at random moments, beside one that nobody disturbs.

With SIGKILL one of flow, server, browser and trainer is ended, whichever is there, and the same command is typed again
where it has ended. Each answer is computed by itself, so what both turns store must have the same hashes. No shard that
was finished is done again. Afterwards Prefect knows of each run what was so.
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

from flywheel.bench import BenchCase
from flywheel.errors import FlywheelError
from flywheel.workspace import Workspace

_TRAINERS = {"sft.processes": 2}  # elsewhere the flow's own process trains
_KINDS = {"server": "flows.guarded", "browser": "--remote-debugging", "trainer": "forkserver"}
_DONE = re.compile(r"(\S+): (\S+) done$", re.MULTILINE)


def cases(options: Namespace) -> Iterator[BenchCase]:
    parameters = turn.LEAST | turn.SAME_BITS | _TRAINERS
    whole = turn.make(options.folder / "whole", **parameters)
    began = time.monotonic()
    turn.ends(whole, turn.start(whole, "run"))
    seconds = time.monotonic() - began
    killed = turn.make(options.folder / "killed", **parameters)
    kills = _killed(killed, options.kills, seconds, random.Random(options.seed))

    kinds = dict(Counter(kind for kind, _ in kills))
    yield turn.figure("chaos_kills", "kills", len(kills), options.kills, len(kills) >= options.kills, by_kind=kinds)
    ours, theirs = turn.hashes(killed), turn.hashes(whole)
    differ = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    yield turn.figure("chaos_differences", "of hashes", len(differ), 0, not differ, of=len(theirs), differ=differ[:5])
    again = _done_again(killed)
    yield turn.figure("chaos_done_again", "shards", len(again), 0, not again, shards=again[:5])
    wrong = history.false(killed, [at for kind, at in kills if kind == "flow"])
    yield turn.figure("history_false", "rows", len(wrong), 0, not wrong, rows=wrong[:5])


def _killed(ws: Workspace, count: int, seconds: float, chance: random.Random) -> list[tuple[str, datetime]]:
    """What was killed, and when: each up to a quarter of a turn after the one before, so that some find it as it starts
    and most at work."""
    kills: list[tuple[str, datetime]] = []
    process = turn.start(ws, "run")
    while len(kills) < count:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0, seconds / 4))
        if process.poll() is None:
            kind, victim = chance.choice(sorted(_alive(process).items()))
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
                kills.append((kind, datetime.now(UTC)))
            if kind == "flow":
                process.wait(turn.END_S)
        elif process.returncode == 0:
            break
        if process.poll() is not None:
            process = turn.start(ws, "run")
    _finish(ws, process)
    return kills


def _finish(ws: Workspace, process: subprocess.Popen) -> None:
    """The same command, until the turn is over; one more try where the last kill was of a part."""
    with contextlib.suppress(FlywheelError):
        turn.ends(ws, process)
    if process.returncode:
        turn.ends(ws, turn.start(ws, "run"))


def _alive(process: subprocess.Popen) -> dict[str, psutil.Process]:
    """By kind, what may be killed now."""
    found = {"flow": psutil.Process(process.pid)}
    for child in found["flow"].children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words = " ".join(child.cmdline())
            for kind, mark in _KINDS.items():
                if mark in words and "--type=" not in words:
                    found[kind] = child  # of several the youngest: a trainer, not the server that forks them
    return found


def _done_again(ws: Workspace) -> list[str]:
    """Shards whose end was told more than once."""
    told = Counter(_DONE.findall(turn.log(ws).read_text(encoding="utf-8", errors="replace")))
    return sorted(f"{stage}: {shard}" for (stage, shard), times in told.items() if times > 1)
