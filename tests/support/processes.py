"""Other processes, for tests: how long they are waited for, whether they are there, that nothing is left behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path

# Only what hangs takes this long. A new process that imports torch has taken two minutes where four tests, one of them
# hostile, shared two slow cores.
PATIENCE_S = 600.0
_WAIT_S = 60.0  # the kernel's cleaning up, on a busy machine


async def gone(pids: Iterable[int]) -> bool:
    """All of them have ended, or do so within a minute."""
    pids, deadline = list(pids), time.monotonic() + _WAIT_S
    while any(alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def descendants(pid: int) -> list[tuple[int, str]]:
    """Processes below `pid`, with their names."""
    children: dict[int, list[tuple[int, str]]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        children.setdefault(int(rest[1]), []).append((int(stat.parent.name), name))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += [child for child, _ in below]
    return found
