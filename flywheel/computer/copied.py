"""A copy of a machine's home, for a program that judges it: nothing in it leads out of it, and no file in it waits.

Left out, and told by name, are pipes, sockets, and links but those that lead downwards from where they lie, or to a
path of the home: a link to what the judging program reads, such as the answers, would be taken for the agent's file.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path, PurePosixPath

from flywheel.computer.home import Entry, Home
from flywheel.computer.walls import HOME

_PIECE = 2**20
_TOLD, _TARGET = 1000, 200  # of what is left out: how many are named; characters of where a link leads
_FOLDER_MODE, _FILE_MODE = 0o700, 0o400  # what their owner may do, whatever the agent has set: else they are not read


def copy(home: Home, folder: Path, most: int) -> dict[str, str]:
    """Put what lies in the home into a folder that exists. most: bytes of all files; holes stay holes, and do not
    count.

    Returns why each path that is not there was left out, of the first thousand. Raises EnvError for too many files.
    """
    left_out: dict[str, str] = {}
    for entry in home.entries():
        try:
            why, size = _one(home, entry, folder / entry.path, most)
        except OSError as error:
            why, size = error.strerror or "it cannot be written", 0
        most -= size
        if why and len(left_out) < _TOLD:
            left_out[entry.path.encode("utf-8", "replace").decode()] = why
    return left_out


def _one(home: Home, entry: Entry, place: Path, most: int) -> tuple[str, int]:
    """Why one was left out, "" where it was not, and how many bytes it took."""
    if entry.kind == "folder":
        place.mkdir()
        place.chmod(entry.mode & 0o777 | _FOLDER_MODE)
        return "", 0
    if entry.kind == "link":
        target = home.link(entry.path)
        if not _downwards(target):
            return f"a link to {target[:_TARGET]}", 0
        place.symlink_to(target)
        return "", 0
    if entry.kind != "file":
        return "neither a file nor a folder", 0
    with home.opened(entry.path) as source:
        if source is None:
            return "it cannot be read", 0
        with place.open("xb") as target:
            size = _filled(source, target.fileno(), most)
        if size > most:
            place.unlink()
            return "too large", 0
        about = os.fstat(source)
        place.chmod(stat.S_IMODE(about.st_mode) & 0o777 | _FILE_MODE)
        os.utime(place, ns=(about.st_mtime_ns, about.st_mtime_ns))
    return "", size


def _downwards(target: str) -> bool:
    path = PurePosixPath(target)
    return bool(target) and ".." not in path.parts and (not path.is_absolute() or path.is_relative_to(HOME))


def _filled(source: int, target: int, most: int) -> int:
    """Copy what a file holds, its holes left as such. How many bytes; it ends with the first beyond `most`."""
    end, at, size = os.fstat(source).st_size, 0, 0
    while at < end and size <= most:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError:  # holes alone from here on
            break
        until = min(os.lseek(source, at, os.SEEK_HOLE), end)
        while at < until and size <= most:
            data = os.pread(source, min(_PIECE, until - at, most + 1 - size), at)
            if not data:  # somebody cuts it off meanwhile
                return size
            os.pwrite(target, data, at)
            at, size = at + len(data), size + len(data)
    with contextlib.suppress(OSError):  # larger than a file can be here: what it holds is there
        os.ftruncate(target, end)
    return size
