"""Files as the machine's user has them: read, written, listed. Relative paths count from the home folder."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tarfile
from pathlib import Path

from server import MAX_BODY, Answer, Refused, Request, Routes

_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
# Links may lead anywhere: who reads them does so in this machine.
_AS_IT_IS = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
_MAX_LISTED = 1000  # entries


def routes(home: Path) -> Routes:
    def read(request: Request) -> Answer:
        limit = int(request.query.get("limit", MAX_BODY))
        return Answer(*_read(_path(home, request), limit))

    def write(request: Request) -> dict:
        path = _path(home, request)
        with _told(path):
            if request.query["path"].endswith("/"):
                path.mkdir(parents=True, exist_ok=True)
                return {"bytes": 0}
            path.parent.mkdir(parents=True, exist_ok=True)
            # Not through a pipe or a device that somebody has put there, which would wait for ever.
            target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o644)
            with os.fdopen(target, "wb") as file:
                if not stat.S_ISREG(os.fstat(target).st_mode):
                    raise Refused(f"{path} is not a file")
                file.write(request.body)
            if modified := request.query.get("modified"):
                os.utime(path, (float(modified), float(modified)))
        return {"bytes": len(request.body)}

    def listed(request: Request) -> dict:
        return _listed(_path(home, request))

    def unpack(request: Request) -> dict:
        with _told(home), tarfile.open(fileobj=io.BytesIO(request.body)) as tar:
            tar.extractall(home, **_AS_IT_IS)
        return {"ok": True}

    return {
        ("GET", "/files/read"): read,
        ("PUT", "/files/write"): write,
        ("GET", "/files/list"): listed,
        ("PUT", "/files/unpack"): unpack,
    }


def _path(home: Path, request: Request) -> Path:
    path = request.query.get("path", "")
    if not path or "\0" in path:
        raise Refused("no path is given")
    return home / Path(path).expanduser()


@contextlib.contextmanager
def _told(path: Path):
    """What the system refuses is an answer."""
    try:
        yield
    except OSError as error:
        status = 404 if isinstance(error, FileNotFoundError) else 400
        raise Refused(f"{path}: {error.strerror or error}", status) from None


def _read(path: Path, limit: int) -> tuple[bytes, str]:
    """The bytes, or of more than `limit` the first and the last half around a line that says so; their type."""
    with _told(path):
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            raise Refused(f"{path} is not a file")
    with os.fdopen(opened, "rb") as file, _told(path):
        size = os.fstat(file.fileno()).st_size
        if size <= limit:
            return file.read(limit), "application/octet-stream"
        first = file.read(limit // 2)
        file.seek(-(limit // 2), os.SEEK_END)
        left_out = f"\n[... {size - limit // 2 * 2} bytes left out ...]\n".encode()
        return first + left_out + file.read(limit // 2), "text/plain"


def _listed(path: Path) -> dict:
    """The entries of a folder by name: kind and size of each; how many more there are."""
    entries = []
    with _told(path), os.scandir(path) as found:
        for entry in found:
            about = entry.stat(follow_symlinks=False)
            kind = _KINDS.get(stat.S_IFMT(about.st_mode), "other")
            entries.append({"name": entry.name, "kind": kind, "bytes": about.st_size if kind == "file" else 0})
    entries.sort(key=lambda entry: entry["name"])
    return {"entries": entries[:_MAX_LISTED], "more": max(0, len(entries) - _MAX_LISTED)}
