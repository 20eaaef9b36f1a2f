"""Limit memory, processes and processor time of all programs of one session together, by a cgroup.

A cgroup is of version 2 where this user may create one there, else of version 1. Where this user may create neither,
only the limits of single processes hold.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import signal
import time
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("memory", "pids", "cpu")  # of version 1
_KILL_S = 5.0


@dataclass(frozen=True)
class Cgroup:
    """Hold the cgroup of one session. folders: of version 1 one for each controller; of version 2 a single one."""

    folders: tuple[Path, ...]

    def wrap_command(self, command: list[str]) -> list[str]:
        """Wrap a command so that it joins the cgroup before it starts; where it cannot join, its exit status is 99."""
        files = " ".join(str(folder / "cgroup.procs") for folder in self.folders)
        return ["sh", "-c", f'for f in {files}; do echo $$ > "$f" || exit 99; done; exec "$@"', "sh", *command]

    def processes(self) -> list[int]:
        """Return the ids of the cgroup's processes, as this machine numbers them."""
        with contextlib.suppress(OSError):
            return [int(line) for line in (self.folders[0] / "cgroup.procs").read_text().split()]
        return []

    def kill(self) -> None:
        """Kill the cgroup's processes; gives up after 5 seconds."""
        until = time.monotonic() + _KILL_S
        while self.processes() and time.monotonic() < until:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)

    def kill_and_remove(self) -> None:
        """Kill the cgroup's processes as `kill`, and remove the cgroup, which stays where processes are left."""
        self.kill()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()

    @property
    def out_of_memory(self) -> bool:
        """Tell whether the kernel killed a process of the cgroup because memory ran out."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    lines = dict(line.split() for line in (folder / name).read_text().splitlines())
                    return lines.get("oom_kill", "0") != "0"
        return False

    @property
    def memory(self) -> int:
        """Return the bytes of memory in use, files in memory included; 0 where the kernel does not tell."""
        for folder in self.folders:
            for name in ("memory.current", "memory.usage_in_bytes"):
                with contextlib.suppress(OSError):
                    return int((folder / name).read_text())
        return 0


def create_cgroup(memory_mb: int, processes: int, cores: float = 0) -> Cgroup | None:
    """Create a cgroup with these limits; None where this user may create none (`explain_missing_cgroups`).

    memory_mb: MiB of processes and of files in memory. processes: processes and threads at once. cores: processor
    cores; 0 for all. The caller removes it (`Cgroup.kill_and_remove`). Raises OSError where the kernel refuses a limit.
    """
    found, name = _find_cgroup_parents(), f"flywheel-{os.getpid()}-{secrets.token_hex(4)}"
    if found is None:
        return None
    version, parents = found
    made = Cgroup(tuple(dict.fromkeys(parent / name for parent in parents)))
    memory = memory_mb * 2**20
    try:
        for folder in made.folders:
            folder.mkdir()
            if version == 2:
                _write_limits(folder, {"memory.max": memory, "memory.swap.max": 0, "pids.max": processes})
                _write_limits(folder, {"memory.oom.group": 0})
                _write_limits(folder, {"cpu.max": f"{int(cores * 100_000)} 100000"} if cores else {})
            else:
                _write_limits(folder, {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory})
                _write_limits(folder, {"pids.max": processes, "cpu.cfs_quota_us": int(cores * 100_000) or -1})
    except OSError:
        made.kill_and_remove()
        raise
    return made


def find_own_cgroup(pid: int) -> Cgroup | None:
    """Find the cgroup whose only process is `pid`, such as a container's; None where none can be seen from here."""
    with contextlib.suppress(OSError):
        for _, folders in _list_cgroup_folders(pid):
            found = Cgroup(tuple(dict.fromkeys(folders)))
            if found.processes() == [pid]:
                return found
    return None


def explain_missing_cgroups() -> str:
    """Explain why a session's programs have no common limits here; "" where they have."""
    return "" if _find_cgroup_parents() else "this user may make no cgroups (memory, pids)"


@functools.cache
def _find_cgroup_parents() -> tuple[int, list[Path]] | None:
    """Find by trial the version of cgroups that can be created here, and the folders to create them in."""
    for version, parents in _list_cgroup_folders("self"):
        if all(_can_create_cgroup(parent, version) for parent in parents):
            return version, parents
    return None


def _list_cgroup_folders(process: int | str) -> list[tuple[int, list[Path]]]:
    """List a process's cgroup folders by version: one for version 2, one for each controller of version 1."""
    own = dict(line.split(":", 2)[1:] for line in Path(f"/proc/{process}/cgroup").read_text().splitlines())
    return [(2, [_ROOT / own.get("", "/").lstrip("/")]), (1, [_v1_folder(own, one) for one in _CONTROLLERS])]


def _v1_folder(own: dict[str, str], controller: str) -> Path:
    return next(
        (_ROOT / controller / path.lstrip("/") for names, path in own.items() if controller in names.split(",")),
        _ROOT / controller,
    )


def _can_create_cgroup(parent: Path, version: int) -> bool:
    tried = parent / f"flywheel-tried-{os.getpid()}-{secrets.token_hex(4)}"
    if version == 2:
        with contextlib.suppress(OSError):
            (parent / "cgroup.subtree_control").write_text("+memory +pids +cpu")
    try:
        tried.mkdir()
    except OSError:
        return False
    wanted = ("memory.max", "pids.max") if version == 2 else ()
    found = all((tried / name).exists() for name in wanted)
    tried.rmdir()
    return found


def _write_limits(folder: Path, values: dict[str, object]) -> None:
    """Write those limits that this kernel and this controller have."""
    for name, value in values.items():
        if (folder / name).exists():
            with contextlib.suppress(OSError) if "sw" in name or "oom" in name else contextlib.nullcontext():
                (folder / name).write_text(str(value))
