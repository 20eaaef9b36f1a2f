"""Act as the first process of an isolated machine: set its limits, reap orphans, exit when the host disconnects.

A machine's other processes belong to the same user. The kernel keeps the first process of a PID namespace from their
signals; this module asks the kernel that they can neither trace it nor read its memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import threading
import time
from pathlib import Path

_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _CLEAR_ALL = 4, 24, 47, 4
_CAPABILITIES, _RIGHTS = 0x20080522, 64  # version of capset's header; how many capabilities there may be
OPEN_FILE_LIMITS = (1024, 4096)  # of a process: soft and hard limit
USER_LIMITS = {"max_inotify_instances": 8, "max_fanotify_groups": 0}
_REAP_S = 1.0


def receive_listening_socket(path: str) -> tuple[socket.socket, socket.socket]:
    """Connect to the host's socket at `path`; returns (that connection, the listening socket received over it)."""
    waits = socket.socket(socket.AF_UNIX)
    waits.connect(path)
    _, descriptors, _, _ = socket.recv_fds(waits, 16, 1)
    if not descriptors:
        raise SystemExit("flywheel env computer-server: nobody waits any more")
    return waits, socket.socket(fileno=descriptors[0])


def start_as_init_process(waits: socket.socket, home: Path) -> None:
    """Set limits, refuse tracing, send the descriptor of `home` to the host, and exit once that connection ends.

    waits: the connection to the host.
    """
    _apply_limits()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the first process gets no signal that it has no handler for
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    socket.send_fds(waits, [b"ready"], [folder])
    os.close(folder)
    threading.Thread(target=_reap_orphans, daemon=True).start()
    threading.Thread(target=_exit_with_waiter, args=(waits,), daemon=True).start()


def _apply_limits() -> None:
    """Limit what the kernel counts per user over all machines, and open files; then give up all capabilities."""
    for name, most in USER_LIMITS.items():
        with contextlib.suppress(OSError):
            Path("/proc/sys/user", name).write_text(str(most), encoding="ascii")
    resource.setrlimit(resource.RLIMIT_NOFILE, OPEN_FILE_LIMITS)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    for number in range(_RIGHTS):
        libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(header, none):
        raise OSError(ctypes.get_errno(), "rights could not be given up")


def _exit_with_waiter(waits: socket.socket) -> None:
    with contextlib.suppress(OSError):
        waits.recv(1)  # nothing is ever sent: it returns when the connection ends
    os._exit(0)


def _reap_orphans() -> None:
    """Reap orphans, which the first process inherits: those found dead twice, as others await their children."""
    dead: set[int] = set()
    while True:
        time.sleep(_REAP_S)
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
