"""Run child processes that end with this one, with all that they started, and measure their memory and files."""

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
# kills the process when its parent dies (by `setpriv --pdeathsig`, where that program exists), and a guard, a shell
# that waits on a pipe which only this process holds, kills the whole process group.

_END_TIMEOUT_S = 5.0
# $0: the process group, $1: its folder, $2: "" or a text in the environment of all its processes, even of those that
# left the group. A line on the pipe means an orderly end; the end of the pipe without a line, that this process died.
_GUARD_SCRIPT = (
    'trap "" INT TERM HUP; read -r _ || { kill -9 -- "-$0"; '
    '[ -z "$2" ] || for one in $(grep -lsF -- "$2" /proc/[0-9]*/environ); do '
    'one=${one#/proc/}; kill -9 "${one%/environ}"; done; rm -rf "$1"; }'
)


def limit_command(command: Sequence[str], megabytes: int, more: str = "", redirect: str = "") -> list[str]:
    """Wrap a command so that its memory is limited and it is killed when the thread that started it ends.

    command: program and arguments. megabytes: most private memory (MiB, `ulimit -d`). more: further limits, as shell
    code that ends in `;`. redirect: redirections, as shell code. Returns the command to run, by `/bin/sh`: a `command`
    that cannot be started ends with exit status 126 or 127. It dumps no core. Without the program `setpriv` the command
    survives this process.
    """
    # The shell sets the limits, then exec replaces it by the command.
    shell = f'ulimit -c 0; ulimit -d "$0"; {more} exec "$@" {redirect}'
    setpriv = shutil.which("setpriv")
    killed_with_us = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
    return ["/bin/sh", "-c", shell, str(megabytes * 1024), *killed_with_us, *command]


class ProcessGuard:
    """Start a shell that kills a process group and removes its folder if this process dies before `release`.

    leader: process id of the group's leader. folder: removed with its contents. mark: a text in the environment of all
    its processes, by which the guard also kills those that left the group; "": none. Raises OSError where no process
    can be started.
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
        """Stop guarding, and wait up to 5 seconds for the guard's end; may be called twice."""
        if not self._process.stdin.closed:
            with contextlib.suppress(OSError):
                self._process.stdin.write(b"well\n")
            self._process.stdin.close()
        await reap_process(self._process)


def kill_process_group(leader: int) -> None:
    """Kill (SIGKILL) all processes of a group; a group that has ended, or of another user, is ignored.

    leader: process id of its leader, which is the group's id.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def kill_marked_processes(mark: str) -> None:
    """Kill (SIGKILL) all processes whose environment contains the text `mark`, which must not be empty.

    Processes that have ended, or of another user, are ignored.
    """
    for pid in list_marked_processes(mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


async def wait_group_gone(leader: int) -> None:
    """Kill (SIGKILL) the process group of `leader` (a process id), and wait up to 5 seconds until none is left.

    Until then a dying process may have files of its folder open.
    """
    await _kill_until_gone(lambda: list_process_group(leader), lambda: kill_process_group(leader))


async def wait_marked_gone(mark: str) -> None:
    """Kill the processes as `kill_marked_processes` does, and wait up to 5 seconds until none is left."""
    await _kill_until_gone(lambda: list_marked_processes(mark), lambda: kill_marked_processes(mark))


async def _kill_until_gone(left: Callable[[], list[int]], kill: Callable[[], None]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_TIMEOUT_S):
            while left():
                kill()
                await asyncio.sleep(0.01)


async def reap_process(process: subprocess.Popen) -> None:
    """Wait up to 5 seconds for the end of a killed `process`, a child of this one, and reap it if it has ended."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_TIMEOUT_S):
            while process.poll() is None:  # noqa: ASYNC110 (there is no event to wait for)
                await asyncio.sleep(0.002)


def list_process_group(leader: int) -> list[int]:
    """List the process ids of the group of `leader` (a process id), without zombies."""
    found = []
    for told in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, _, leads = told.read_text().rsplit(")", 1)[1].split()[:3]
            if int(leads) == leader and state not in "ZX":
                found.append(int(told.parent.name))
    return found


def list_marked_processes(mark: str) -> list[int]:
    """List the ids of processes whose environment contains the text `mark`, which must not be empty.

    They may have left their group. Processes that may not be read are left out.
    """
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError, ValueError):
            if mark.encode() in environ.read_bytes():
                found.append(int(environ.parent.name))
    return found


# Each private folder has a lock that the kernel releases when its owner ends. So a folder that a `kill -9` left behind
# can be told from one in use, even where process ids are reused, and is removed at the next start.

_FOLDER_PREFIX = "flywheel-{kind}-"
_FOLDER_KINDS = ("chromium", "server")
_LOCK_FILE = "owner.lock"
_MIN_AGE_S = 60.0  # a younger folder without a lock may belong to a process that is about to lock it


