"""One run at a time in a workspace; the kernel frees the lock when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from flywheel.errors import FlywheelError
from flywheel.workspace import Workspace

_mine: set[Path] = set()  # workspaces whose lock this process holds


class AtWork(FlywheelError):
    """Another run is at work in the workspace."""


@contextlib.contextmanager
def hold(ws: Workspace) -> Iterator[None]:
    """Raises AtWork naming the process that holds it."""
    ws.state.mkdir(parents=True, exist_ok=True)
    with (ws.state / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise AtWork(
                f"another run is at work here (process {file.read().strip() or 'unknown'})",
                where=ws.root,
                fix="wait for it, or end it with Ctrl-C in its terminal",
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
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
    try:
        with (ws.state / "lock").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such folder, or one that cannot be written: nothing can run in it
        return False
    return False
