"""Files that a page gives the user: kept in the session's folder under their own names, up to a size."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_MAX_NAME = 120  # characters
_MAX_FILES = 100  # of one session
_BEGIN_S = 0.5  # that a step waits for a file to begin, where one was asked for
_DOWNLOAD_S = 2.0  # and for it to be there


class Downloads:
    """folder: where the files lie. limit: bytes of one file. cancel: stops a download by its id. note: tells of it."""

    def __init__(self, folder: Path, limit: int, cancel: Callable[[str], None], note: Callable[[str], None]) -> None:
        self.folder, self._limit, self._cancel, self._note = folder, limit, cancel, note
        self._names: dict[str, str] = {}  # of the ones under way
        self._waited: set[str] = set()  # of those, the ones that were waited for
        self._count = self._asked = 0  # that began, and that should

    def expect(self, files: int) -> None:
        """Some may begin, or may just have."""
        self._asked += files

    async def settle(self) -> None:
        """Wait a moment for those that were asked for to begin, and for those under way to be there."""
        await _until(lambda: self._asked <= self._count, _BEGIN_S)
        await _until(lambda: self._waited.issuperset(self._names), _DOWNLOAD_S)
        self._asked, self._waited = self._count, set(self._names)  # what has not come yet may come when it will

    def begins(self, params: Mapping[str, Any]) -> None:
        guid, name = params["guid"], safe_name(params["suggestedFilename"])
        self._count += 1
        if self._count > _MAX_FILES:
            self._cancel(guid)
            self._note(f"a download was refused: there are {_MAX_FILES} already")
            return
        self._names[guid] = name

    def goes_on(self, params: Mapping[str, Any]) -> None:
        guid, state = params["guid"], params["state"]
        name = self._names.get(guid)
        if name is None:
            return
        if state == "completed":
            del self._names[guid]
            target = _free(self.folder / name)
            try:
                (self.folder / guid).rename(target)
            except OSError as error:
                self._note(f"the download {name} could not be kept: {error.strerror}")
                return
            self._note(f"downloaded {target.name} ({target.stat().st_size} bytes)")
        elif state == "canceled":
            del self._names[guid]
            self._note(f"the download {name} failed")
        elif max(params["receivedBytes"], params["totalBytes"]) > self._limit:
            del self._names[guid]
            self._cancel(guid)
            self._note(f"the download {name} was cancelled: it is longer than {self._limit // 2**20} MiB")


def safe_name(name: str) -> str:
    """A name that stays in its folder, whatever a server called the file."""
    name = re.sub(r"[\x00-\x1f/\\\x7f]", "_", name).strip(" .")
    return name[-_MAX_NAME:] or "download"


def _free(path: Path) -> Path:
    """`a.txt`, or `a (1).txt` where that is taken."""
    number, free = 0, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.stem} ({number}){path.suffix}")
    return free


async def _until(holds: Callable[[], bool], seconds: float) -> None:
    """Wait until something holds, and no longer than so many seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 (the browser tells nobody else)
                await asyncio.sleep(0.005)
