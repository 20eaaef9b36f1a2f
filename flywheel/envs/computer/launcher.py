"""Start and end the processes of an isolated machine, under bubblewrap or as a container of podman or docker."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import json
import os
import resource
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from flywheel.envs import cgroups, isolation
from flywheel.envs.cgroups import Cgroup
from flywheel.envs.computer import bwrap
from flywheel.envs.computer_server.init_process import OPEN_FILE_LIMITS, USER_LIMITS
from flywheel.utils.errors import EnvError, last_line

if TYPE_CHECKING:
    from flywheel.envs.computer.machine import MachineSettings


async def receive_home_descriptor(ours: socket.socket) -> int | None:
    """Receive the descriptor of a machine's open home folder, which its computer server sends once it has started.

    ours: the host's end of the connection. Returns None where the machine ends first.
    """
    ours.setblocking(False)
    loop, there = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(ours, there.set)
    try:
        await there.wait()
    finally:
        loop.remove_reader(ours)
    try:
        _, descriptors, _, _ = socket.recv_fds(ours, 16, 1)
    except ConnectionError:
        return None
    if not descriptors:
        return None
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


# Bubblewrap: a machine is a subprocess of this process, in a cgroup where this user may create one.


class BubblewrapProcess:
    """Hold a machine that runs under bubblewrap; made by `begin`.

    process: of bubblewrap; all processes of the machine end with it, and it ends with this process. group: the
    machine's cgroup; None where there are no cgroups. ours: the host's end of the connection to its server.
    """

    def __init__(self, process: asyncio.subprocess.Process, group: Cgroup | None, ours: socket.socket) -> None:
        self.process, self.group, self._ours = process, group, ours

    @classmethod
    async def begin(
        cls, chosen: MachineSettings, readable: Sequence[Path], folder: Path, listening: socket.socket
    ) -> BubblewrapProcess:
        """Start a machine under bubblewrap.

        chosen: its limits. readable: further host paths that it sees, read-only. folder: the machine's own folder on
        the host. listening: the bound socket that its server answers at. Raises OSError where it cannot be started.
        """
        group = cgroups.create_cgroup(chosen.memory_mb, chosen.processes, chosen.cores)
        (ours, theirs), rules = socket.socketpair(), bwrap.open_seccomp_program()
        try:
            descriptors = (listening.fileno(), theirs.fileno(), rules)
            command = bwrap.build_machine_command(
                readable, chosen.home_mb * 2**20, folder / bwrap.SERVED_FOLDER, *descriptors
            )
            process = await asyncio.create_subprocess_exec(
                *(group.wrap_command(command) if group else command),
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                pass_fds=descriptors, env={}, start_new_session=True, limit=2**16,
            )  # fmt: skip
        except BaseException:
            ours.close()
            if group is not None:
                group.kill_and_remove()
            raise
        finally:
            theirs.close()
            os.close(rules)
        return cls(process, group, ours)

    async def home(self) -> int | None:
        """Receive the descriptor of the machine's home, before other programs run there; None where it ends first."""
        return await receive_home_descriptor(self._ours)

    def processes(self) -> list[int]:
        """List the ids of the machine's processes, as the host numbers them."""
        if self.group is not None:
            return self.group.processes()
        with contextlib.suppress(psutil.Error):
            return [process.pid for process in psutil.Process(self.process.pid).children(recursive=True)]
        return []

    async def close(self) -> None:
        """Kill all processes of the machine and remove its cgroup; may be called twice."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, 9)
        await self.process.wait()
        self._ours.close()
        group, self.group = self.group, None
        if group is not None:
            await asyncio.to_thread(group.kill_and_remove)


# Podman and docker.

HANDSHAKE_SOCKET = "hello"  # socket in the served folder that a machine's server connects to
EMPTY_IMAGE = "localhost/flywheel-empty:1"  # our own image: empty folders, over which the host's programs are mounted
_IMAGE_FOLDERS = ("dev", "etc", "home", "opt", "proc", "run", "sys", "tmp", "var")
_OLDEST_PYTHON = (3, 9)  # that the computer server runs under
_ENGINE_S = 60.0
# Podman maps a machine's users to ids from here on, so that none of them is a user of the host.
_FIRST_USER_ID, _N_USER_IDS = 0x70000000, 65536
_USER_ID = 1000
# Processes of one user on all machines: podman cannot allow more where it lacks the rights of a full root.
_MAX_PROCESSES = 32768
# Every user may write the second one, and docker has no option that hides it.
_SYS_FOLDER, _PRESSURE_FOLDER = "/sys", "/proc/pressure"
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")  # engines pass these on


@functools.cache
def diagnose_container_engine(engine: str, image: str) -> tuple[str, str]:
    """Explain why an engine cannot start a machine here, and the fix; both "" where it can. A container is tried.

    engine: podman or docker. image: as in the settings; flywheel's own ("") is made where it is missing, no other is
    pulled.
    """
    if shutil.which(engine) is None:
        return f"{engine} is not installed", f"install {engine}, or set machine.walls to bubblewrap"
    if why := _run_engine([engine, "ps", "--quiet"]):
        return f"{engine} does not work here: {why}", f"see that `{engine} ps` works for this user"
    if why := _run_engine([engine, "image", "inspect", image or EMPTY_IMAGE]):
        if image:
            return f"{engine} has no image {image}: {why}", f"{engine} pull {image}, or build it: no run pulls one"
        if why := _run_engine([engine, "import", "-", EMPTY_IMAGE], _empty_image()):
            return f"{engine} imports no image: {why}", f"see that `{engine} import` works for this user"
    with tempfile.TemporaryDirectory(prefix="flywheel-machine-") as folder:
        words = [*_isolation_options(engine, Path(folder)), *_volume_options(image, ()), *_python_options(image)]
        look = f"import sys; sys.version_info >= {_OLDEST_PYTHON} or sys.exit('Python is older than {_OLDEST_PYTHON}')"
        if why := _run_engine([*words, "-c", look]):
            return f"{engine} runs no Python in {image or EMPTY_IMAGE}: {why}", "see docs/computer.md#containers"
    return "", ""


def build_container_command(chosen: MachineSettings, name: str, readable: Sequence[Path], folder: Path) -> list[str]:
    """Build the engine's command that starts a machine in a container.

    chosen: engine, image and limits. name: of the container. readable: further host paths that it sees, read-only.
    folder: the machine's own folder on the host, into which its system call filter is written.
    """
    engine, image, memory = chosen.walls, chosen.image, f"{chosen.memory_mb}m"
    words = [*_isolation_options(engine, folder), "--name", name, "--memory", memory, "--memory-swap", memory]
    words += ["--pids-limit", str(chosen.processes), "--cpus", f"{chosen.cores:g}"]
    written = isolation.TMPFS_FOLDERS if image else bwrap.list_written_folders()
    for place in (*written, bwrap.MACHINE_HOME):
        words += _tmpfs_options(engine, place, chosen.home_mb * 2**20)
    served = f"{folder / bwrap.SERVED_FOLDER}:/run/{bwrap.SERVED_FOLDER}:ro"
    words += [*_volume_options(image, readable), "--volume", served]
    words += ["--workdir", bwrap.MACHINE_HOME, *_python_options(image), bwrap.SERVER_IN_MACHINE]
    return [*words, "--hello", f"/run/{bwrap.SERVED_FOLDER}/{HANDSHAKE_SOCKET}"]


def _isolation_options(engine: str, folder: Path) -> list[str]:
    """Build the options of a container that is removed at its end, without network, capabilities or a writable root."""
    rules = folder / "rules.json"
    rules.write_text(json.dumps(bwrap.seccomp_profile()), encoding="ascii")
    own = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = _MAX_PROCESSES if own == resource.RLIM_INFINITY else min(own, _MAX_PROCESSES)
    words = [engine, "run", "--rm", "--pull", "never", "--network", "none", "--hostname", "computer"]
    words += ["--read-only", "--cap-drop", "ALL", "--log-driver", "none", "--ipc", "private"]
    words += ["--ulimit", "nofile={}:{}".format(*OPEN_FILE_LIMITS), "--ulimit", f"nproc={most}:{most}"]
    for option in ("no-new-privileges", "label=disable", f"seccomp={rules}"):
        words += ["--security-opt", option]
    if engine == "podman":
        words += ["--read-only-tmpfs=false", "--no-hosts", "--security-opt", f"mask={_SYS_FOLDER}:{_PRESSURE_FOLDER}"]
    else:
        words += ["--tmpfs", f"{_SYS_FOLDER}:ro,size=4k,mode=0"]
    return [*words, *_user_options(engine)]


def _user_options(engine: str) -> list[str]:
    """Build the options of the user: never root, inside or on the host; this process's user where that is not root."""
    root = os.geteuid() == 0
    if engine == "docker":
        return ["--user", f"{_USER_ID}:{_USER_ID}" if root else f"{os.geteuid()}:{os.getegid()}"]
    ids = f"0:{_FIRST_USER_ID}:{_N_USER_IDS}"
    mapped = ["--uidmap", ids, "--gidmap", ids] if root else ["--userns", f"keep-id:uid={_USER_ID},gid={_USER_ID}"]
    return [*mapped, "--user", f"{_USER_ID}:{_USER_ID}"]


