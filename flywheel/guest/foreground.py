"""Whether what runs in a terminal waits for keys: it is at rest, and has asked for single keys or reads a line."""

from __future__ import annotations

import os
import platform
import termios

from quiet import Watched

_READ = {"x86_64": "0", "aarch64": "63"}.get(platform.machine(), "")  # the system call's number
_LOCAL_MODES = 3  # where termios has them


def asking(terminal: int, shell: int) -> list[str] | None:
    """How long each of its threads has run, where it seems to wait for keys; where that is the same a moment later, it
    does. None where it does not. terminal: the end that is ours. shell: the process that began it."""
    watched = Watched([shell])
    ran = watched.look()
    if ran is None:
        return None
    try:
        by_line = termios.tcgetattr(terminal)[_LOCAL_MODES] & termios.ICANON
    except termios.error:
        return None
    return None if by_line and not any(map(_reads, watched.pids)) else ran


def _reads(pid: int) -> bool:
    """It is in the midst of reading from a terminal."""
    try:
        with open(f"/proc/{pid}/syscall") as file:  # noqa: PTH123 - looked at again and again
            call = file.read().split()
        return call[0] == _READ and os.readlink(f"/proc/{pid}/fd/{int(call[1], 16)}").startswith("/dev/pts/")  # noqa: PTH115
    except (OSError, IndexError, ValueError):
        return False
