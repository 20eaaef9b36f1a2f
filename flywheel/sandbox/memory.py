"""What the processes of a browser take, read from /proc; elsewhere than on Linux nothing is known."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_KB, _MB = 1024, 1 << 20


@dataclass(frozen=True)
class Process:
    """kind: renderer (pages), gpu-process, utility, zygote; browser for the first one.

    mb: MiB of its own, with its share of what several processes map (PSS, proportional set size); or all that it maps
    (RSS), which is more, where that was enough to know.
    """

    pid: int
    kind: str
    mb: float


def measure(pids: Iterable[int], *, one_mb: float = 0, all_mb: float = 0) -> dict[int, list[Process]]:
    """Each process of `pids` with all below it.

    one_mb, all_mb: of a family of which no process maps more than the one, and all together no more than the other, it
    is enough to know that. To learn the share of what several map, the kernel goes through all their pages: up to a
    tenth of a second a browser, which waits meanwhile.
    """
    children: dict[int, list[int]] = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # gone meanwhile
        children.setdefault(parent, []).append(int(folder.name))
    found = {}
    for pid in pids:
        family, found[pid] = _family(pid, children), []
        taken = {one: mb for one in family if (mb := _rss(one)) is not None}
        exact = max(taken.values(), default=0) > one_mb or sum(taken.values()) > all_mb
        for one, most in taken.items():
            mb = _pss(one) if exact else most
            if mb is not None:
                found[pid].append(Process(one, "browser" if one == pid else _kind(one), mb))
    return found


def _family(pid: int, children: dict[int, list[int]]) -> list[int]:
    found, queue = [], [pid]
    while queue:
        one = queue.pop()
        found.append(one)
        queue += children.get(one, [])
    return found


def _rss(pid: int) -> float | None:
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MB
    except (OSError, IndexError):
        return None


def _pss(pid: int) -> float | None:
    try:
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / _KB
    except OSError:
        pass
    return None


def _kind(pid: int) -> str:
    try:
        # Separated by zeros, and by spaces in what a zygote has forked.
        words = (_PROC / str(pid) / "cmdline").read_text(errors="replace").replace("\0", " ").split()
    except OSError:
        return ""
    return next((word.removeprefix("--type=") for word in words if word.startswith("--type=")), "")