def _tmpfs_options(engine: str, place: str, size_bytes: int) -> list[str]:
    """Build the options of a folder in memory that only the user may write."""
    if engine == "podman":
        options = f"tmpfs-size={size_bytes},tmpfs-mode=0700,chown=true,notmpcopyup"
        return ["--mount", f"type=tmpfs,destination={place},{options}"]
    user, group = _user_options(engine)[1].split(":")
    return ["--tmpfs", f"{place}:rw,exec,nosuid,nodev,size={size_bytes},mode=0700,uid={user},gid={group}"]


def _volume_options(image: str, readable: Sequence[Path]) -> list[str]:
    """Build the options that mount host paths, read-only; an image has programs of its own in place of the host's."""
    paths = [*([] if image else bwrap.list_system_paths()), *map(str, readable)]
    seen = {path: path for path in paths if Path(path).exists()}
    seen |= {place: str(file) for place, file in bwrap.list_etc_files().items()}
    seen[bwrap.SERVER_IN_MACHINE] = str(bwrap.SERVER_SOURCES)
    folders, files = ((), ()) if image else isolation.list_secrets()
    seen |= dict.fromkeys(files, "/dev/null")
    hidden = [word for path in folders for word in ("--tmpfs", f"{path}:ro,size=4k,mode=0")]
    return [*(word for place, path in seen.items() for word in ("--volume", f"{path}:{place}:ro")), *hidden]


