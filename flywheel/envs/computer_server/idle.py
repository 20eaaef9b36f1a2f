"""Wait until programs are at rest, so that a screenshot shows what they did: all threads sleep, and none has run since.

The kernel counts the time that each thread has run (`schedstat`). A program is awake from the moment that something is
sent to it, so a program at rest has read all that was sent to it, and has acted on it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

_LOOK_S = 0.0005
_LOOKS = 2  # consecutive ones that must find them at rest
_ASLEEP = ("S", "T", "Z", "X")


class ProcessWatch:
    """Watch processes and all their descendants, except this process. pids: the ids of all of them."""

    def __init__(self, pids: Iterable[int]) -> None:
        parents = {}
        for name in os.listdir("/proc"):  # noqa: PTH208 - runs at each step of an episode: pathlib is slower
            if name.isdigit() and (fields := _read_stat(f"/proc/{name}/stat")):
                parents[int(name)] = int(fields[1])
        found = set(pids)
        while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
            found |= more
        self.pids = sorted(found - {os.getpid()})

    def wait(self, until: float) -> bool:
        """Wait until all processes are at rest; False where they are not by `until` (a time of `time.monotonic`)."""
        before, looks = None, 0
        while True:
            now = self.look()
            looks = looks + 1 if now is not None and now == before else 0
            if looks >= _LOOKS:
                return True
            if time.monotonic() > until:
                return False
            before = now
            time.sleep(_LOOK_S)

    def look(self) -> list[str] | None:
        """Return how long each thread has run (the text of its `schedstat`); None where a thread is awake."""
        ran = []
        for pid in self.pids:
            folder = f"/proc/{pid}/task"
            try:
                threads = os.listdir(folder)  # noqa: PTH208
            except OSError:  # it has ended
                continue
            for thread in threads:
                fields = _read_stat(f"{folder}/{thread}/stat")
                if not fields:
                    continue
                if fields[0] not in _ASLEEP:
                    return None
                ran.append(_read_proc_file(f"{folder}/{thread}/schedstat"))
        return ran


def _read_stat(path: str) -> list[str]:
    """Return the fields of a `stat` file from the state on: state, parent, ...; [] where the process is gone."""
    return _read_proc_file(path).rpartition(")")[2].split()


def _read_proc_file(path: str) -> str:
    try:
        with open(path) as file:  # noqa: PTH123 - as above
            return file.read()
    except OSError:
        return ""
