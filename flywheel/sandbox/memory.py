"""What the processes of a browser take, read from /proc; elsewhere than on Linux nothing is known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_KB = 1024


@dataclass(frozen=True)
class Process:
    """kind: renderer (pages), gpu-process, utility, zygote; browser for the first one.

    mb: MiB of its own, with its share of what several processes map (PSS, proportional set size).
    """

    pid: int
    kind: str
    mb: float


def measure(pids: Iterable[int]) -> dict[int, list[Process]]:
    """Each process of `pids` with all below it. Takes some milliseconds a browser: call it in a thread."""
    children: dict[int, list[int]] = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # gone meanwhile
        children.setdefault(parent, []).append(int(folder.name))
    return {pid: _family(pid, children) for pid in pids}


def _family(pid: int, children: dict[int, list[int]]) -> list[Process]:
    found, queue = [], [pid]
    while queue:
        one = queue.pop()
        mb = _pss(one)
        if mb is not None:
            found.append(Process(one, "browser" if one == pid else _kind(one), mb))
        queue += children.get(one, [])
    return found


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