def _python_options(image: str) -> list[str]:
    """Build the options and words that start Python, with its environment variables, in the image."""
    python = Path(os.path.realpath(sys.executable))
    variables = bwrap.build_machine_environment(*([] if image else [python.parent]))
    variables |= dict.fromkeys((*_PROXY_VARIABLES, *map(str.upper, _PROXY_VARIABLES)), "")
    words = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    return [*words, "--entrypoint", "python3" if image else str(python), image or EMPTY_IMAGE, "-I"]


def _run_engine(words: Sequence[str], given: bytes = b"") -> str:
    """Run an engine's command; returns why it failed, "" where it did not."""
    try:
        done = subprocess.run(words, input=given, capture_output=True, timeout=_ENGINE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if not done.returncode:
        return ""
    return last_line(done.stderr.decode("utf-8", "replace")) or f"exit status {done.returncode}"


def _empty_image() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in _IMAGE_FOLDERS:
            about = tarfile.TarInfo(name)
            about.type, about.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(about)
    return out.getvalue()


# Containers. The computer server connects to a socket that is mounted into the container, receives its listening socket
# there, and exits when that connection ends: no container is left when this process or the engine's command is killed.

_CLEANUP_S = 20.0  # for an engine to remove a container
_LIMIT_SCRIPT = ";".join(
    f"echo {most} >/proc/sys/user/{name}" for name, most in {**USER_LIMITS, "max_user_namespaces": 0}.items()
)


class ContainerProcess:
    """Hold a machine that runs in a container; made by `begin`.

    process: the engine's command, which ends after the container. named: (engine, name of the container). hello: the
    socket that the computer server connects to. hands: the listening socket that it is sent there. group: the
    container's cgroup; None where it cannot be seen.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, named: tuple[str, str], hello: socket.socket, hands: socket.socket
    ) -> None:
        self.process, self._named, self._hello, self._hands = process, named, hello, hands
        self._ours: socket.socket | None = None
        self.group: Cgroup | None = None
        self._guest = self._held = -1

    @classmethod
    async def begin(
        cls, chosen: MachineSettings, readable: Sequence[Path], folder: Path, listening: socket.socket
    ) -> ContainerProcess:
        """Start a machine in a container; arguments and errors as of `BubblewrapProcess.begin`."""
        hello, hands = socket.socket(socket.AF_UNIX), listening.dup()
        path = folder / bwrap.SERVED_FOLDER / HANDSHAKE_SOCKET
        try:
            hello.bind(str(path))
            path.chmod(0o666)  # the container's user is another one
            hello.listen(1)
            name = f"flywheel-{os.getpid()}-{secrets.token_hex(4)}"
            words = build_container_command(chosen, name, readable, folder)
            process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE, start_new_session=True, limit=2**16,
                cwd=folder,  # podman's monitor writes a file here where memory runs out
            )  # fmt: skip
        except BaseException:
            hello.close()
            hands.close()
            raise
        return cls(process, (chosen.walls, name), hello, hands)

    async def home(self) -> int | None:
        """Connect to the computer server, set limits, receive the home's descriptor; None where the machine ends first.

        Raises EnvError where the home cannot be read from here, or limits cannot be set.
        """
        if not await self._met():
            return None
        self._guest = struct.unpack("iII", self._ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        self._held = os.pidfd_open(self._guest)
        self.group = cgroups.find_own_cgroup(self._guest)
        await self._limit()
        socket.send_fds(self._ours, [b"listen"], [self._hands.fileno()])
        self._hands.close()
        home = await receive_home_descriptor(self._ours)
        if home is not None:
            _check_home_readable(home, self._named[0])
        return home

    def processes(self) -> list[int]:
        """List the process ids of the machine, as `BubblewrapProcess.processes` does."""
        if self.group is not None:
            return self.group.processes()
        with contextlib.suppress(psutil.Error, OSError):
            signal.pidfd_send_signal(self._held, 0)  # it is alive, so that the id is still its own
            return [self._guest, *(process.pid for process in psutil.Process(self._guest).children(recursive=True))]
        return []

    async def close(self) -> None:
        """Kill all processes and wait until the container is gone; may be called twice."""
        if self.group is not None:
            await asyncio.to_thread(self.group.kill)
        if self._held >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._held, signal.SIGKILL)
            os.close(self._held)
            self._held = -1
        elif self.process.returncode is None:  # the server never connected: only the engine knows what runs
            await self._removed()
        for one in (self._ours, self._hello, self._hands):
            if one is not None:
                one.close()
        try:
            await asyncio.wait_for(self.process.wait(), _CLEANUP_S)
        except TimeoutError:
            await self._removed()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _met(self) -> bool:
        """Accept the computer server's connection, and no other; False where the engine's command ends first."""
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
        """Limit for this machine what the kernel counts per user, where the container has a user namespace of its own.

        The host does it, since the engine may lack the right to let the computer server do it.
        """
        if _user_namespace(self._guest) == _user_namespace(os.getpid()):
            return
        words = ["nsenter", f"--user=/proc/{self._guest}/ns/user", "sh", "-ec", _LIMIT_SCRIPT]
        done = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.PIPE)
        _, output = await done.communicate()
        if done.returncode:
            raise EnvError(f"a machine's limits cannot be set: {output.decode('utf-8', 'replace').strip()[-200:]}")

    async def _removed(self) -> None:
        quiet = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.DEVNULL)
        engine, name = self._named
        done = await asyncio.create_subprocess_exec(engine, "rm", "--force", name, **quiet)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), _CLEANUP_S)


def _user_namespace(pid: int) -> int:
    return Path(f"/proc/{pid}/ns/user").stat().st_ino


def _check_home_readable(home: int, name: str) -> None:
    try:
        os.listdir(home)
    except PermissionError:
        os.close(home)
        raise EnvError(
            f"{name} gives a machine's files to a user whose files cannot be read from here",
            where="computer",
            fix="let machine.walls be podman, or let docker run without namespaces of users",
        ) from None
