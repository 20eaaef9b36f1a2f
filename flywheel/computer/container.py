"""How a machine begins as a container of an engine's.

The guest makes itself known at a socket that is served to it, is handed there what it is to answer at, and lives for as
long as that connection does: whatever becomes of this process or of the engine's command, no container is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from flywheel.computer import engine, limits, walls
from flywheel.computer.hello import heard
from flywheel.errors import EnvError
from flywheel.guest.first import LIMITS

if TYPE_CHECKING:
    from flywheel.computer.machine import MachineSettings

_GONE_S = 20.0  # that an engine may take to clean up
_LIMITING = ";".join(
    f"echo {most} >/proc/sys/user/{name}" for name, most in {**LIMITS, "max_user_namespaces": 0}.items()
)


class Container:
    """process: the engine's command, which ends after the container has."""

    def __init__(
        self, process: asyncio.subprocess.Process, named: tuple[str, str], hello: socket.socket, hands: socket.socket
    ) -> None:
        """named: the engine, and the container's name. hello: where the guest makes itself known. hands: what it is
        handed there."""
        self.process, self._named, self._hello, self._hands = process, named, hello, hands
        self._ours: socket.socket | None = None
        self._group: limits.Group | None = None
        self._guest = self._held = -1

    @classmethod
    async def begin(
        cls, chosen: MachineSettings, readable: Sequence[Path], folder: Path, listening: socket.socket
    ) -> Container:
        """folder: the machine's own, out here. listening: what the guest is to answer at. Raises OSError."""
        hello, hands = socket.socket(socket.AF_UNIX), listening.dup()
        path = folder / walls.SERVED / engine.HELLO
        try:
            hello.bind(str(path))
            path.chmod(0o666)  # the user in there is another one
            hello.listen(1)
            name = f"flywheel-{os.getpid()}-{secrets.token_hex(4)}"
            most = engine.limited(chosen.memory_mb, chosen.processes, chosen.cores)
            words = engine.command(chosen.walls, name, chosen.image, most, chosen.home_mb * 2**20, readable, folder)
            process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE, start_new_session=True, limit=2**16,
                cwd=folder,  # podman's monitor leaves a file there where memory was short
            )  # fmt: skip
        except BaseException:
            hello.close()
            hands.close()
            raise
        return cls(process, (chosen.walls, name), hello, hands)

    async def home(self) -> int | None:
        """As of `Bubble`. Raises EnvError where the home cannot be read from here, or limits cannot be set."""
        if not await self._met():
            return None
        self._guest = struct.unpack("iII", self._ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        self._held = os.pidfd_open(self._guest)
        self._group = limits.of(self._guest)
        await self._limit()
        socket.send_fds(self._ours, [b"listen"], [self._hands.fileno()])
        self._hands.close()
        home = await heard(self._ours)
        if home is not None:
            _readable(home, self._named[0])
        return home

    def processes(self) -> list[int]:
        """As of `Bubble`."""
        if self._group is not None:
            return self._group.processes()
        with contextlib.suppress(psutil.Error, OSError):
            signal.pidfd_send_signal(self._held, 0)  # it lives: its number is nobody else's
            return [self._guest, *(process.pid for process in psutil.Process(self._guest).children(recursive=True))]
        return []

    @property
    def memory(self) -> int:
        """As of `Bubble`; 0 where the container's group is not to be seen."""
        return self._group.memory if self._group else 0

    async def close(self) -> None:
        """End all of it, and wait until nothing is left of the container. It may be called twice."""
        if self._group is not None:
            await asyncio.to_thread(self._group.kill)
        if self._held >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._held, signal.SIGKILL)
            os.close(self._held)
            self._held = -1
        elif self.process.returncode is None:  # no guest was met: what there is the engine alone knows
            await self._removed()
        for one in (self._ours, self._hello, self._hands):
            if one is not None:
                one.close()
        try:
            await asyncio.wait_for(self.process.wait(), _GONE_S)
        except TimeoutError:
            await self._removed()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _met(self) -> bool:
        """The guest has made itself known, before the engine's command has ended. Nobody else can afterwards."""
        self._hello.setblocking(False)
        meets = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(self._hello))
        ends = asyncio.ensure_future(self.process.wait())
        try:
            await asyncio.wait({meets, ends}, return_when=asyncio.FIRST_COMPLETED)
            if meets.done():
                self._ours, _ = meets.result()
        finally:
            for one in (meets, ends):
                one.cancel()
            self._hello.close()
        return self._ours is not None

    async def _limit(self) -> None:
        """What the kernel counts for one user's processes on all machines together gets a limit for this one, where it
        has users of its own: the engine may not have the right to let the guest do so."""
        if _users(self._guest) == _users(os.getpid()):
            return
        words = ["nsenter", f"--user=/proc/{self._guest}/ns/user", "sh", "-ec", _LIMITING]
        done = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.PIPE)
        _, said = await done.communicate()
        if done.returncode:
            raise EnvError(f"a machine's limits cannot be set: {said.decode('utf-8', 'replace').strip()[-200:]}")

    async def _removed(self) -> None:
        quiet = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.DEVNULL)
        done = await asyncio.create_subprocess_exec(*engine.removed(*self._named), **quiet)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), _GONE_S)


def _users(pid: int) -> int:
    """The namespace of users that a process is in."""
    return Path(f"/proc/{pid}/ns/user").stat().st_ino


def _readable(home: int, name: str) -> None:
    try:
        os.listdir(home)
    except PermissionError:
        os.close(home)
        raise EnvError(
            f"{name} gives a machine's files to a user whose files cannot be read from here",
            where="computer",
            fix="let machine.walls be podman, or let docker run without namespaces of users",
        ) from None
