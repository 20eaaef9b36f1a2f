"""A task's web site: it runs outside of the machine whose browser shows it, where nobody can change what it got."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from aiohttp import web

log = logging.getLogger(__name__)
PORT = 8000
_MOST = 2**20  # bytes of what is sent to it at once
_FORMS = 100
_KINDS = {
    ".html": "text/html",
    ".csv": "text/csv",
    ".js": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
}


class Site:
    """pages: texts by path, of which / is `index.html`. received: the forms that were sent to /send, each a text by the
    field's name; of a file its text."""

    def __init__(self, pages: Mapping[str, str]) -> None:
        self._pages = pages
        self.received: list[dict[str, str]] = []

    async def start(self, socket: Path) -> None:
        """Answer at a unix socket."""
        application = web.Application(client_max_size=_MOST)
        application.add_routes([web.post("/send", self._send), web.get("/{path:.*}", self._page)])
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(socket)).start()

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _page(self, request: web.Request) -> web.Response:
        path = request.match_info["path"] or "index.html"
        if path not in self._pages:
            return web.Response(status=404, text="There is no such page.")
        kind = _KINDS.get(Path(path).suffix, "text/plain")
        return web.Response(text=self._pages[path], content_type=kind, headers={"Cache-Control": "no-store"})

    async def _send(self, request: web.Request) -> web.Response:
        fields = {}
        for name, value in (await request.post()).items():
            fields[name] = value if isinstance(value, str) else value.file.read().decode("utf-8", "replace")
        if len(self.received) < _FORMS:
            self.received.append(fields)
        return web.Response(text=_THANKS, content_type="text/html")


_THANKS = "<!doctype html><title>Thank you</title><h1>Thank you</h1><p>It has arrived.</p>"
