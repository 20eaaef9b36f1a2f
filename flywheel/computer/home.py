"""A machine's home folder from outside: read in a way that nothing which lies there can lead anywhere else.

What runs in the machine may have put links, pipes and folders without end there, and goes on doing so while we look.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from flywheel.errors import EnvError

MAX_ENTRIES = 20_000
_MAX_DEPTH = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Entry:
    """path: from the home. kind: file, folder, link (never followed), or other. mode: permissions."""

    path: str
    kind: str
    size: int
    mode: int


class Home:
    """descriptor: the folder, open; it is closed with this."""

    def __init__(self, descriptor: int) -> None:
        self._root = descriptor

    def close(self) -> None:
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def read(self, path: str, limit: int) -> bytes | None:
        """A file's first `limit` bytes; None where there is no plain file."""
        with self.opened(path) as file:
            if file is None:
                return None
            parts, left = [], limit
            while left > 0 and (data := os.read(file, min(left, 2**20))):
                parts.append(data)
                left -= len(data)
            return b"".join(parts)

    def digest(self, path: str, limit: int) -> str | None:
        """sha256 of a file's first `limit` bytes; None where there is no plain file."""
        with self.opened(path) as file:
            if file is None:
                return None
            sha, left = hashlib.sha256(), limit
            while left > 0 and (data := os.read(file, min(left, 2**20))):
                sha.update(data)
                left -= len(data)
            return sha.hexdigest()

    def entries(self) -> Iterator[Entry]:
        """All of them in the order of their paths, the folder before what lies in it. Raises EnvError for too many."""
        for count, entry in enumerate(self._walk(self._root, "", 0)):
            if count >= MAX_ENTRIES:
                raise EnvError(f"more than {MAX_ENTRIES} files", where="the machine's home", fix="give the task less")
            yield entry

    def archive(self, limit: int) -> bytes:
        """All of it as a tar file, equal for equal contents. Raises EnvError for more than `limit` bytes."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for entry in self.entries():
                about = tarfile.TarInfo(entry.path)
                about.mode = entry.mode
                if entry.kind == "folder":
                    about.type = tarfile.DIRTYPE
                    tar.addfile(about)
                elif entry.kind == "link":
                    about.type, about.linkname = tarfile.SYMTYPE, self.link(entry.path)
                    tar.addfile(about)
                elif entry.kind == "file" and (data := self.read(entry.path, limit + 1)) is not None:
                    about.size = len(data)
                    tar.addfile(about, io.BytesIO(data))
                if out.tell() > limit:
                    raise EnvError(f"more than {limit} bytes", where="the machine's home", fix="give the task less")
        return out.getvalue()

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[int | None]:
        """A plain file, open to be read; None where there is none."""
        with contextlib.ExitStack() as stack:
            file = self._reach(path, _FILE, stack)
            yield file if file is not None and stat.S_ISREG(os.fstat(file).st_mode) else None

    def link(self, path: str) -> str:
        """Where a link leads; "" where there is none."""
        with contextlib.ExitStack() as stack:
            parent = self._reach(str(PurePosixPath(path).parent), _FOLDER, stack)
            try:
                return "" if parent is None else os.readlink(PurePosixPath(path).name, dir_fd=parent)
            except OSError:
                return ""

    # -- step by step, links never followed ---------------------------------------------------------------------------
    def _walk(self, folder: int, path: str, depth: int) -> Iterator[Entry]:
        if depth > _MAX_DEPTH:
            return
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            return
        for name in names:
            try:
                about = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError:  # it was there a moment ago
                continue
            own, kind = f"{path}{name}", _kind(about.st_mode)
            yield Entry(own, kind, about.st_size if kind == "file" else 0, stat.S_IMODE(about.st_mode))
            if kind == "folder":
                with contextlib.suppress(OSError):
                    inner = os.open(name, _FOLDER, dir_fd=folder)
                    try:
                        yield from self._walk(inner, f"{own}/", depth + 1)
                    finally:
                        os.close(inner)

    def _reach(self, path: str, flags: int, stack: contextlib.ExitStack) -> int | None:
        parts = [part for part in PurePosixPath(path).parts if part != "."]
        if ".." in parts or path.startswith("/"):
            return None
        at = self._root
        for number, part in enumerate(parts):
            try:
                at = os.open(part, flags if number == len(parts) - 1 else _FOLDER, dir_fd=at)
            except OSError:
                return None
            stack.callback(os.close, at)
        return at


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"
