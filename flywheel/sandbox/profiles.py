"""A private folder, of a browser or of a page's server: made for one process, gone with it.

Each folder is held by a lock that the kernel lets go when the process that made it ends, in whatever way. So a
folder left by a `kill -9` can be told from one in use, on a machine where process numbers come round again, and
`sweep` removes it at the next start.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

_PREFIX = "flywheel-{kind}-"
_KINDS = ("chromium", "server")
_LOCK = "owner.lock"
_YOUNG_S = 60.0  # a folder without its lock yet may be one that is just being made


class Profile:
    """One folder, at `path`, until `remove` or the end of this process."""

    def __init__(self, kind: str = "chromium") -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX.format(kind=kind)))
        self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """May be called twice. A browser that is still dying may write on: what it leaves then is swept later."""
        lock, self._lock = self._lock, -1
        if lock < 0:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(lock)


def sweep() -> list[Path]:
    """Remove the folders whose owners are gone; returns them. Folders of other users are left alone."""
    removed = abandoned()
    for folder in removed:
        shutil.rmtree(folder, ignore_errors=True)
    return removed


def abandoned() -> list[Path]:
    """The folders that `sweep` would remove."""
    here = Path(tempfile.gettempdir())
    found = [folder for kind in _KINDS for folder in here.glob(_PREFIX.format(kind=kind) + "*")]
    return [folder for folder in sorted(found) if _abandoned(folder)]


def _abandoned(folder: Path) -> bool:
    try:
        if folder.stat().st_uid != os.getuid() or folder.is_symlink():
            return False
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return _age(folder) > _YOUNG_S
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _age(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_mtime
    except OSError:
        return 0.0
