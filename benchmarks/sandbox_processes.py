"""The processes below this one: who they are, what memory they take, which of them were left. No benchmark itself."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass, field

import psutil

_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied)


@dataclass
class Census:
    """Every process that was seen below this one since it began, by id and time of birth."""

    seen: dict[tuple[int, float], str] = field(default_factory=dict)
    before: set[tuple[int, float]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.before = {(process.pid, process.create_time()) for process in family()}

    def look(self) -> None:
        for process in family():
            try:
                key = (process.pid, process.create_time())
                if key not in self.before:
                    self.seen[key] = process.name()
            except _GONE:
                continue

    def left(self, wait_s: float) -> list[str]:
        """Names of those that are still alive after at most `wait_s`."""
        end = time.monotonic() + wait_s
        while True:
            alive = [name for (pid, born), name in self.seen.items() if _alive(pid, born)]
            if not alive or time.monotonic() > end:
                return alive
            time.sleep(0.1)


def family() -> list[psutil.Process]:
    try:
        return psutil.Process().children(recursive=True)
    except _GONE:
        return []


def _alive(pid: int, born: float) -> bool:
    try:
        process = psutil.Process(pid)
        return process.create_time() == born and process.status() != psutil.STATUS_ZOMBIE
    except _GONE:
        return False


def memory() -> dict[str, float]:
    """MiB, each shared page counted once over those that share it (PSS): of this process, and of all below it."""
    below = 0.0
    for process in family():
        below += _pss(process.pid)
    return {"own": _pss(os.getpid()), "browsers": below}


def cpu_s() -> float:
    """Seconds of a core that this process and all below it have taken, those that have ended included."""
    times = [os.times()]
    for process in family():
        with contextlib.suppress(*_GONE):
            times.append(process.cpu_times())
    return sum(sum(one[:4]) for one in times)


def _pss(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as lines:  # noqa: PTH123  a file of the kernel
            return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
    except (OSError, StopIteration):
        return 0.0


def kill_one(rng: random.Random) -> str:
    """SIGKILL one browser, or the process of one page: "browser", "page", or "" where there is none."""
    found: dict[str, list[int]] = {"browser": [], "page": []}
    for process in family():
        try:
            line = process.cmdline()
        except _GONE:
            continue
        if not line or "chrom" not in line[0]:
            continue
        if "--type=renderer" in line:
            found["page"].append(process.pid)
        elif not any(word.startswith("--type=") for word in line):
            found["browser"].append(process.pid)
    kinds = [kind for kind, pids in found.items() if pids]
    if not kinds:
        return ""
    kind = rng.choice(kinds)
    try:
        os.kill(rng.choice(found[kind]), signal.SIGKILL)
    except ProcessLookupError:
        return ""
    return kind
