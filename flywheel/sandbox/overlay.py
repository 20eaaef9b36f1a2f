"""What the sandbox draws over a session's page: a page of its own, which the session's page can neither see nor reach.

A browser draws pickers in windows of their own, and nobody draws those here. Instead the overlay shows its own, in a
target beside the page and of the same size; its part of the screen is laid over the page's picture, and mouse and keys
go to it at the same places. It is made when it is first shown, so that sessions without one pay nothing.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping
from typing import Any

from PIL import Image

from flywheel.sandbox.cdp import Connection
from flywheel.sandbox.frames import Frames
from flywheel.sandbox.page import Page
from flywheel.settings import Sandbox


class Overlay:
    """source: JavaScript that the page runs once; what it leaves in `window` is spoken to by `evaluate`."""

    def __init__(self, connection: Connection, frames: Frames, settings: Sandbox, source: str) -> None:
        self._connection, self._frames, self._settings, self._source = connection, frames, settings, source
        self._opening: asyncio.Future[list[asyncio.Future[dict[str, Any]]]] | None = None
        self._size = (0, 0)
        self.page: Page | None = None

    async def open(self, context: str, width: int, height: int) -> Page:
        """The page, in a browser context and of a size; made where there is none yet."""
        if self.page is None:
            self._opening, self._size = asyncio.get_running_loop().create_future(), (width, height)
            target = {"url": "about:blank", "width": width, "height": height, "browserContextId": context}
            if self._frames.on_command:
                target["enableBeginFrameControl"] = True
            await self._connection.send("Target.createTarget", target)
            await asyncio.gather(*await self._opening)
            await self.page.evaluate(self._source)
        return self.page

    def attached(self, session: str, info: Mapping[str, Any]) -> bool:
        """A target is there. Whether it is the one that this overlay asked for."""
        if self._opening is None or self._opening.done() or info.get("openerId"):
            return False
        page = Page(self._connection, self._frames, self._settings, info["targetId"], session, lambda *_: None)
        self.page = page
        self._opening.set_result(page.set_up(*self._size))
        page.post("Runtime.runIfWaitingForDebugger")
        return True

    def detached(self, session: str) -> None:
        if self.page is not None and self.page.session == session:
            self.forget()

    def forget(self) -> None:
        """Its browser context is gone, or about to go."""
        page, self.page = self.page, None
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if page is not None:
            page.lose("the overlay is closed")

    async def call(self, function: str, *args: Any) -> Any:
        return await self.page.evaluate(f"{function}({', '.join(map(json.dumps, args))})")

    async def laid_over(self, shot: bytes, box: Mapping[str, int]) -> bytes:
        """A page's picture (PNG) with the overlay's part of it."""
        under, over = (Image.open(io.BytesIO(png)).convert("RGB") for png in (shot, await self.page.shot()))
        corner = (max(box["x"], 0), max(box["y"], 0))
        under.paste(over.crop((*corner, box["x"] + box["w"], box["y"] + box["h"])), corner)
        kept = io.BytesIO()
        under.save(kept, "PNG", compress_level=1)
        return kept.getvalue()
