"""Write files and folders whole or not at all, lock and hash files, and tell of a full disk.

A file is written as a hidden temporary one in the same folder, then renamed. Nothing is flushed to the disk (no fsync).
If the process is killed, the old file stays; after a power failure a file may be cut off, which DVC's checksums detect
in data and models, and readers in other files.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flywheel.utils.errors import DataError, DiskFull, FlywheelError

_FULL_BYTES = 2**20
_FULL = (errno.ENOSPC, errno.EDQUOT)


def expand_home(path: str) -> Path:
    """Replace a leading `~` or `~user` by the home folder; for an unknown user `path` stays unchanged."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  Path's own raises RuntimeError


@contextmanager
def atomic_file(path: Path, *, over: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to; at the end of the block it replaces `path`, or is removed if the block fails.

    The block must make a file there. Missing folders are made. over: False raises FileExistsError at the end of the
    block where `path` exists by then. Raises OSError where the folder or the file cannot be made.
    """
    temporary = _temporary_path(path)
    try:
        yield temporary
        if over:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder to fill; at the end of the block it replaces the folder `path` and its contents.

    If the block fails, the temporary folder is removed and `path` stays. Missing parent folders are made. A kill in the
    moment of replacement may leave no folder at `path`. Raises OSError where a folder cannot be made, or `path` not be
    removed.
    """
    temporary = _temporary_path(path)
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            shutil.rmtree(path)  # a folder cannot be renamed over another; a kill after this line leaves none
        temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def file_lock(path: Path, seconds: float, what: str, kind: type[FlywheelError] = DataError) -> Iterator[None]:
    """Hold a lock file exclusively within the block; a second hold within the same process waits too.

    path: the file; it and its folder are made. seconds: timeout of the wait for the lock; 0 tries it once or twice.
    what: the holder's work in the error's message, after "another process has been". kind: class of the error. Raises
    `kind` on timeout, OSError where the file cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise kind(
                        f"another process has been {what} for {seconds:.0f} s", where=path, fix="let it end, or end it"
                    ) from None
                time.sleep(0.05)
        yield


def remove_unfinished(folder: Path, name: str = "*") -> None:
    """Remove the temporary files and folders that killed processes left in `folder`. Call it only while nobody writes.

    name: of the finished file, or a pattern. Raises OSError for one that cannot be removed.
    """
    for path in folder.glob(f".{name}.*.part"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _temporary_path(path: Path) -> Path:
    """Return a temporary path next to `path`, unique to each writer, as two may write the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")


def write_text(path: Path, text: str) -> None:
    """Write `text` to the file `path` in UTF-8, whole or not at all. Missing folders are made.

    Raises DiskFull, OSError for another failure, UnicodeEncodeError for half a character (a lone surrogate).
    """
    with disk_full_errors(path), atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` to the file `path` as readable JSON (indented, sorted), whole or not at all.

    Missing folders are made. NaN and infinite numbers are written as `NaN` and `Infinity`. Raises TypeError for other
    values that JSON cannot represent, and for keys that cannot be sorted; otherwise as `write_text`.
    """
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of the file `path`, in hex; for files that rarely change see `cached_sha256`.

    Raises OSError where it cannot be read.
    """
    return _sha256((path,))


def cached_sha256(*paths: Path) -> str:
    """Return the SHA-256 of the contents of `paths`, one after the other, in hex; a process reads unchanged files once.

    A change is detected as in DVC: by inode, size and times. Files that changed within the last 2 s are read at each
    call, as a further change could go unnoticed (clocks of file systems are coarse). Raises OSError where a file is
    missing (FileNotFoundError) or cannot be read.
    """
    statuses = [path.stat() for path in paths]
    signature = tuple(map(file_signature, statuses))
    if _cache.get(paths, ("", ""))[0] == signature:
        return _cache[paths][1]
    sha256 = _sha256(paths)
    if not is_changed_just_now(statuses):
        _cache[paths] = signature, sha256
    return sha256


def remember_sha256(path: Path, sha256: str) -> None:
    """Cache the hash of a file that this process has just written, for `cached_sha256`; the hash is not checked.

    sha256: of the file `path`, in hex. Raises FileNotFoundError where there is no file.
    """
    _cache[path,] = (file_signature(path.stat()),), sha256


_COARSE_NS = 2 * 10**9  # the coarsest clock of a file system in use
_Signature = tuple[tuple[int, ...], ...]
_cache: dict[tuple[Path, ...], tuple[_Signature, str]] = {}


def file_signature(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return a file's inode, size, and last changes of content and metadata (ns), which stay equal until it changes.

    status: from `os.stat`.
    """
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def is_changed_just_now(statuses: Iterable[os.stat_result]) -> bool:
    """Tell whether a file changed within the last 2 s: a further change may then not change its `file_signature`.

    The clocks of file systems are that coarse. statuses: from `os.stat`, one per file, taken before the files are read.
    Returns False for no files.
    """
    return time.time_ns() - max((status.st_ctime_ns for status in statuses), default=0) <= _COARSE_NS


def _sha256(paths: Iterable[Path]) -> str:
    sha = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: sha)
    return sha.hexdigest()


@contextmanager
def disk_full_errors(where: Path) -> Iterator[None]:
    """Raise DiskFull, which says what to do, for the error of a full disk within the block; other errors pass.

    where: a path on that disk, which may not exist. With less than 1 MiB left on the disk, every error counts as one.
    """
    try:
        yield
    except Exception as error:
        # Some libraries raise other errors for a full disk: torch.save a RuntimeError, safetensors its own, with the
        # system's words in it. What they had written may be removed by now.
        full = isinstance(error, OSError) and error.errno in _FULL
        full = full or any(os.strerror(number) in str(error) for number in _FULL)
        there = next(folder for folder in (where, *where.resolve().parents) if folder.exists())
        disk = shutil.disk_usage(there)
        if not full and (disk.free >= _FULL_BYTES or not disk.total):  # /proc and the like have no size
            raise
        raise DiskFull(
            "the disk is full; what was finished is kept", where=where, fix="free some space and run again"
        ) from error
