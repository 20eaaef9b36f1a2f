"""A place apart from this machine for a desktop: the guest under bubblewrap, with a home folder of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from flywheel.computer.home import Home
from flywheel.errors import EnvError, EnvTimeout
from flywheel.sandbox import isolation

HOME = "/home/user"
_GUEST = Path(__file__).resolve().parent.parent / "guest"
_PYTHON = os.path.realpath(sys.executable)  # the environment's own would not be there
_FONTS = Path("/var/cache/fontconfig")  # without it each program looks at each font anew: a third of a second
_START_S, _ANSWER_S = 10.0, 5.0
_ENVIRONMENT = {
    "HOME": HOME,
    "USER": "user",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class Inside:
    """Made by `Inside.start`; ended by `close`, and by the death of this process."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process, self._folder = process, folder
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(folder / "guest")), base_url="http://guest"
        )
        self.home = Home(os.open(folder / "home", os.O_RDONLY | os.O_DIRECTORY))

    @classmethod
    async def start(cls, readable: Sequence[Path] = ()) -> Inside:
        """A fresh one. readable: more of this machine that is seen there, at the same paths.

        Raises EnvError where it does not start.
        """
        if why := isolation.missing():
            raise EnvError(f"no desktop without bubblewrap: {why}", fix="apt-get install bubblewrap")
        folder = Path(tempfile.mkdtemp(prefix="flywheel-desktop-"))
        (folder / "home").mkdir()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(folder / "guest"))
            listening.listen(64)  # what is asked before the guest listens waits for it
            command = [_PYTHON, "-I", str(_GUEST), "--fd", str(listening.fileno())]
            process = await run_inside(command, folder / "home", readable, [listening.fileno()])
        made = cls(process, folder)
        try:
            await made.request("GET", "/health", _START_S)
        except BaseException:
            await made.close()
            raise
        return made

    async def request(self, method: str, path: str, wait_s: float = 0.0, **given: Any) -> bytes:
        """The answer's body. wait_s: what the call waits for by itself.

        Raises EnvError where the guest refuses or is gone, EnvTimeout where it does not answer.
        """
        limit_s = wait_s + _ANSWER_S
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._client.request(method, path, timeout=None, **given)
        except TimeoutError:
            raise EnvTimeout(f"the desktop did not answer in {limit_s:g} s", where=path) from None
        except (httpx.HTTPError, RuntimeError) as error:
            raise EnvError(f"the desktop is gone: {error}", where=path) from None
        if answer.status_code >= 400:
            raise EnvError(_reason(answer), where=path)
        return answer.content

    async def call(self, path: str, body: Mapping[str, Any], wait_s: float = 0.0) -> dict[str, Any]:
        """POST to the guest; its JSON. Raises as `request` does."""
        return json.loads(await self.request("POST", path, wait_s, content=json.dumps(body)))

    async def stream(self, path: str, body: Mapping[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that the guest hands on (`/desktop/vnc`). Raises EnvError where it refuses."""
        reader, writer = await asyncio.open_unix_connection(str(self._folder / "guest"))
        data = json.dumps(body).encode()
        writer.write(f"POST {path} HTTP/1.1\r\nHost: guest\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        try:
            async with asyncio.timeout(_ANSWER_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except (TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            writer.close()
            raise EnvTimeout(f"the desktop did not answer: {error}", where=path) from None
        if head.split(b" ", 2)[1] != b"101":
            writer.close()
            raise EnvError("the guest refused the connection", where=path)
        return reader, writer

    def write(self, path: str, content: bytes) -> None:
        """A file in the home, before anything that is not ours has run there."""
        target = self._folder / "home" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        os.utime(target, (0, 0))  # file managers show it

    async def close(self) -> None:
        """End all of it. It may be called twice."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self.home.close()
        await self._client.aclose()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


async def run_inside(
    command: Sequence[str], home: Path, readable: Sequence[Path], descriptors: Sequence[int]
) -> asyncio.subprocess.Process:
    """A command under bubblewrap that sees this folder as its home, and keeps these descriptors."""
    given = ["env", "-i", *(f"{name}={value}" for name, value in _ENVIRONMENT.items()), *command]
    words = isolation.confined(given, Path(HOME), readable=[_GUEST, _FONTS, *readable])
    at = words.index("--chdir")
    words[at:at] = ["--uid", "1000", "--gid", "1000", "--tmpfs", "/run", "--bind", str(home), HOME]
    return await asyncio.create_subprocess_exec(
        *words, pass_fds=tuple(descriptors), start_new_session=True,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"])[:500]
    except (ValueError, TypeError, KeyError):
        return f"the guest refused: {answer.status_code}"
