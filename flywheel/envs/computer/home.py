"""Read or copy an isolated machine's home folder from the host, without following links out of it.

Programs in the machine may put links, pipes and endlessly nested folders there, even during the reading.
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
from pathlib import Path, PurePosixPath

from flywheel.envs.computer.bwrap import MACHINE_HOME
from flywheel.utils.errors import EnvError

MAX_HOME_ENTRIES = 20_000
_MAX_DEPTH = 64
_COPY_BYTES = 2**20
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class HomeEntry:
    """Hold what is known of a file, folder or link in the home.

    path: from the home. kind: file, folder, link (never followed) or other. size: bytes of a file, else 0. mode:
    permission bits.
    """

    path: str
    kind: str
    size: int
    mode: int


class MachineHome:
    """Read a machine's home folder from the host. descriptor: of the open folder; `close` closes it.

    Paths are relative to the home.
    """

    def __init__(self, descriptor: int) -> None:
        self._root = descriptor

    def close(self) -> None:
        """Close the folder; may be called twice."""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def read(self, path: str, limit: int) -> bytes | None:
        """Read the first `limit` bytes of the file at `path`; None where there is no regular file."""
        with self.opened(path) as file:
            return None if file is None else b"".join(_read_pieces(file, limit))

    def digest(self, path: str, limit: int) -> str | None:
        """Return the SHA-256 (hexadecimal) of a file's first `limit` bytes; None where there is no regular file."""
        with self.opened(path) as file:
            if file is None:
                return None
            sha = hashlib.sha256()
            for data in _read_pieces(file, limit):
                sha.update(data)
            return sha.hexdigest()

    def entries(self) -> Iterator[HomeEntry]:
        """Yield all files, folders and links, sorted by path, a folder before its contents, down to a depth of 64.

        Raises EnvError for more than MAX_HOME_ENTRIES.
        """
        for count, entry in enumerate(self._walk(self._root, "", 0)):
            if count >= MAX_HOME_ENTRIES:
                raise EnvError(
                    f"more than {MAX_HOME_ENTRIES} files", where="the machine's home", fix="give the task less"
                )
            yield entry

    def archive(self, limit: int) -> bytes:
        """Return the files, folders and links of the home as a tar file; equal homes give equal bytes.

        Raises EnvError for more than `limit` bytes, and as `entries`.
        """
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
        """Yield a descriptor of the file at `path`, open until the block ends; None where there is no regular file."""
        with contextlib.ExitStack() as stack:
            file = self._reach(path, _OPEN_FILE, stack)
            yield file if file is not None and stat.S_ISREG(os.fstat(file).st_mode) else None

    def link(self, path: str) -> str:
        """Return the target of the link at `path`; "" where there is no link."""
        with contextlib.ExitStack() as stack:
            parent = self._reach(str(PurePosixPath(path).parent), _OPEN_FOLDER, stack)
            try:
                return "" if parent is None else os.readlink(PurePosixPath(path).name, dir_fd=parent)
            except OSError:
                return ""

    # -- folder by folder, links never followed -----------------------------------------------------------------------
    def _walk(self, folder: int, path: str, depth: int) -> Iterator[HomeEntry]:
        if depth > _MAX_DEPTH:
            return
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            return
        for name in names:
            try:
                about = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError:  # it was deleted meanwhile
                continue
            own, kind = f"{path}{name}", _KINDS.get(stat.S_IFMT(about.st_mode), "other")
            yield HomeEntry(own, kind, about.st_size if kind == "file" else 0, stat.S_IMODE(about.st_mode))
            if kind == "folder":
                with contextlib.suppress(OSError):
                    inner = os.open(name, _OPEN_FOLDER, dir_fd=folder)
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
                at = os.open(part, flags if number == len(parts) - 1 else _OPEN_FOLDER, dir_fd=at)
            except OSError:
                return None
            stack.callback(os.close, at)
        return at


def _read_pieces(file: int, limit: int) -> Iterator[bytes]:
    while limit > 0 and (data := os.read(file, min(limit, _COPY_BYTES))):
        yield data
        limit -= len(data)


# The copy of a home for a checker: nothing in it leads out of it or blocks a reader. Pipes and sockets are left out,
# and so are links, except those that lead downwards from their own folder or to a path of the home. A link to a file
# that the checker reads, such as the answers, would be taken for the agent's own file.

_MAX_LEFT_OUT, _MAX_LINK_CHARACTERS = 1000, 200  # paths left out that are named; characters of a link's target
_FOLDER_MODE, _FILE_MODE = 0o700, 0o400  # added to the agent's modes, so that the checker can read all


def copy_home(home: MachineHome, folder: Path, most: int) -> dict[str, str]:
    """Copy the home into the empty folder `folder`, for a checker; returns path -> why it was left out.

    most: bytes of all files; the holes of sparse files stay holes and do not count. The first thousand paths left out
    are returned. Raises EnvError for too many files.
    """
    left_out: dict[str, str] = {}
    for entry in home.entries():
        try:
            why, size = _copy_entry(home, entry, folder / entry.path, most)
        except OSError as error:
            why, size = error.strerror or "it cannot be written", 0
        most -= size
        if why and len(left_out) < _MAX_LEFT_OUT:
            left_out[entry.path.encode("utf-8", "replace").decode()] = why
    return left_out


def _copy_entry(home: MachineHome, entry: HomeEntry, place: Path, most: int) -> tuple[str, int]:
    """Copy one entry; returns why it was left out, "" where it was not, and how many bytes it took."""
    if entry.kind == "folder":
        place.mkdir()
        place.chmod(entry.mode & 0o777 | _FOLDER_MODE)
        return "", 0
    if entry.kind == "link":
        target = home.link(entry.path)
        if not _is_safe_link(target):
            return f"a link to {target[:_MAX_LINK_CHARACTERS]}", 0
        place.symlink_to(target)
        return "", 0
    if entry.kind != "file":
        return "neither a file nor a folder", 0
    with home.opened(entry.path) as source:
        if source is None:
            return "it cannot be read", 0
        with place.open("xb") as target:
            size = _copy_sparse_file(source, target.fileno(), most)
        if size > most:
            place.unlink()
            return "too large", 0
        about = os.fstat(source)
        place.chmod(stat.S_IMODE(about.st_mode) & 0o777 | _FILE_MODE)
        os.utime(place, ns=(about.st_mtime_ns, about.st_mtime_ns))
    return "", size


def _is_safe_link(target: str) -> bool:
    path = PurePosixPath(target)
    return bool(target) and ".." not in path.parts and (not path.is_absolute() or path.is_relative_to(MACHINE_HOME))


def _copy_sparse_file(source: int, target: int, most: int) -> int:
    """Copy a file's data and leave its holes; returns the bytes copied, `most` + 1 where there are more than `most`."""
    end, at, size = os.fstat(source).st_size, 0, 0
    while at < end and size <= most:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError:  # only a hole is left
            break
        until = min(os.lseek(source, at, os.SEEK_HOLE), end)
        while at < until and size <= most:
            data = os.pread(source, min(_COPY_BYTES, until - at, most + 1 - size), at)
            if not data:  # the file was truncated meanwhile
                return size
            os.pwrite(target, data, at)
            at, size = at + len(data), size + len(data)
    with contextlib.suppress(OSError):  # larger than a file can be here; all data is copied
        os.ftruncate(target, end)
    return size