class PrivateFolder:
    """Make a temporary folder, at `path`, and own it until `remove` or the end of this process.

    kind: chromium or server, part of the folder's name. Raises OSError where it cannot be made.
    """

    def __init__(self, kind: str = "chromium") -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX.format(kind=kind)))
        self._lock = os.open(self.path / _LOCK_FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove the folder; may be called twice.

        What a dying browser writes there afterwards is left to `remove_abandoned_folders`.
        """
        lock, self._lock = self._lock, -1
        if lock < 0:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(lock)


def remove_abandoned_folders() -> list[Path]:
    """Remove this user's `PrivateFolder` folders whose owners have ended; return the paths of all found, sorted.

    What cannot be removed stays, without an error.
    """
    removed = list_abandoned_folders()
    for folder in removed:
        shutil.rmtree(folder, ignore_errors=True)
    return removed


def list_abandoned_folders() -> list[Path]:
    """List the paths of this user's `PrivateFolder` folders whose owners have ended, sorted. One without a lock file,
    as while it is being made, counts once it has not changed for a minute."""
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

    kind: Chromium's process type: renderer (pages), gpu-process, utility, zygote; browser for the first process; "" for
    a process without a type. mb: MiB of its own memory and its share of memory that several processes map (PSS,
    proportional set size); or its resident size (RSS), which is larger, where that is exact enough.
    """

    pid: int
    kind: str
    mb: float


def measure_memory(pids: Iterable[int], *, one_mb: float = 0, all_mb: float = 0) -> dict[int, list[ProcessMemory]]:
    """Measure the memory of each process of `pids` and of all its descendants.

    one_mb, all_mb: MiB. If no process of a family has a resident size above `one_mb`, nor all together above `all_mb`,
    these sizes are returned. Else the proportional size is measured, which takes up to a tenth of a second for a
    browser, and stops the browser meanwhile. Returns, by the pid of `pids`, its own memory and that of its descendants;
    an empty list if it has ended. A process that ends meanwhile or may not be read is left out.
    """
    processes: dict[int, psutil.Process] = {}
    children: dict[int | None, list[psutil.Process]] = defaultdict(list)
    for process in psutil.process_iter(["ppid"]):
        processes[process.pid] = process
        children[process.info["ppid"]].append(process)
    found = {}
    for pid in pids:
        family, mapped, found[pid] = [processes[pid]] if pid in processes else [], {}, []
        for one in family:  # the loop appends to `family`
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
    """Measure the open files of processes that are in no folder: deleted files, and files in memory (memfd).

    pids: of the processes; those that have ended or may not be read are left out. Returns MiB by device number.
    """
    found: dict[tuple[int, int], float] = {}
    for pid in pids:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
            for one in descriptors:
                with contextlib.suppress(OSError):
                    if not (about := one.stat()).st_nlink and stat.S_ISREG(about.st_mode):
                        found[about.st_dev, about.st_ino] = about.st_blocks * 512 / _MB
    return {device: sum(mb for (on, _), mb in found.items() if on == device) for device, _ in found}


def measure_folder(folder: Path) -> float:
    """Measure the disk space of files and folders below `folder`, in MiB.

    Each takes at least 4 KiB, and hard links to one file count once. What cannot be read is left out, so a missing
    folder has 0.
    """
    taken: dict[int, int] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):
                about = os.lstat(f"{place}/{name}")
                taken[about.st_ino] = max(about.st_blocks * 512, 4096)
    return sum(taken.values()) / _MB


MAX_OUTPUT_BYTES = 64_000  # newest bytes of output that are kept
_MAX_FILE_MB = 1024


class ChildProgram:
    """Run a program, such as the server of a page, with bounded output; it ends with all processes that it started.

    command: program and arguments. working: its working directory. environment: all of its variables; those of this
    process are not inherited. megabytes: most private memory (MiB). file_mb: largest file that it may write (MiB), 1024
    at most. Call it in the event loop's thread, as the kernel kills the program when the thread that started it ends;
    elsewhere it raises RuntimeError. Raises OSError where there is no folder `working`. A `command` that cannot be
    started is no error here: `code` is then 126 or 127, and `output` says why.
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
        """Return the id of the program's process."""
        return self.process.pid

    @property
    def code(self) -> int | None:
        """Return the exit status, or minus the number of the signal that ended it; None while it runs.

        The process is not reaped before `kill_and_wait`, so that its id is not reused.
        """
        if self.process.returncode is not None:
            return self.process.returncode
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    @property
    def output(self) -> str:
        """Return the newest `MAX_OUTPUT_BYTES` of stdout and stderr so far, without blanks at both ends."""
        return bytes(self._said).decode("utf-8", "replace").strip()

    @property
    def last_words(self) -> str:
        """Return the end of the output for an error message; "it said nothing" where it is blank.

        Its last five lines that are not blank, joined by ` | ` and cut to their last 600 characters.
        """
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return " | ".join(lines[-5:])[-600:] or "it said nothing"

    async def done(self) -> int:
        """Wait, without a timeout, for the end of the program and of its output; return its `code`."""
        await asyncio.wait([self._hearing])
        while (code := self.code) is None:  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0.002)
        return code

    def kill(self) -> None:
        """Kill the program with its group, without waiting for the end."""
        if self.process.returncode is None:  # once it is reaped, another process may have its id
            kill_process_group(self.pid)

    async def kill_and_wait(self) -> None:
        """Kill the program with its group, wait up to 10 seconds for the end, and stop reading its output.

        May be called twice.
        """
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
