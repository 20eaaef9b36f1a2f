"""Which files of a folder are opened: told by the kernel (inotify), so that it holds for every library."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OPEN, _IS_FOLDER, _NONBLOCK = 0x20, 0x40000000, 0o4000
_HEAD = struct.Struct("iIII")


@contextmanager
def watching(root: Path) -> Iterator[set[Path]]:
    """The files below `root` that are there now and were opened within the block; filled at its end."""
    libc = ctypes.CDLL(None, use_errno=True)
    queue = libc.inotify_init1(_NONBLOCK)
    assert queue >= 0, os.strerror(ctypes.get_errno())
    there = {path for path in root.rglob("*") if path.is_file()}
    folders = {}
    for folder in {root, *(path.parent for path in there)}:
        folders[libc.inotify_add_watch(queue, str(folder).encode(), _OPEN)] = folder
    found: set[Path] = set()
    try:
        yield found
    finally:
        for watch, name in _events(queue):
            found.add(folders[watch] / name)
        found &= there
        os.close(queue)


def _events(queue: int) -> Iterator[tuple[int, str]]:
    while True:
        try:
            data = os.read(queue, 1 << 20)
        except BlockingIOError:
            return
        while data:
            watch, mask, _, length = _HEAD.unpack_from(data)
            name = data[_HEAD.size : _HEAD.size + length].rstrip(b"\0").decode()
            data = data[_HEAD.size + length :]
            assert watch >= 0, "more was opened than the kernel's queue holds"
            if not mask & _IS_FOLDER:
                yield watch, name
