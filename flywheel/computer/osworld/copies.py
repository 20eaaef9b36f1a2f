"""Copies of the files that OSWorld's tasks download, given in a folder: no machine here has the internet."""

from __future__ import annotations

import base64
import uuid
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from flywheel.computer.osworld.unfit import INTERNET, SIZE, Unfit

MOST = 2**23  # bytes that one task's files may have


class Copies:
    """folder: with a folder for each task by its id, such as OSWorld's own `cache`; what several tasks need may lie in
    the folder itself. None: there are none."""

    def __init__(self, folder: Path | None, task: str) -> None:
        self._places = [] if folder is None else [folder / task, folder]
        self._left = MOST

    def of(self, url: str, name: str) -> str:
        """base64 of what a URL gives, or of a file on this machine. name: what the task calls it. Raises Unfit."""
        kept = f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_{name}"  # as OSWorld keeps what it has downloaded
        theirs = PurePosixPath(unquote(urlsplit(url).path)).name
        for folder in self._places:
            for one in (kept, name, theirs):
                if one and (folder / one).is_file():
                    return self._read(folder / one)
        raise Unfit(INTERNET, f"{name}, {url}")

    def _read(self, path: Path) -> str:
        self._left -= path.stat().st_size
        if self._left < 0:
            raise Unfit(SIZE, f"{path.name}, and {MOST} bytes is all that a task's files may have")
        return base64.b64encode(path.read_bytes()).decode()
