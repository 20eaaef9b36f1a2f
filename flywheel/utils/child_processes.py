"""Run child processes that end with this one: guards, private folders, output, memory."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

# Browsers and the servers of pages end with this process, with all their children, even after `kill -9`: the kernel
# kills the process when its parent dies (`setpriv --pdeathsig`, where there is one), and a guard, a shell that waits on
# a pipe held by this process alone, kills the whole process group.

_END_TIMEOUT_S = 5.0
# $0: the process group, $1: its folder, $2: "" or a text in the environment of all its processes, even of those that
# left the group. A line on the pipe means an orderly end; the pipe's end without one, that this process died.
_GUARD_SCRIPT = (
    'trap "" INT TERM HUP; read -r _ || { kill -9 -- "-$0"; '
    '[ -z "$2" ] || for one in $(grep -lsF -- "$2" /proc/[0-9]*/environ); do '
    'one=${one#/proc/}; kill -9 "${one%/environ}"; done; rm -rf "$1"; }'
)


def limit_command(command: Sequence[str], megabytes: int, more: str = "", redirect: str = "") -> list[str]:
    """Wrap a command so that its memory is limited and it dumps no core; it is killed when this process ends.

    command: program and arguments. megabytes: most private memory (MiB, `ulimit -d`). more: further limits, as shell
    code that ends in `;`. redirect: redirections, as shell code. Returns the command to run, by `/bin/sh`. Without the
    program `setpriv` it lives on after this process.
    """
    # The shell sets the limits and is replaced.
    shell = f'ulimit -c 0; ulimit -d "$0"; {more} exec "$@" {redirect}'
    setpriv = shutil.which("setpriv")
    killed_with_us = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
    return ["/bin/sh", "-c", shell, str(megabytes * 1024), *killed_with_us, *command]


class ProcessGuard:
    """End the process group `leader` (a process id) and remove its `folder` where this process dies before `release`.

    mark: a text in the environment of all its processes, by which those that left the group are ended too; "": none.
    """

    def __init__(self, leader: int, folder: Path, mark: str = "") -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD_SCRIPT, str(leader), str(folder), mark],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    async def release(self) -> None:
        """Stop guarding; may be called twice."""
        if not self._process.stdin.closed:
            with contextlib.suppress(OSError):
                self._process.stdin.write(b"well\n")
            self._process.stdin.close()
        await reap_process(self._process)


def kill_process_group(leader: int) -> None:
    """Kill (SIGKILL) all processes of a group; one that is gone, or another user's, is left alone.

    leader: its process id, which is the group's.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def kill_marked_processes(mark: str) -> None:
    """Kill (SIGKILL) all processes whose environment holds the text `mark`, which is not empty; those that are gone, or
    another user's, are left alone."""
    for pid in list_marked_processes(mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


async def wait_group_gone(leader: int) -> None:
    """Kill what is left of the process group of `leader` (a process id) until none is there, or 5 seconds are over.

    A dying process has its folder open until then.
    """
    await _kill_until_gone(lambda: list_process_group(leader), lambda: kill_process_group(leader))


async def wait_marked_gone(mark: str) -> None:
    """Kill the processes whose environment holds the text `mark`, which is not empty, until none is there, or 5 seconds
    are over."""
    await _kill_until_gone(lambda: list_marked_processes(mark), lambda: kill_marked_processes(mark))


async def _kill_until_gone(left: Callable[[], list[int]], kill: Callable[[], None]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_TIMEOUT_S):
            while left():
                kill()
                await asyncio.sleep(0.01)


async def reap_process(process: subprocess.Popen) -> None:
    """Wait for a killed `process` and reap it; one that the kernel cannot end within 5 seconds is left to it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_TIMEOUT_S):
            while process.poll() is None:  # noqa: ASYNC110 (the kernel tells nobody)
                await asyncio.sleep(0.002)


def list_process_group(leader: int) -> list[int]:
    """List the process ids of the group of `leader` (a process id), without dead ones that wait to be reaped."""
    found = []
    for told in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, _, leads = told.read_text().rsplit(")", 1)[1].split()[:3]
            if int(leads) == leader and state not in "ZX":
                found.append(int(told.parent.name))
    return found


def list_marked_processes(mark: str) -> list[int]:
    """List the process ids of those whose environment holds the text `mark`, whatever group they have moved to."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError, ValueError):
            if mark.encode() in environ.read_bytes():
                found.append(int(environ.parent.name))
    return found


# Each private folder has a lock that the kernel releases when the process that made it ends. So a folder left by a
# `kill -9` can be told from one in use even where process ids are reused, and is removed at the next start.

_FOLDER_PREFIX = "flywheel-{kind}-"
_FOLDER_KINDS = ("chromium", "server")
_LOCK_FILE = "owner.lock"
_MIN_AGE_S = 60.0  # a younger folder without a lock may be one that is just being made


class PrivateFolder:
    """Make a folder, at `path`, which lasts until `remove` or the end of this process. kind: chromium or server; it
    stands in the folder's name."""

    def __init__(self, kind: str = "chromium") -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX.format(kind=kind)))
        self._lock = os.open(self.path / _LOCK_FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove the folder; may be called twice. What a dying browser writes after that is removed at the next
        start."""
        lock, self._lock = self._lock, -1
        if lock < 0:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(lock)


def remove_abandoned_folders() -> list[Path]:
    """Remove the folders (`PrivateFolder`) whose owners are gone, as far as that can be done; returns them, by path.
    Folders of other users are left alone."""
    removed = list_abandoned_folders()
    for folder in removed:
        shutil.rmtree(folder, ignore_errors=True)
    return removed


def list_abandoned_folders() -> list[Path]:
    """List, by path, the folders (`PrivateFolder`) that `remove_abandoned_folders` would remove: of this user, whose
    owners are gone."""
    here = Path(tempfile.gettempdir())
    found = [folder for kind in _FOLDER_KINDS for folder in here.glob(_FOLDER_PREFIX.format(kind=kind) + "*")]
    return [folder for folder in sorted(found) if _is_abandoned(folder)]


def _is_abandoned(folder: Path) -> bool:
    try:
        if folder.stat().st_uid != os.getuid() or folder.is_symlink():
            return False
        lock = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        with contextlib.suppress(OSError):
            return time.time() - folder.stat().st_mtime > _MIN_AGE_S
        return False
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


_MB = 1 << 20


@dataclass(frozen=True)
class ProcessMemory:
    """Hold the memory of one process.

    kind: renderer (pages), gpu-process, utility, zygote; browser for the first one.

    mb: MiB of its own, with its share of what several processes map (PSS, proportional set size); or all that it maps
    (RSS), which is more, where that was enough to know.
    """

    pid: int
    kind: str
    mb: float


def measure_memory(pids: Iterable[int], *, one_mb: float = 0, all_mb: float = 0) -> dict[int, list[ProcessMemory]]:
    """Measure the memory of each process of `pids` and of all its descendants, by pid; an empty list for a lost one.

    One that ends meanwhile or may not be read is left out. one_mb, all_mb: MiB. Where no process of a family maps more
    than `one_mb`, and all together no more than `all_mb`, the mapped sizes are enough. Else the kernel is asked for the
    share of pages that several map, which takes up to a tenth of a second for a browser, and the browser waits
    meanwhile.
    """
    processes: dict[int, psutil.Process] = {}
    children: dict[int | None, list[psutil.Process]] = defaultdict(list)
    for process in psutil.process_iter(["ppid"]):
        processes[process.pid] = process
        children[process.info["ppid"]].append(process)
    found = {}
    for pid in pids:
        family, mapped, found[pid] = [processes[pid]] if pid in processes else [], {}, []
        for one in family:  # which grows meanwhile
            family += children[one.pid]
            with contextlib.suppress(psutil.Error):
                mapped[one] = one.memory_info().rss / _MB
        exact = max(mapped.values(), default=0) > one_mb or sum(mapped.values()) > all_mb
        for one, most in mapped.items():
            with contextlib.suppress(psutil.Error):
                words = ["--type=browser"] if one.pid == pid else one.cmdline()
                kinds = [word.removeprefix("--type=") for word in words if word.startswith("--type=")]
                mb = one.memory_full_info().pss / _MB if exact else most
                found[pid].append(ProcessMemory(one.pid, (kinds or [""])[0], mb))
    return found


def measure_nameless_files(pids: Iterable[int]) -> dict[int, float]:
    """Measure the open files of processes that have no name in any folder: deleted ones, and those in memory alone
    (memfd). Returns MiB by the number of the device that they lie on."""
    found: dict[tuple[int, int], float] = {}
    for pid in pids:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
            for one in descriptors:
                with contextlib.suppress(OSError):
                    if not (about := one.stat()).st_nlink and stat.S_ISREG(about.st_mode):
                        found[about.st_dev, about.st_ino] = about.st_blocks * 512 / _MB
    return {device: sum(mb for (on, _), mb in found.items() if on == device) for device, _ in found}


def measure_folder(folder: Path) -> float:
    """Measure what the files below `folder` take of the disk, in MiB; of an empty one, and of a folder, 4 KiB."""
    taken: dict[int, int] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):
                about = os.lstat(f"{place}/{name}")
                taken[about.st_ino] = max(about.st_blocks * 512, 4096)
    return sum(taken.values()) / _MB


MAX_OUTPUT_BYTES = 64_000  # bytes of output that are kept, the newest
_MAX_FILE_MB = 1024


class ChildProgram:
    """Run a program of a page's server: its output is bounded, and it ends with all that it started.

    command: program and arguments. working: its folder. environment: all of its variables; ours are not among them.
    megabytes: most private memory (MiB). file_mb: the largest file that it may write (MiB), 1 GiB at most. It must be
    made in the event loop's own thread, since the kernel ends it with the thread that started it. Raises OSError where
    it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        working: Path,
        environment: Mapping[str, str],
        megabytes: int,
        file_mb: int = _MAX_FILE_MB,
    ) -> None:
        limit = f"ulimit -f {min(file_mb, _MAX_FILE_MB) * 2048};"
        self.process = subprocess.Popen(
            limit_command(command, megabytes, limit),
            bufsize=0,
            cwd=working,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._said = bytearray()
        self._hearing = asyncio.create_task(self._hear())

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def code(self) -> int | None:
        """Exit status; None while it runs. It is not reaped before `gone`, so that its id stays its group's."""
        if self.process.returncode is not None:
            return self.process.returncode
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    @property
    def said(self) -> str:
        """Its output so far, the newest `MAX_OUTPUT_BYTES` of it."""
        return bytes(self._said).decode("utf-8", "replace").strip()

    @property
    def last_words(self) -> str:
        """The last lines of its output, in one line."""
        lines = [line.strip() for line in self.said.splitlines() if line.strip()]
        return " | ".join(lines[-5:])[-600:] or "it said nothing"

    async def done(self) -> int:
        """Wait for its end and the end of its output, and return its exit status. The caller keeps the deadline."""
        await asyncio.wait([self._hearing])
        while (code := self.code) is None:  # noqa: ASYNC110 (the kernel tells nobody)
            await asyncio.sleep(0.002)
        return code

    def kill(self) -> None:
        """Kill it with its group, without waiting; once it has ended nothing happens."""
        if self.process.returncode is None:  # else its number may be another's by now
            kill_process_group(self.pid)

    async def gone(self) -> None:
        """End it with its group, and stop reading its output."""
        if self.process.returncode is None:
            self.kill()
            await wait_group_gone(self.pid)
            await reap_process(self.process)
        self._hearing.cancel()
        await asyncio.gather(self._hearing, return_exceptions=True)

    async def _hear(self) -> None:
        reader = asyncio.StreamReader()
        with self.process.stdout as pipe:
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), pipe
            )
            with contextlib.closing(transport):
                while data := await reader.read(MAX_OUTPUT_BYTES):
                    self._said += data
                    del self._said[:-MAX_OUTPUT_BYTES]
