"""The pages of one session, one over the other: the last one is seen.

A page that opens another, by a link or by `window.open`, is covered by it; when that one closes, the opener is there
again as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from flywheel.sandbox import loads
from flywheel.sandbox.cdp import Connection
from flywheel.sandbox.frames import Frames
from flywheel.sandbox.page import Page, unheard
from flywheel.sandbox.sessions import within
from flywheel.settings import Sandbox

EMPTY = ("about:blank", "")
_MAX_PAGES = 4
_NEVER_OPENED = ("data:", "filesystem:")  # by a link or a script, in a window of its own


class PageStack:
    """zoom: of all pages, those to come included. allowed: where they may go. headers: sent with each request.

    hear: told of the events of a page that are not its own. note: told what the user should know. ends: told of each
    page that is gone. touch: they are a phone's.
    """

    def __init__(
        self,
        connection: Connection,
        frames: Frames,
        settings: Sandbox,
        hear: Callable[[Page, str, Mapping[str, Any]], None],
        note: Callable[[str], None],
        ends: Callable[[Page], None],
        touch: bool = False,
    ) -> None:
        self._connection, self._frames, self._settings = connection, frames, settings
        self._hear, self._note, self._ends, self._touch = hear, note, ends, touch
        self.pages: list[Page] = []
        self.zoom, self.seed = 1.0, 0
        self.allowed: tuple[str, ...] = ()
        self.headers: Mapping[str, str] = {}
        self._size = (0, 0)
        self._wanted = ""  # the address of a popup that was asked for
        self._opened: asyncio.Future[list[asyncio.Future[dict[str, Any]]]] | None = None

    async def begin(self, context: str, size: tuple[int, int]) -> None:
        """The first page of a context, empty."""
        self._size = size
        self._opened = asyncio.get_running_loop().create_future()
        target = {"url": "about:blank", "width": size[0], "height": size[1], "browserContextId": context}
        if self._frames.on_command:
            target["enableBeginFrameControl"] = True
        await self._connection.send("Target.createTarget", target)
        await asyncio.gather(*await self._opened)

    def attached(self, session: str, info: Mapping[str, Any]) -> None:
        """A target of this context is there, and waits. Its opener may wait with it, so nothing is awaited here."""
        opener = next((page for page in self.pages if page.target == info.get("openerId")), None)
        if info.get("openerId") and (opener is None or len(self.pages) >= _MAX_PAGES):
            self._note("a popup was closed: there are too many")
            self._connection.post("Target.closeTarget", {"targetId": info["targetId"]})
            self._connection.post("Runtime.runIfWaitingForDebugger", session=session)
            return
        page = Page(self._connection, self._frames, self._settings, info["targetId"], session, self._hear)
        told = page.set_up(*self._size, self._touch)
        if self.zoom != 1:
            told.append(asyncio.ensure_future(page.zoom(self.zoom)))
        if opener is not None:
            told.append(page.begin(self.seed + len(self.pages), self.pages[-1].time))
            told += page.send_headers(self.headers)
        for answer in told:
            answer.add_done_callback(unheard)
        page.post("Runtime.runIfWaitingForDebugger")
        self.pages.append(page)
        if opener is not None:
            self._note("a page was opened over the last one")
            self._expect()
        elif self._opened is not None and not self._opened.done():
            self._opened.set_result(told)

    def wants(self, url: str) -> None:
        """A page said where the one that it opens is to go: before that one is there, or after it."""
        self._wanted = url
        self._expect()

    def _expect(self) -> None:
        top = self.pages[-1]
        if self._wanted not in EMPTY and len(self.pages) > 1 and not top.url:
            wanted, self._wanted = self._wanted, ""
            if wanted.startswith(_NEVER_OPENED):
                self.drop(top)
                self._note(f"a popup was closed: browsers open no {wanted.partition(':')[0]}: address in one")
                return
            top.expect()

    def detached(self, session: str) -> Page | None:
        """The page that closed itself, where it was one of these."""
        page = next((page for page in self.pages if page.session == session), None)
        if page is not None:
            self._lose(page, "the page closed itself")
        return page

    def drop(self, page: Page) -> None:
        """Close a page that was opened over another."""
        self._lose(page, "the page is closed")
        self._connection.post("Target.closeTarget", {"targetId": page.target})

    def _lose(self, page: Page, why: str) -> None:
        self.pages.remove(page)
        page.lose(why)
        self._ends(page)

    def asked_for(self, page: Page, params: Mapping[str, Any]) -> None:
        """A document is asked for: where it is allowed it comes, elsewhere nothing happens but a note."""
        if loads.answered(params):
            loads.pass_on(page, params)
            return
        request, url = params["requestId"], params["request"]["url"]
        if not within(url, self.allowed):
            self._note(f"an address outside this world was refused: {url[:200]}")
            page.post("Fetch.fulfillRequest", {"requestId": request, "responseCode": 204})
            if not page.url and page is not self.pages[0]:  # a popup that was opened for it
                self.drop(page)
            return
        if params["frameId"] == page.target:
            page.posted = params["request"]["method"] != "GET"
        page.post("Fetch.continueRequest", {"requestId": request})

    async def set_zoom(self, zoom: float) -> None:
        self.zoom = zoom
        for page in self.pages:
            await page.zoom(zoom)

    def hold(self, held: bool) -> None:
        """Pages of one session may share a process: where one waits for its user, none is drawn."""
        for page in self.pages:
            page.hold(held)

    def forget(self) -> None:
        """All of them are gone."""
        for page in self.pages:
            page.lose("the page is closed")
        self.pages, self._opened, self.zoom = [], None, 1.0
