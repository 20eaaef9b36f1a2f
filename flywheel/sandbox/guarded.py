"""Processes that end with this one, with all their children, in whatever way it ends (`kill -9` included).

Two things see to it: the kernel kills the process when its parent dies (`setpriv --pdeathsig`, where there is one);
and a guard, a shell that waits on a pipe held by this process alone, kills the whole process group. Browsers and the
servers of pages are run so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

_END_S = 5.0
# $0: the process group, $1: its folder, $2: "" or a text that stands in the environment of all that belongs to it,
# even of what has left the group. A line says that all is well; the pipe's end without one, that we died.
_GUARD = (
    'trap "" INT TERM HUP; read -r _ || { kill -9 -- "-$0"; '
    '[ -z "$2" ] || for one in $(grep -lsF -- "$2" /proc/[0-9]*/environ); do '
    'one=${one#/proc/}; kill -9 "${one%/environ}"; done; rm -rf "$1"; }'
)


def limited(command: Sequence[str], megabytes: int, more: str = "", redirect: str = "") -> list[str]:
    """A command that takes so much memory of its own at most, dumps no core, and ends with this process.

    more: other limits, in the words of a shell. redirect: where its descriptors lead.
    """
    # The shell sets the limits and is replaced.
    shell = f'ulimit -c 0; ulimit -d "$0"; {more} exec "$@" {redirect}'
    setpriv = shutil.which("setpriv")
    return [
        "/bin/sh",
        "-c",
        shell,
        str(megabytes * 1024),
        *([setpriv, "--pdeathsig", "KILL"] if setpriv else []),
        *command,
    ]


class Guard:
    """Ends the process group `leader` and removes its folder where this process dies before `release`."""

    def __init__(self, leader: int, folder: Path, mark: str = "") -> None:
        reads, self._life = os.pipe()
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, str(leader), str(folder), mark],
                stdin=reads,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._life)
            raise
        finally:
            os.close(reads)

    async def release(self) -> None:
        """Nothing is left to be guarded; may be called twice."""
        life, self._life = self._life, -1
        if life >= 0:
            with contextlib.suppress(OSError):
                os.write(life, b"well\n")
            os.close(life)
        await ended(self._process)


def kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def kill_marked(mark: str) -> None:
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


async def group_gone(leader: int) -> None:
    """Whoever is left of the group is dying, and has its folder open until then."""
    await _gone(lambda: group(leader), lambda: kill_group(leader))


async def marked_gone(mark: str) -> None:
    """The same of those whose environment holds a text."""
    await _gone(lambda: marked(mark), lambda: kill_marked(mark))


async def _gone(left: Callable[[], list[int]], kill: Callable[[], None]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_S):
            while left():
                kill()
                await asyncio.sleep(0.01)


async def ended(process: subprocess.Popen) -> None:
    """A process that was killed is reaped; one that the kernel cannot end within the deadline is left to it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_S):
            while process.poll() is None:  # noqa: ASYNC110 (the kernel tells nobody)
                await asyncio.sleep(0.002)


def group(leader: int) -> list[int]:
    """Process ids of a process group, but for those that are dead and wait to be reaped."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, _, leads = stat.read_text().rsplit(")", 1)[1].split()[:3]
            if int(leads) == leader and state not in "ZX":
                found.append(int(stat.parent.name))
    return found


def marked(mark: str) -> list[int]:
    """Process ids of those whose environment holds a text, whatever group they have moved to."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError, ValueError):
            if mark.encode() in environ.read_bytes():
                found.append(int(environ.parent.name))
    return found
