"""Hold a workspace for one run at a time, and one supervisor (`flywheel workspace up`); it ends with its process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from flywheel.config.workspace import Workspace
from flywheel.utils.errors import FlywheelError

_PROBED_S = 0.2  # `is_lock_held` takes the lock for a moment: wait that long before it counts as held
_held_here: set[Path] = set()  # workspaces whose lock this process holds


class WorkspaceBusy(FlywheelError):
    """Another process holds the lock."""


@contextlib.contextmanager
def hold_workspace(ws: Workspace) -> Iterator[None]:
    """Hold the workspace for a run within the block.

    The lock is a file's in `.flywheel`, and ends with the process. Raises WorkspaceBusy, naming the process that holds
    it, also where that is this one.
    """
    with hold_exclusively(
        _lock_path(ws), "another run is at work here", fix="wait for it, or end it with Ctrl-C in its terminal"
    ):
        _held_here.add(ws.root)
        try:
            yield
        finally:
            _held_here.discard(ws.root)


@contextlib.contextmanager
def hold_workspace_reentrant(ws: Workspace) -> Iterator[None]:
    """Hold the workspace as `hold_workspace` does; within a block of this process that holds it, do nothing.

    Raises WorkspaceBusy where another process holds it.
    """
    with contextlib.nullcontext() if ws.root in _held_here else hold_workspace(ws):
        yield


def is_workspace_busy(ws: Workspace) -> bool:
    """Tell whether a run holds the workspace now; this process's own counts too.

    False where `.flywheel` is missing or cannot be written.
    """
    return is_lock_held(_lock_path(ws))


def workspace_holder(ws: Workspace) -> int | None:
    """Return the process id of the run that holds the workspace now; None where there is none, or it just begins."""
    held_by = _lock_path(ws).read_text(encoding="utf-8") if is_workspace_busy(ws) else ""
    return int(held_by) if held_by.isdigit() else None


@contextlib.contextmanager
def hold_exclusively(path: Path, otherwise: str, fix: str) -> Iterator[None]:
    """Hold the lock of a file within the block; the file gets the process's id, and stays.

    path: the file; its folder is made. otherwise: first words of the message where another holds it. fix: its last
    ones. Raises WorkspaceBusy, within a second: it does not wait.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + _PROBED_S
    with path.open("a+") as file:
        while not _try_lock(file):
            if time.monotonic() > until:
                file.seek(0)
                process = file.read().strip() or "unknown"
                raise WorkspaceBusy(f"{otherwise} (process {process})", where=path.parent.parent, fix=fix)
            time.sleep(_PROBED_S / 10)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def is_lock_held(path: Path) -> bool:
    """Tell whether a process holds the lock of the file `path` now.

    An empty file is made where there is none; False where its folder is missing or cannot be written.
    """
    try:
        with path.open("a+") as file:
            return not _try_lock(file)
    except OSError:  # no such folder, or one that cannot be written: nothing can run in it
        return False


def _try_lock(file) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_path(ws: Workspace) -> Path:
    return ws.state / "lock"
