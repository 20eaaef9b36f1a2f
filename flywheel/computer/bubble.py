"""How a machine begins under bubblewrap: as a child of this process, with cgroups where this user may make them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from flywheel.computer import limits, seccomp, walls
from flywheel.computer.hello import heard
from flywheel.sandbox import isolation

if TYPE_CHECKING:
    from flywheel.computer.machine import MachineSettings


def missing() -> tuple[str, str]:
    """Why no machine can begin, and how to mend it; empty where one can."""
    why = isolation.missing()
    return (why, "apt-get install bubblewrap") if why else ("", "")


class Bubble:
    """process: bubblewrap's, which ends with all that runs in there, or when this process does."""

    def __init__(self, process: asyncio.subprocess.Process, group: limits.Group | None, ours: socket.socket) -> None:
        self.process, self._group, self._ours = process, group, ours

    @classmethod
    async def begin(
        cls, chosen: MachineSettings, readable: Sequence[Path], folder: Path, listening: socket.socket
    ) -> Bubble:
        """folder: the machine's own, out here. listening: what the guest answers at. Raises OSError."""
        group = limits.group(chosen.memory_mb, chosen.processes, chosen.cores)
        (ours, theirs), rules = socket.socketpair(), seccomp.opened()
        try:
            descriptors = (listening.fileno(), theirs.fileno(), rules)
            command = walls.command(readable, chosen.home_mb * 2**20, folder / walls.SERVED, *descriptors)
            process = await asyncio.create_subprocess_exec(
                *(group.entering(command) if group else command),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                pass_fds=descriptors, env={}, start_new_session=True, limit=2**16,
            )  # fmt: skip
        except BaseException:
            ours.close()
            if group is not None:
                group.end()
            raise
        finally:
            theirs.close()
            os.close(rules)
        return cls(process, group, ours)

    async def home(self) -> int | None:
        """The home folder, open, which the guest sends before anything else runs there; None where it ends instead."""
        return await heard(self._ours)

    def processes(self) -> list[int]:
        """Ids of what runs in there, as this machine numbers them."""
        if self._group is not None:
            return self._group.processes()
        with contextlib.suppress(psutil.Error):
            return [process.pid for process in psutil.Process(self.process.pid).children(recursive=True)]
        return []

    @property
    def memory(self) -> int:
        """Bytes in use, files in memory included; 0 without cgroups."""
        return self._group.memory if self._group else 0

    async def close(self) -> None:
        """End all of it. It may be called twice."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, 9)
        await self.process.wait()
        self._ours.close()
        group, self._group = self._group, None
        if group is not None:
            await asyncio.to_thread(group.end)
