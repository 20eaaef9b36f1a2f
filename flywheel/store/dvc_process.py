"""DVC in this process (0.2 s a call, against 0.6 s for its command): one at a time, its errors in one line."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from flywheel.errors import FlywheelError
from flywheel.files import locked
from flywheel.workspace import Workspace

_LOCK_TIMEOUT_S = 300.0
_LISTING = re.compile(r"\.tmp(\.with_meta)?$")


class VersioningError(FlywheelError):
    """DVC could not record, compare or restore something."""


@contextmanager
def repository(ws: Workspace) -> Iterator:
    """DVC's view of the workspace, fresh from disk. Its errors become VersioningError, in one line."""
    os.environ.setdefault("DVC_NO_ANALYTICS", "1")
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.WARNING)
    with one_at_a_time(ws):
        try:
            with Repo(str(ws.root)) as repo:
                yield repo
        except DvcException as error:
            raise VersioningError(f"DVC: {error}", where=ws.root, fix="type `dvc status` there for more") from error
        finally:
            forget_listings()


def forget_listings() -> None:
    """Drop the folders' listings that DVC made in memory to compare or record them, once nobody needs them.

    It keeps each one until the process ends, and goes through all of them for the next: a process that looks at 200
    iterations would take time by their square.
    """
    from fsspec.implementations.memory import MemoryFileSystem

    for name in [name for name in MemoryFileSystem.store if _LISTING.search(name)]:
        del MemoryFileSystem.store[name]


@contextmanager
def one_at_a_time(ws: Workspace) -> Iterator[None]:
    """Parallel DVC processes meet lock errors: wait here, with a deadline."""
    with locked(ws.state / "dvc.lock", _LOCK_TIMEOUT_S, "recording", VersioningError):
        yield
