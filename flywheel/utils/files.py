"""Write files and folders whole or not at all: under a hidden name beside their place, then renamed.

Nothing is flushed to the disk first (no fsync). A killed process leaves what was there before; after a loss of power a
file may be cut off, which DVC's checksums detect in data and models, and readers in the rest.
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


def expand_home(path: str) -> Path:
    """Put the home in place of a leading `~` or `~user`; of a user that this machine does not know, `path` stays."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  Path's own raises RuntimeError


@contextmanager
def atomic_file(path: Path, *, over: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to, which replaces `path` at the end of the block, or is removed where that
    fails.

    Missing folders are made. over: False raises FileExistsError at the end where `path` is there by then.
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
    """Yield an empty temporary folder to fill; at the end of the block it replaces the folder `path` with all in it.

    It is removed where the block fails; `path` stays then. Missing folders above `path` are made. A kill while an old
    folder is replaced may leave none.
    """
    temporary = _temporary_path(path)
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            shutil.rmtree(path)  # a folder cannot be renamed over another: here alone a kill leaves none
        temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def file_lock(path: Path, seconds: float, what: str, kind: type[FlywheelError] = DataError) -> Iterator[None]:
    """Hold a lock file that one process has at a time; a second hold within the same process waits too.

    path: the file; it and its folder are made. seconds: how long to wait for it. what: what another holder is doing,
    for the message, after "another process has been". kind: of the error. Raises `kind` where the wait is over.
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
    """Remove what killed processes left of unfinished files and folders. Call it only where no one else writes them.

    folder: where they lie. name: of the finished file, or a pattern.
    """
    for path in folder.glob(f".{name}.*.part"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _temporary_path(path: Path) -> Path:
    """A name of its own for every writer, as two may write the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")


def write_text(path: Path, text: str) -> None:
    """Write `text` to the file `path` in UTF-8, whole or not at all. Missing folders are made. Raises DiskFull."""
    with disk_full_errors(path), atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` to the file `path` as JSON for people (indented, sorted), whole or not at all.

    Missing folders are made. Raises DiskFull, TypeError for what JSON has no form for.
    """
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def sha256_file(path: Path) -> str:
    """Hash the contents of the file `path` as they are now, in hex.

    Of files that stay as they are, `cached_sha256` remembers it.
    """
    return _sha256((path,))


def cached_sha256(*paths: Path) -> str:
    """Hash the contents of `paths`, one after the other, in hex; read once in a process while they stay as they are.

    Whether they do is judged as DVC judges it: by inode, size and times. A file that changed within the last moments
    before it is read may change again unseen (clocks of file systems are coarse), and is read each time. Raises
    FileNotFoundError for one that is missing.
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
    """Remember the hash of a file that this process has just written, for `cached_sha256`; it is not checked.

    sha256: of the file `path`, in hex.
    """
    _cache[path,] = (file_signature(path.stat()),), sha256


_COARSE_NS = 2 * 10**9  # the coarsest clock of a file system in use
_Signature = tuple[tuple[int, ...], ...]
_cache: dict[tuple[Path, ...], tuple[_Signature, str]] = {}


def file_signature(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return what stays while a file does: inode, size, and when content and metadata were changed (ns).

    status: of `os.stat`.
    """
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def is_changed_just_now(statuses: Iterable[os.stat_result]) -> bool:
    """Tell whether a file changed within the last 2 s: a later change may leave its `file_signature` as it is.

    The clocks of file systems are that coarse. statuses: of `os.stat`, one a file, taken before the files are read.
    False for no files.
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
    """Turn the error of a full disk within the block into DiskFull, which says what to do; other errors pass.

    where: a path on that disk, there or not. Any error counts while the disk has less than 1 MiB left.
    """
    try:
        yield
    except Exception as error:
        # Some libraries raise errors of their own for it (torch.save a RuntimeError).
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        there = next(folder for folder in (where, *where.resolve().parents) if folder.exists())
        if not full and shutil.disk_usage(there).free >= _FULL_BYTES:
            raise
        raise DiskFull(
            "the disk is full; what was finished is kept", where=where, fix="free some space and run again"
        ) from error
