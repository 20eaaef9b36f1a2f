"""Start an isolated machine, call the computer server that runs inside it, and hold the settings of machines.

A machine sees the system's programs, its home and nothing else of the host; its only network is its own loopback. The
computer server is its first process, which the others can neither end nor inspect. It gets its listening socket as an
open descriptor, so that no path inside leads to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import socket
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import httpx
from pydantic import Field, model_validator

from flywheel.config.settings import SettingsBlock
from flywheel.envs import isolation
from flywheel.envs.computer import bwrap, home, launcher
from flywheel.envs.computer.home import MachineHome
from flywheel.envs.computer.launcher import BubblewrapProcess, ContainerProcess
from flywheel.envs.registry import BackendSettings
from flywheel.utils.errors import EnvError, EnvTimeout

log = logging.getLogger(__name__)
_OWN_PROGRAMS = ("Xvnc -displayfd", "openbox")
_TAR_BYTES = home.MAX_HOME_ENTRIES * 2**11  # of the entries' headers, in addition to the files' contents
_UNPACK_S = 10.0
_MODIFIED_TIME = "946684800"  # the year 2000: ZIP archives have no time before 1980
_GRACE_S = 5.0  # added to the time that a call waits inside the machine
_MAX_ANSWER = 2**26  # bytes


class MachineSettings(SettingsBlock):
    """Hold the limits of one isolated machine, what isolates it, and which host folders it reads."""

    memory_mb: int = Field(512, ge=32, le=65536)
    """Memory of all its processes and files, in MB. Where this user may make no cgroups only files are held to it."""
    home_mb: int = Field(64, ge=1, le=65536)
    """Size of its home folder, in MB."""
    processes: int = Field(128, ge=8, le=4096)
    """Processes and threads at once, at most. Without cgroups: not held to."""
    cores: float = Field(1.0, gt=0, le=64)
    """Processor cores that it may keep busy. Without cgroups: not held to."""
    start_s: float = Field(20.0, gt=0)
    """Seconds until it must have started."""
    reads: tuple[str, ...] = ()
    """More folders of this machine that its programs may read, such as an application's own in /etc or /opt."""
    walls: Literal["bubblewrap", "podman", "docker"] = "bubblewrap"
    """What keeps it apart: bubblewrap, or a container of an engine of this machine's."""
    image: str = Field("", pattern=r"^([A-Za-z0-9]\S*)?$")
    """Of its container, which the engine has; none: this machine's own programs, read-only, as under bubblewrap."""

    @model_validator(mode="after")
    def _an_image_is_a_containers(self) -> MachineSettings:
        if self.image and self.walls == "bubblewrap":
            raise ValueError("bubblewrap has no images: set walls to podman or docker, or leave image out")
        return self

    def missing(self) -> tuple[str, str]:
        """Explain why no machine can start here, and the fix; both "" where one can. The first call tries it."""
        if self.walls != "bubblewrap":
            return launcher.diagnose_container_engine(self.walls, self.image)
        why = isolation.explain_missing_bwrap()
        return (why, "apt-get install bubblewrap") if why else ("", "")


class TerminalSettings(BackendSettings):
    """Hold the settings of the back-end `terminal`: machines with a shell, Python and files, and no desktop."""

    timeout_s: float = Field(20.0, gt=0)
    """Seconds until a reset or a step must be done."""
    machine: MachineSettings = MachineSettings()
    """What each of them may use."""
    warm: int = Field(1, ge=0, le=64)
    """Machines that have started and wait for a task; about 30 MB each, as much again with a screen."""
    run_s: float = Field(10.0, gt=0, le=3600)
    """Seconds that a step waits for a command, which goes on then, or for Python code, which is interrupted. Below
    `timeout_s` by five seconds at least."""
    result_bytes: int = Field(16_384, ge=256, le=2**24)
    """Bytes that a function returns at most; of more the middle is left out, and a line says so."""
    tools_characters: int = Field(1000, ge=100)
    """Characters in which each observation tells of a task's MCP tools; of more than fit their names."""
    tools_idle_s: float = Field(120.0, gt=0)
    """Seconds after which the session with an MCP server ends that nothing is asked of; the next call begins anew."""
    wait_ms: float = Field(300.0, ge=0, le=60_000)
    """Milliseconds that the action `wait` waits, where it waits for no command."""


