"""One run at a time in a workspace, and one keeper (`flywheel up`); the kernel frees a lock when its process ends,
however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from flywheel.errors import FlywheelError
from flywheel.workspace import Workspace

_PROBED_S = 0.2  # `is_held` takes a lock for a moment, which is nobody at work
_mine: set[Path] = set()  # workspaces whose lock this process holds


class AtWork(FlywheelError):
    """Another process holds the lock."""


@contextlib.contextmanager
def hold(ws: Workspace) -> Iterator[None]:
    """Raises AtWork naming the process that holds it."""
    with alone(_path(ws), "another run is at work here", fix="wait for it, or end it with Ctrl-C in its terminal"):
        _mine.add(ws.root)
        try:
            yield
        finally:
            _mine.discard(ws.root)


@contextlib.contextmanager
def hold_or_keep(ws: Workspace) -> Iterator[None]:
    """As `hold`; within a block of this process that holds it, nothing happens."""
    with contextlib.nullcontext() if ws.root in _mine else hold(ws):
        yield


def held(ws: Workspace) -> bool:
    """Whether a run is at work here now."""
    return is_held(_path(ws))


def holder(ws: Workspace) -> int | None:
    """The process of the run that is at work here now."""
    if not held(ws):
        return None
    try:
        return int(_path(ws).read_text(encoding="utf-8"))
    except ValueError:  # it has just begun
        return None


@contextlib.contextmanager
def alone(path: Path, otherwise: str, fix: str) -> Iterator[None]:
    """Hold the lock of a file, which has the process's number. Raises AtWork, in words that begin with `otherwise`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + _PROBED_S
    with path.open("a+") as file:
        while not _taken(file):
            if time.monotonic() > until:
                file.seek(0)
                process = file.read().strip() or "unknown"
                raise AtWork(f"{otherwise} (process {process})", where=path.parent.parent, fix=fix)
            time.sleep(_PROBED_S / 10)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def is_held(path: Path) -> bool:
    """Whether a process holds the lock of a file now."""
    try:
        with path.open("a+") as file:
            return not _taken(file)
    except OSError:  # no such folder, or one that cannot be written: nothing can run in it
        return False


def _taken(file) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _path(ws: Workspace) -> Path:
    return ws.state / "lock"
