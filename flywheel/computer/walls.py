"""What a machine, or a program that judges what was left in one, sees; and the words that bubblewrap starts it by."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from flywheel.computer import seccomp
from flywheel.sandbox import isolation

HOME = "/home/user"
INSIDE = "/opt/flywheel/guest"  # where the guest lies in a machine
SERVED = "served"  # the folder of unix sockets of services outside
GUEST = Path(__file__).resolve().parent.parent / "guest"
_RIGHTS = ("CAP_SYS_RESOURCE", "CAP_SETPCAP")  # with which the guest limits its machine, and gives them up
_LIMITS = "/proc/sys/user"  # of each machine's own, and to be written with that right alone
_ETC = Path(__file__).parent / "etc"
_READ_ONLY = ("/proc", "/dev", "/")  # in /proc lie the kernel's own settings, which a process of root's may write
_KEYS = "/etc/ssl/private"  # of this machine's servers
_FONTS = "/var/cache/fontconfig"  # without it each program looks at each font anew: a third of a second
PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TEMPORARY = ("/dev/shm", "/tmp", "/run")
ENVIRONMENT = {
    "HOME": HOME,
    "USER": "user",
    "LOGNAME": "user",
    "SHELL": "/bin/bash",
    "XDG_RUNTIME_DIR": "/run",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def command(
    readable: Sequence[Path], home_bytes: int, served: Path, listening: int, ready: int, rules: int
) -> list[str]:
    """The words that start a machine. readable: more paths that it sees, as they are here. served: a folder, in there
    /run/served. listening, ready, rules: descriptors of the guest's socket, of who waits for it, and of `seccomp`'s
    program."""
    python = os.path.realpath(sys.executable)
    words = [*_apart(rules), "--as-pid-1"]
    for right in _RIGHTS:
        words += ["--cap-add", right]
    words += _system(readable, (*TEMPORARY, HOME), home_bytes)
    words += ["--ro-bind", str(served), f"/run/{SERVED}"]
    words += ["--ro-bind", str(GUEST), INSIDE, "--bind", *[_LIMITS] * 2]
    words += _shut()
    words += _told(environment(Path(python).parent))
    return [*words, "--chdir", HOME, "--", python, "-I", INSIDE, "--fd", str(listening), "--ready-fd", str(ready)]


def system() -> tuple[str, ...]:
    """The system's programs with what they read, by paths of this machine's."""
    return (*isolation.SYSTEM, *isolation.ETC, _FONTS, sys.base_prefix)


def named() -> dict[str, Path]:
    """Files by which the user and the machine have names, by where they lie in there."""
    return {f"/etc/{file.name}": file for file in sorted(_ETC.iterdir())}


def environment(*more: Path) -> dict[str, str]:
    """Of a machine's programs. more: folders of programs."""
    return {**ENVIRONMENT, "PATH": ":".join([f"{HOME}/.local/bin", PATHS, *map(str, more)])}


def checker(
    program: Sequence[str], bound: Mapping[str, Path], readable: Sequence[Path], memory_bytes: int, rules: int
) -> list[str]:
    """The words that start a program which judges what was left in a machine: it sees the system's programs and what is
    bound, by where that lies in there, and may write in /tmp alone. rules: as of `command`."""
    words = [*_apart(rules), *_system(readable, TEMPORARY, memory_bytes)]
    for place, path in bound.items():
        words += ["--ro-bind", str(path), place]
    words += _shut()
    words += _told({**ENVIRONMENT, "HOME": "/tmp", "PATH": f"{PATHS}:{Path(os.path.realpath(sys.executable)).parent}"})
    return [*words, "--chdir", "/tmp", "--", *program]


def _apart(rules: int) -> list[str]:
    words = ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    words += ["--seccomp", str(rules)] if seccomp.program() else []
    return [*words, "--uid", "1000", "--gid", "1000", "--hostname", "computer", "--cap-drop", "ALL"]


def _system(readable: Sequence[Path], written: Sequence[str], size_bytes: int) -> list[str]:
    """What of this machine is seen, and the places in memory that may be written."""
    words = ["--proc", "/proc", "--dev", "/dev"]
    for place in written:
        words += ["--perms", "0700", "--size", str(size_bytes), "--tmpfs", place]
    for path in (*system(), *map(str, readable)):
        words += ["--ro-bind-try", path, path]
    for place, file in named().items():
        words += ["--ro-bind", str(file), place]
    return words


def _shut() -> list[str]:
    """Nothing that is secret is read, nothing of the system's is written. It comes last: what was mounted below keeps
    what it has."""
    hidden = [_KEYS] if Path(_KEYS).is_dir() else []
    words = []
    for place in hidden:
        words += ["--tmpfs", place]
    for path in _only_root_reads():
        words += ["--ro-bind", "/dev/null", path]
    for place in (*hidden, *_READ_ONLY):
        words += ["--remount-ro", place]
    return words


def _told(variables: Mapping[str, str]) -> list[str]:
    return [word for name, value in variables.items() for word in ("--setenv", name, value)]


@functools.cache
def _only_root_reads() -> list[str]:
    """What the kernel tells to root alone, its memory and its log, and so to any process of root's."""
    found = []
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not path.name.isdigit() and path.is_file() and not path.stat().st_mode & stat.S_IROTH:
                found.append(str(path))
    return sorted(found)