class ComputerSettings(TerminalSettings):
    """Hold the settings of the back-end `computer`: those of `terminal`, and of a desktop's screen."""

    machine: MachineSettings = MachineSettings(memory_mb=1536, home_mb=128, processes=512)  # as a browser needs
    """What each of them may use."""

    width: int = Field(800, ge=320, le=4096)
    """Of the screen, in pixels."""
    height: int = Field(600, ge=240, le=4096)
    """Of the screen, in pixels."""
    after_ms: float = Field(30.0, ge=0, le=10_000)
    """Milliseconds that a step waits at least, until its programs are at rest and the picture is taken."""
    within_ms: float = Field(2000.0, ge=0, le=60_000)
    """Milliseconds after which the picture is taken of a screen that goes on moving."""


class Machine:
    """Control one isolated machine, made by `Machine.start`; it ends with `close`, or when this process ends.

    begun: its processes. folder: its own folder on the host. home: reads its home folder from the host. home_bytes:
    size of the home.
    """

    def __init__(self, begun: BubblewrapProcess | ContainerProcess, folder: Path, home_bytes: int) -> None:
        self._begun, self._folder, self.home_bytes = begun, folder, home_bytes
        # verify: a unix socket needs no certificates, and reading those of the system takes 20 ms of a core.
        limits = httpx.Limits(max_connections=8)
        transport = httpx.AsyncHTTPTransport(verify=False, uds=str(folder / "guest"), limits=limits)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://guest")
        self.home: MachineHome

    @classmethod
    async def start(cls, chosen: MachineSettings, readable: Sequence[Path] = ()) -> Machine:
        """Start a fresh machine and wait until its computer server answers.

        readable: further host folders that it sees, read-only, at the same paths. Raises EnvError where it does not
        start, EnvTimeout where it is not ready within `start_s`.
        """
        way = BubblewrapProcess if chosen.walls == "bubblewrap" else ContainerProcess
        why, fix = await asyncio.to_thread(chosen.missing)
        if why:
            raise EnvError(f"no machine: {why}", where="computer", fix=fix)
        folder = Path(tempfile.mkdtemp(prefix="flywheel-machine-"))
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(str(folder / "guest"))
            (folder / bwrap.SERVED_FOLDER).mkdir()
            begun = await way.begin(chosen, [*readable, *map(Path, chosen.reads)], folder, listening)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError):  # such as too long a name of the folder, for a socket
                raise EnvError(f"a machine did not start: {error}", where=folder) from None
            raise
        finally:
            listening.close()
        made = cls(begun, folder, chosen.home_mb * 2**20)
        try:
            async with asyncio.timeout(chosen.start_s):
                if (home_folder := await begun.home()) is None:
                    complaint = " ".join((await begun.process.stderr.read()).decode("utf-8", "replace").split())
                    raise EnvError(f"a machine did not start: {complaint[-300:]}", where="computer")
                made.home = MachineHome(home_folder)
                await made.request("GET", "/health")  # opens the connection ahead of the first call
        except BaseException as error:
            await made.close()
            if isinstance(error, TimeoutError):
                raise EnvTimeout(f"a machine was not ready in {chosen.start_s:g} s", where="computer") from None
            raise
        made._heard = asyncio.create_task(_log_stderr(begun.process))
        return made

    async def call(self, path: str, body: Mapping[str, Any], wait_s: float = 0.0) -> dict[str, Any]:
        """POST a JSON body to the computer server and return its JSON answer.

        path: of the route, such as `/shell/run`. wait_s, and what is raised: as of `request`.
        """
        return json.loads(await self.request("POST", path, wait_s, content=json.dumps(body)))

    async def request(self, method: str, path: str, wait_s: float = 0.0, **given: Any) -> bytes:
        """Send a request to the computer server and return the body of its response.

        wait_s: seconds that the call itself may wait inside, to which the timeout adds five. given: further arguments
        of httpx's `stream`. Raises MachineRefused where the server refuses, which programs inside may cause; EnvError
        where the machine is gone or the body is too large; EnvTimeout where it does not answer.
        """
        try:
            async with asyncio.timeout(wait_s + _GRACE_S):
                async with self._client.stream(method, path, timeout=None, **given) as answer:
                    body = bytearray()
                    async for part in answer.aiter_bytes():
                        body += part
                        if len(body) > _MAX_ANSWER:
                            raise EnvError(f"the guest's answer has more than {_MAX_ANSWER} bytes", where=path)
        except TimeoutError:
            raise EnvTimeout(f"the machine did not answer in {wait_s + _GRACE_S:g} s", where=path) from None
        except (httpx.HTTPError, RuntimeError) as error:
            raise EnvError(f"the machine is gone: {error}", where=path) from None
        if answer.status_code >= 400:
            raise MachineRefused(_refusal_reason(body), where=path)
        return bytes(body)

    async def stream(self, path: str, body: Mapping[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection through the computer server: to a port, a program, a terminal or VNC.

        path, body: of the POST request that asks for the connection, such as `/port`. Raises MachineRefused where the
        server refuses, EnvError where the machine is gone, EnvTimeout where it does not answer within ten seconds.
        """
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._folder / "guest"))
        except OSError as error:
            raise EnvError(f"the machine is gone: {error}", where=path) from None
        data = json.dumps(body).encode()
        writer.write(f"POST {path} HTTP/1.1\r\nHost: guest\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        try:
            async with asyncio.timeout(_GRACE_S * 2):
                head = await reader.readuntil(b"\r\n\r\n")
                if head.split(b" ", 2)[1] != b"101":
                    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:"))
                    raise MachineRefused(_refusal_reason(await reader.readexactly(min(length, 2**16))), where=path)
        except BaseException as error:
            writer.close()
            if isinstance(error, TimeoutError):
                raise EnvTimeout("the machine did not answer", where=path) from None
            if isinstance(error, OSError | EOFError):
                raise EnvError(f"the machine is gone: {error}", where=path) from None
            raise
        return reader, writer

    async def serve(self, port: int, start: Callable[[Path], Awaitable[None]]) -> None:
        """Make a service that runs on the host reachable at a port inside the machine.

        start: starts the service at the path of a unix socket. Raises MachineRefused where the port is taken, what
        `start` raises, and as `request`.
        """
        path = self._folder / bwrap.SERVED_FOLDER / str(port)
        await start(path)
        path.chmod(0o666)  # the machine's user may be another one; nobody else can reach the folder
        await self.call("/forward", {"port": port, "path": f"/run/{bwrap.SERVED_FOLDER}/{port}"})

    async def put(self, path: str, content: bytes) -> None:
        """Write a file of the home with a fixed modification time; make a folder where the path ends in /.

        Call it only before any program of the task has run in the machine: the server follows links. Raises as
        `request`.
        """
        await self.request("PUT", "/files/write", params={"path": path, "modified": _MODIFIED_TIME}, content=content)

    async def output(self, words: Sequence[str], wait_s: float, limit: int) -> bytes:
        """Run a program in the machine and return its output, `limit` bytes at most, after which it is killed.

        words: its command. Raises MachineRefused where it does not start, EnvTimeout where it does not end in `wait_s`
        seconds, and as `stream`.
        """
        reader, writer = await self.stream("/program", {"command": list(words)})
        printed = bytearray()
        try:
            async with asyncio.timeout(wait_s):
                while len(printed) < limit and (part := await reader.read(limit - len(printed))):
                    printed += part
        except TimeoutError:
            raise EnvTimeout(f"{words[0]} did not end in {wait_s:g} s", where="computer") from None
        finally:
            writer.close()
        return bytes(printed)

    async def checkpoint(self) -> bytes:
        """Save the home as a tar file; equal homes give equal bytes. Running programs are not saved.

        Raises EnvError for a home above its size limit, as sparse files can make it, and for one with more than
        MAX_HOME_ENTRIES.
        """
        return await asyncio.to_thread(self.home.archive, self.home_bytes + _TAR_BYTES)

    async def restore(self, checkpoint: bytes) -> None:
        """Unpack a saved home into the home of this fresh machine.

        Raises MachineRefused where it does not fit, and as `request`.
        """
        await self.request("PUT", "/files/unpack", _UNPACK_S, content=checkpoint)

    def programs(self) -> list[str]:
        """List the command lines that run in the machine, except its server, shell, Python, X and window manager."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                text = words.decode("utf-8", "replace").strip()
                if text and not text.startswith(_OWN_PROGRAMS) and bwrap.SERVER_IN_MACHINE not in text:
                    found.append(text)
        return sorted(found)

    def processes(self) -> list[int]:
        """List the ids of the machine's processes, as the host numbers them."""
        return self._begun.processes()

    @property
    def memory(self) -> int:
        """Return the bytes of memory that the machine uses, files included; 0 where no cgroup of it is visible."""
        return self._begun.group.memory if self._begun.group else 0

    async def close(self) -> None:
        """Kill all processes of the machine and remove its folder; may be called twice."""
        await self._begun.close()
        if hasattr(self, "_heard"):
            self._heard.cancel()
        if hasattr(self, "home"):
            self.home.close()
        await self._client.aclose()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


class MachineRefused(EnvError):
    """Signal that the computer server refused a request, and why: a missing file, a port that nobody listens at."""


async def _log_stderr(process: asyncio.subprocess.Process) -> None:
    while line := await process.stderr.read(2**12):
        log.debug("a machine says: %s", line.decode("utf-8", "replace").rstrip())


def _refusal_reason(body: bytes | bytearray) -> str:
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return str(json.loads(body)["error"])[:500]
    return "the guest refused"
