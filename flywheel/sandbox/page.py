"""One page of a tab: its protocol session, its navigations, its clock.

A navigation costs no page time: the clock stops where one begins, and what is left of a step passes in the next
document (`clock.js`). The date goes on over documents; `performance.now` begins anew in each, as in any browser.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flywheel.errors import EnvError
from flywheel.sandbox.cdp import CommandError, Connection
from flywheel.sandbox.frames import Frames
from flywheel.settings import Sandbox

_CLOCK = (Path(__file__).parent / "clock.js").read_text(encoding="utf-8")
# What a navigation does to a call that was under way in the page it left.
_LEFT = ("context was destroyed", "Cannot find", "navigated or closed", "frame was detached", "Promise was collected")
_ASKED_S = 0.5  # for a navigation that was asked for to begin
_FRAME_MS = 1.0  # between two frames at one page time: one that is not later than the last is never drawn
_TRAVEL_S = 2.0  # for a step in the history to begin


class PageGone(EnvError):
    """The page crashed, or closed itself."""


class Page:
    """target, session: ids of the protocol. time: page time in ms since the episode began."""

    def __init__(
        self, connection: Connection, frames: Frames, settings: Sandbox, target: str, session: str,
        hear: Callable[[Page, str, Mapping[str, Any]], None],
    ) -> None:  # fmt: skip
        self.connection, self.frames, self.settings = connection, frames, settings
        self.target, self.session = target, session
        self.time = 0.0
        self.gone = ""  # why it is
        self.url = ""  # of the document last observed
        self._hear = hear
        self._asked: set[str] = set()  # frames whose script wants another document
        self._expected = False  # the address that a popup was opened for
        self._loading: set[str] = set()  # frames that are on their way to one
        self._changed = asyncio.Event()
        self._arrivals = self._starts = self._known = 0  # documents that came, loads that began, and the last look's
        self._ticks = 1000.0
        connection.listen(session, self._event)

    def send(self, method: str, params: Mapping[str, Any] | None = None) -> asyncio.Future[dict[str, Any]]:
        return self.connection.send(method, params, self.session)

    def post(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        self.connection.post(method, params, self.session)

    def set_up(self, width: int, height: int) -> list[asyncio.Future[dict[str, Any]]]:
        """What a new target is told first."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        media = [{"name": "prefers-reduced-motion", "value": "reduce"}]
        return [
            self.send("Page.enable"), self.send("Inspector.enable"),
            self.send("Emulation.setDeviceMetricsOverride", metrics),
            self.send("Emulation.setFocusEmulationEnabled", {"enabled": True}),
            self.send("Emulation.setEmulatedMedia", {"features": media}),
            # Each document is asked for at our hands: where it may go, and which time it is.
            self.send("Fetch.enable", {"patterns": [{"urlPattern": "*", "resourceType": "Document"}]}),
        ]  # fmt: skip

    def begin(self, seed: int, time: float) -> asyncio.Future[dict[str, Any]]:
        """Clock and chance of all documents to come. time: of the session, in ms."""
        self.time = time
        config = {"seed": int(seed), "start": time, "patience": self.settings.timeout_s * 500}
        source = _CLOCK.replace("= CONFIG;", f"= {json.dumps(config)};")
        return self.send("Page.addScriptToEvaluateOnNewDocument", {"source": source})

    async def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression, awaited where it is a promise. Raises EnvError for what it throws."""
        # Not bound by the page's content policy.
        call = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        answer = await self.send("Runtime.evaluate", call)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            text = details.get("exception", {}).get("description") or details.get("text", "a script error")
            raise EnvError(f"the page's script failed: {text}", where=self.url)
        return answer["result"].get("value")

    # -- observation ----------------------------------------------------------------------------------------------
    async def observe(self, ms: float, read: str = "") -> dict[str, Any]:
        """Let what was begun finish, pass `ms` of page time, and tell what there is.

        read: JavaScript whose value is `game`. Gives `url`, `elements`, `beyond`, `game`, `notes` and `copied`
        (text that went to the clipboard, or None).
        """
        left, notes, copied, until = ms, [], None, "null"
        reading = "()=>null" if read else "undefined"
        while True:
            call = f"window.__flywheel__&&__flywheel__.observe({left!r},{reading},{self.time!r},{until})"
            there, seen = await self._ask(call)
            if there and not seen:  # not a document of the kind that scripts run in
                return {"url": await self.address(), "elements": [], "game": None, "notes": notes, "copied": copied}
            if there:
                notes += seen["notes"]
                copied = copied if seen["copied"] is None else seen["copied"]
                self._ticks += max(seen["time"] - self.time, 0.0)
                self.time, left, until = seen["time"], seen["left"], "null"
                if not (seen["leaving"] or self._loading or self._asked or self._expected):
                    # By itself, since a page's policy on eval binds what comes after a wait.
                    there, game = await self._ask(read) if read else (True, seen["game"])
                    if there:
                        self.url, self._known = seen["url"], self._starts
                        return seen | {"game": game, "notes": notes, "copied": copied}
                # The page's word may come before its act, and after the end of an act that led nowhere (a download).
                self._expected |= seen["leaving"] and self._known == self._starts
                self._known = self._starts
            else:
                until = repr(self.time + left)
            await self._settled()

    async def _ask(self, expression: str) -> tuple[bool, Any]:
        """Value of an expression; (False, None) where its document was left meanwhile."""
        try:
            return True, await self.evaluate(expression)
        except CommandError as error:
            if not any(sign in error.what for sign in _LEFT):
                raise
            return False, None
        except EnvError as error:
            if self.gone or self.connection.closed.done():
                raise
            raise EnvError(f"the page could not be observed: {error.what}", where=self.url) from None

    async def shot(self) -> bytes:
        self._ticks += _FRAME_MS
        return await self.frames.shot(self.session, self._ticks)

    async def draw(self) -> None:
        self._ticks += _FRAME_MS
        await self.frames.draw(self.session, self._ticks)

    async def address(self) -> str:
        history = await self.send("Page.getNavigationHistory")
        return history["entries"][history["currentIndex"]]["url"]

    def expect(self) -> None:
        """A document is on its way to this page, which is still empty."""
        self._expected = True

    # -- navigation -----------------------------------------------------------------------------------------------
    async def navigate(self, url: str) -> str:
        """Go to an address: "" once its document is there, else what the browser said."""
        self._asked.discard(self.target)
        answer = await self.send("Page.navigate", {"url": url})
        await self._settled()
        return answer.get("errorText", "")

    async def back(self) -> bool:
        """One step back in the history; False where there is none."""
        history = await self.send("Page.getNavigationHistory")
        at = history["currentIndex"]
        if at < 1:
            return False
        before = self._arrivals
        await self.send("Page.navigateToHistoryEntry", {"entryId": history["entries"][at - 1]["id"]})
        try:
            async with asyncio.timeout(_TRAVEL_S):
                while self._arrivals == before:
                    await self._change()
        except TimeoutError:
            pass  # refused: it stays where it is
        await self._settled()
        return True

    async def _settled(self) -> None:
        """Nothing is on its way to another document. A frame that loads for ever is waited for in part."""
        if self._asked or self._expected:  # some addresses a browser refuses without a word
            try:
                async with asyncio.timeout(_TRAVEL_S if self._expected else _ASKED_S):
                    while (self._asked or self._expected) and not self.gone:
                        await self._change()
            except TimeoutError:
                self._asked.clear()
                self._expected = False
        if self._loading:
            try:
                async with asyncio.timeout(self.settings.timeout_s / 2):
                    while self._loading and not self.gone:
                        await self._change()
            except TimeoutError:
                self._loading.clear()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
        if self.gone:
            raise PageGone(self.gone, where=self.url)

    def lose(self, why: str) -> None:
        """The page is gone: every call to it ends."""
        self.gone = self.gone or why
        self.connection.end(self.session, PageGone(self.gone, where=self.url))
        self._changed.set()

    # -- events ---------------------------------------------------------------------------------------------------
    def _event(self, method: str, params: Mapping[str, Any]) -> None:
        match method:
            case "Page.frameScheduledNavigation" | "Page.frameRequestedNavigation":
                if params.get("disposition", "currentTab") == "currentTab":
                    self._asked.add(params["frameId"])
            case "Page.frameStartedLoading":
                self._asked.discard(params["frameId"])
                self._loading.add(params["frameId"])
                self._expected = False
                self._starts += 1
            case "Page.frameClearedScheduledNavigation":
                self._asked.discard(params["frameId"])
            case "Page.frameStoppedLoading" | "Page.frameDetached":
                self._asked.discard(params["frameId"])
                self._loading.discard(params["frameId"])
            case "Page.frameNavigated":
                if "parentId" not in params["frame"]:
                    self._arrivals += 1
            case "Page.navigatedWithinDocument":
                self._arrivals += params["frameId"] == self.target
            case _:
                self._hear(self, method, params)
                return
        self._changed.set()
