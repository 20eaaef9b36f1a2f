"""What the guest does as the first process of a machine: it lets no other process reach it, and buries the dead.

A machine's other processes belong to the same user. The kernel keeps the first process of a PID namespace from their
signals; that they can neither trace it nor read its memory is asked for here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import threading
import time
from pathlib import Path

_PR_SET_DUMPABLE = 4
_EVERY_S = 1.0


def ready(number: int, home: Path) -> None:
    """Hand the home folder, open, to whoever waits at a socket; then keep apart from what runs here."""
    with socket.socket(fileno=number) as waits:
        folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
        socket.send_fds(waits, [b"ready"], [folder])
        os.close(folder)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a signal that the first process has no handler for does not reach it
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    threading.Thread(target=_bury, daemon=True).start()


def _bury() -> None:
    """Orphans come to the first process. What a part of it waits for is left to that: only who is found dead twice is
    buried here."""
    dead: set[int] = set()
    while True:
        time.sleep(_EVERY_S)
        now = {int(path.name) for path in Path("/proc").glob("[0-9]*") if _is_dead_child(path.name)}
        for pid in now & dead:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        dead = now


def _is_dead_child(name: str) -> bool:
    try:
        fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] == "Z" and int(fields[1]) == os.getpid()
