"""Serve the folders of third-party pages on 127.0.0.1, each at the root of a port of its own.

Media types come from a table of our own: those of machines differ, and a browser refuses a module script, a stylesheet
or WebAssembly of a wrong type. Nothing outside of the folder is served.
"""

from __future__ import annotations

import mimetypes
import posixpath
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from flywheel.utils.local_ports import bind_free_port
from flywheel.utils.local_server import LocalServer

_MAX_MISSED = 50
# Python's own table, and a file of what it lacks or has wrong. Functions of `mimetypes` would read the machine's too.
_PYTHON_TYPES = mimetypes.MimeTypes()
_MEDIA_TYPES = mimetypes.read_mime_types(str(Path(__file__).with_name("mime.types")))  # Python's types, and this file's


def media_type(path: Path) -> str:
    """Return a file's media type by the suffix of its name, the same on every machine; the file is not read.

    Every text type gets the charset UTF-8. For an unknown suffix it is `application/octet-stream`.
    """
    known = _MEDIA_TYPES.get(path.suffix.lower()) or _PYTHON_TYPES.guess_type(path.name)[0]  # such as `.svgz`
    found = known or "application/octet-stream"
    return f"{found}; charset=utf-8" if found.startswith("text/") else found


@dataclass
class ServedFolder:
    """Hold what one port serves. alias: requested path -> served path. missed: the newest 50 paths without a file."""

    root: Path
    alias: Mapping[str, str] = field(default_factory=dict)
    missed: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_MISSED))

    def find(self, path: str) -> Path | None:
        """Find the file or folder that a request asks for; None where there is none, or it lies outside of `root`.

        path: of the request's address, decoded.
        """
        root = self.root.resolve()
        try:
            found = (root / self.alias.get(path, path).lstrip("/")).resolve()
            if not found.is_relative_to(root) or not found.exists():
                return None
        except (OSError, ValueError, RuntimeError):  # a name too long, a NUL in it, links in a circle
            return None
        return found


class FileServer:
    """Serve folders: `async with FileServer(folders) as server:`; `server.url(folder)` is the URL of a folder's root.

    Raises EnvError, at the beginning of the block, where the server does not start.
    """

    def __init__(self, folders: list[ServedFolder]) -> None:
        self._folders = folders
        self._ports: dict[int, ServedFolder] = {}

    async def __aenter__(self) -> FileServer:
        listeners = [bind_free_port() for _ in self._folders]
        self._ports = {one.getsockname()[1]: folder for one, folder in zip(listeners, self._folders, strict=True)}
        self._server = LocalServer(self._answer, listeners)
        await self._server.start(where="the file server")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()

    def url(self, folder: ServedFolder) -> str:
        """Return `http://127.0.0.1:<port>`, without a slash at the end.

        folder: one of those that are served. Raises StopIteration for another one, or before the block has begun.
        """
        return next(f"http://127.0.0.1:{port}" for port, served in self._ports.items() if served is folder)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._respond(Request(scope))(scope, receive, send)

    def _respond(self, request: Request) -> Response:
        folder, path = self._ports[request.scope["server"][1]], request.scope["path"]
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("only files are served here", 405)
        found = folder.find(path)
        if found is not None and found.is_dir():
            if not path.endswith("/"):
                return RedirectResponse(posixpath.basename(path) + "/", 307)  # relative: the host stays the same
            found = folder.find(path + "index.html")
        if found is None or not found.is_file():
            folder.missed.append(path)
            return PlainTextResponse("there is no such file", 404)
        # Never from a cache, so that each session gets the page as the first one did.
        return FileResponse(found, media_type=media_type(found), headers={"Cache-Control": "no-store"})
