"""What the browser itself shows over a page: a page of its own, over the session's last screen.

A page whose script waits for an answer draws nothing and answers nothing. So what a person would see over it is
another page, in a process of its own: its background is the screen that was last taken, its HTML is what the browser
puts on top, and mouse and keys reach it as they reach any page. Its screens are drawn by the same browser, hence as
repeatable as all others.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote

from flywheel.agent.actions import Action, Hotkey, Press
from flywheel.errors import EnvError
from flywheel.sandbox.cdp import Connection
from flywheel.sandbox.frames import Frames
from flywheel.sandbox.inputs import InputDriver
from flywheel.sandbox.page import Page
from flywheel.settings import Sandbox

_BACKGROUND = """(() => {
    const screen = document.getElementById("flywheel-screen") ?? document.body.appendChild(new Image());
    screen.id = "flywheel-screen";
    screen.style.cssText = "position:fixed;inset:0;width:100vw;height:100vh;z-index:-1;pointer-events:none";
    screen.src = SOURCE;
    return screen.decode();
})()"""


class Targets(Protocol):
    """What hears of the pages of a browser context."""

    def attached(self, session: str, info: Mapping[str, Any]) -> None: ...

    def detached(self, session: str) -> None: ...


class Contexts(Protocol):
    """What a cover wants of its browser."""

    def adopt(self, context: str, owner: Targets | None) -> None: ...


class Session(Protocol):
    """Whose mouse, keys and clipboard a cover takes."""

    hands: InputDriver
    clipboard: str


class Cover:
    """One for a session, made when it is first shown; `page` is there while it is."""

    def __init__(self, host: Contexts, connection: Connection, frames: Frames, settings: Sandbox) -> None:
        self._host, self._connection, self._frames, self._settings = host, connection, frames, settings
        self._context = ""
        self._size = (0, 0)
        self._made: asyncio.Future[list[asyncio.Future[dict[str, Any]]]] | None = None
        self._page: Page | None = None

    @property
    def page(self) -> Page:
        if self._page is None:
            raise EnvError("nothing is shown over the page", where="cover")
        return self._page

    async def show(self, html: str, screen: bytes, size: tuple[int, int], begin: str) -> None:
        """Put HTML over a screen (a PNG; empty: a white one) of a size in pixels. begin: JavaScript run in it first."""
        if self._page is None or self._page.gone or self._size != size:
            await self._make(size)
        failed = await self.page.navigate(f"data:text/html;charset=utf-8,{quote(html)}")
        if failed:
            raise EnvError(f"what the browser shows over the page does not load: {failed}", where="cover")
        await self.page.evaluate(begin)
        await self.put_under(screen)
        await self.page.observe(0)

    async def put_under(self, screen: bytes) -> None:
        """Another screen below the same HTML."""
        if screen:
            source = f"data:image/png;base64,{base64.b64encode(screen).decode()}"
            await self.page.evaluate(_BACKGROUND.replace("SOURCE", json.dumps(source)))

    async def do(self, action: Action, session: Session) -> str:
        """Carry out one action on it; "" or why nothing was done."""
        if isinstance(action, Hotkey | Press):  # it may paste
            await self.page.evaluate(f"__flywheel__.core.clipboard={json.dumps(session.clipboard)}")
        note = await session.hands.do(action, self.page, (), "")
        seen = await self.page.observe(0)
        session.clipboard = session.clipboard if seen["copied"] is None else seen["copied"]
        return note

    async def shot(self) -> bytes:
        return await self.page.shot()

    def close(self) -> None:
        """Nothing is kept of it; may be called twice."""
        if self._page is not None:
            self._page.lose("the cover is closed")
        context, self._context, self._page, self._made = self._context, "", None, None
        if context:
            self._host.adopt(context, None)
            self._connection.post("Target.disposeBrowserContext", {"browserContextId": context})

    # -- its target -----------------------------------------------------------------------------------------------
    async def _make(self, size: tuple[int, int]) -> None:
        self.close()
        self._size = size
        made = await self._connection.send("Target.createBrowserContext", {"disposeOnDetach": True})
        self._context = made["browserContextId"]
        self._host.adopt(self._context, self)
        self._made = asyncio.get_running_loop().create_future()
        target = {"url": "about:blank", "width": size[0], "height": size[1], "browserContextId": self._context}
        if self._frames.on_command:
            target["enableBeginFrameControl"] = True
        await self._connection.send("Target.createTarget", target)
        await asyncio.gather(*await self._made)
        await self.page.begin(0, 0.0)

    def attached(self, session: str, info: Mapping[str, Any]) -> None:
        self._page = Page(self._connection, self._frames, self._settings, info["targetId"], session, self._hear)
        told = self._page.set_up(*self._size)
        self._page.post("Runtime.runIfWaitingForDebugger")
        self._made.set_result(told)

    def detached(self, session: str) -> None:
        if self._page is not None and self._page.session == session:
            self._page.lose("the cover is gone")

    def _hear(self, page: Page, method: str, params: Mapping[str, Any]) -> None:
        match method:
            case "Fetch.requestPaused":
                page.post("Fetch.continueRequest", {"requestId": params["requestId"]})
            case "Inspector.targetCrashed":
                page.lose("the cover crashed")
