"""What a machine sees and may do: the words that bubblewrap is started with."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from flywheel.computer import seccomp
from flywheel.sandbox import isolation

HOME = "/home/user"
INSIDE = "/opt/flywheel/guest"  # where the guest lies in a machine
SERVED = "served"  # the folder of unix sockets of services outside
_GUEST = Path(__file__).resolve().parent.parent / "guest"
_RIGHTS = ("CAP_SYS_RESOURCE", "CAP_SETPCAP")  # with which the guest limits its machine, and gives them up
_LIMITS = "/proc/sys/user"  # of each machine's own, and to be written with that right alone
_ETC = Path(__file__).parent / "etc"
_READ_ONLY = ("/proc", "/dev", "/")  # in /proc lie the kernel's own settings, which a process of root's may write
_KEYS = "/etc/ssl/private"  # of this machine's servers
_FONTS = "/var/cache/fontconfig"  # without it each program looks at each font anew: a third of a second
_PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def command(
    readable: Sequence[Path], home_bytes: int, served: Path, listening: int, ready: int, rules: int
) -> list[str]:
    """The words that start a machine. readable: more paths that it sees, as they are here. served: a folder, in there
    /run/served. listening, ready, rules: descriptors of the guest's socket, of who waits for it, and of `seccomp`'s
    program."""
    python = os.path.realpath(sys.executable)
    words = ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    words += ["--as-pid-1", *(("--seccomp", str(rules)) if seccomp.program() else ())]
    words += ["--uid", "1000", "--gid", "1000", "--hostname", "computer"]
    words += ["--cap-drop", "ALL"]
    for right in _RIGHTS:
        words += ["--cap-add", right]
    words += ["--proc", "/proc", "--dev", "/dev"]
    size = str(home_bytes)
    for place in ("/dev/shm", "/tmp", "/run", HOME):
        words += ["--perms", "0700", "--size", size, "--tmpfs", place]
    for path in (*isolation.SYSTEM, *isolation.ETC, *map(str, readable), _FONTS, sys.base_prefix):
        words += ["--ro-bind-try", path, path]
    words += ["--ro-bind", str(served), f"/run/{SERVED}"]
    words += ["--ro-bind", str(_GUEST), INSIDE, "--bind", *[_LIMITS] * 2]
    for file in sorted(_ETC.iterdir()):  # the user has a name there
        words += ["--ro-bind", str(file), f"/etc/{file.name}"]
    hidden = [_KEYS] if Path(_KEYS).is_dir() else []
    for place in hidden:
        words += ["--tmpfs", place]
    for path in _only_root_reads():
        words += ["--ro-bind", "/dev/null", path]
    for place in (*hidden, *_READ_ONLY):  # what is mounted below keeps what it has
        words += ["--remount-ro", place]
    for name, value in _environment(python).items():
        words += ["--setenv", name, value]
    return [*words, "--chdir", HOME, "--", python, "-I", INSIDE, "--fd", str(listening), "--ready-fd", str(ready)]


@functools.cache
def _only_root_reads() -> list[str]:
    """What the kernel tells to root alone, its memory and its log, and so to any process of root's."""
    found = []
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not path.name.isdigit() and path.is_file() and not path.stat().st_mode & stat.S_IROTH:
                found.append(str(path))
    return sorted(found)


def _environment(python: str) -> dict[str, str]:
    return {
        "HOME": HOME,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/bash",
        "XDG_RUNTIME_DIR": "/run",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PATH": f"{HOME}/.local/bin:{_PATHS}:{Path(python).parent}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
