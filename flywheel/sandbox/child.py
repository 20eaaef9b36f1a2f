"""A program of a page's server: started without our environment, heard to a bound, ended with all that it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from flywheel.sandbox.guarded import ended, group_gone, kill_group, limited

MOST_SAID = 64_000  # bytes of output that are kept, the newest
_FILE = "ulimit -f 2097152;"  # no file above 1 GiB


class Child:
    """A running program, in a process group of its own. Raises OSError where it cannot be started.

    It must be made in the event loop's own thread, since the kernel ends it with the thread that started it.
    """

    def __init__(self, command: Sequence[str], working: Path, environment: Mapping[str, str], megabytes: int) -> None:
        reads, writes = os.pipe()
        try:
            self.process = subprocess.Popen(
                limited(command, megabytes, _FILE),
                cwd=working,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=writes,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except BaseException:
            os.close(reads)
            raise
        finally:
            os.close(writes)
        self._said = bytearray()
        self._hearing = asyncio.create_task(self._hear(reads))

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def code(self) -> int | None:
        """Its exit status; None while it runs. It is not reaped before `gone`: its number stays its group's."""
        if self.process.returncode is not None:
            return self.process.returncode
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    @property
    def said(self) -> str:
        return bytes(self._said).decode("utf-8", "replace").strip()

    @property
    def last_words(self) -> str:
        """What it said last, in one line."""
        lines = [line.strip() for line in self.said.splitlines() if line.strip()]
        return " | ".join(lines[-5:])[-600:] or "it said nothing"

    async def done(self) -> int:
        """Its exit status, once it has ended and all that it said is heard. The caller keeps the deadline."""
        await asyncio.wait([self._hearing])
        while (code := self.code) is None:  # noqa: ASYNC110 (the kernel tells nobody)
            await asyncio.sleep(0.002)
        return code

    def kill(self) -> None:
        if self.process.returncode is None:  # else its number may be another's by now
            kill_group(self.pid)

    async def gone(self) -> None:
        """Ended, with its group, and no longer heard."""
        if self.process.returncode is None:
            self.kill()
            await group_gone(self.pid)
            await ended(self.process)
        self._hearing.cancel()
        await asyncio.gather(self._hearing, return_exceptions=True)

    async def _hear(self, descriptor: int) -> None:
        reader = asyncio.StreamReader()
        with os.fdopen(descriptor, "rb", 0) as pipe:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), pipe
            )
            with contextlib.closing(transport):
                while data := await reader.read(MOST_SAID):
                    self._said += data
                    del self._said[:-MOST_SAID]
