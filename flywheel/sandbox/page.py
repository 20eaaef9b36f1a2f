"""One page of a tab: its protocol session, its navigations, its clock.

A navigation costs no page time: the clock stops where one begins, and what is left of a step passes in the next
document (`scripts/document`). The date goes on over documents; `performance.now` begins anew in each, as in any
browser.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any

from flywheel.errors import EnvError
from flywheel.sandbox import page_setup
from flywheel.sandbox.cdp import CommandError, Connection
from flywheel.sandbox.frames import Frames, cropped
from flywheel.settings import Sandbox

# What a navigation does to a call that was under way in the page it left.
_LEFT = ("context was destroyed", "Cannot find", "navigated or closed", "frame was detached", "Promise was collected")
WENT_NOWHERE = "flywheel.wentNowhere"  # told like an event of the browser: `url`, where a frame was to go
_ASKED_S = 0.5  # for a navigation that was asked for to begin
_FRAME_MS = 1.0  # between two frames at one page time: one that is not later than the last is never drawn
_PATIENCE = 1 / 3  # of the deadline, for a document that goes on loading; spent once
_TRAVEL_S = 2.0  # for a step in the history to begin


class PageGone(EnvError):
    """The page crashed, or closed itself."""


class Page:
    """target, session: ids of the protocol. time: page time in ms since the episode began."""

    def __init__(
        self,
        connection: Connection,
        frames: Frames,
        settings: Sandbox,
        target: str,
        session: str,
        hear: Callable[[Page, str, Mapping[str, Any]], None],
    ) -> None:
        self.connection, self.frames, self.settings = connection, frames, settings
        self.target, self.session = target, session
        self.time = 0.0
        self.gone = ""  # why it is
        self.url = ""  # of the document last observed
        self.posted = False  # a form's content went with the last request for a document
        self.drawn = 0  # numbers that the document last observed had taken from its seeded chance
        self._hear = hear
        self._asked: set[str] = set()  # frames whose script wants another document
        self._expected = False  # the address that a popup was opened for
        self._late = False  # the document has been waited for long enough
        self.stillborn = False  # a popup that never came to its address
        self._loading: set[str] = set()  # frames that are on their way to one
        self._toward: dict[str, str] = {}  # the addresses that frames were told to go to
        self._size = (0, 0)  # of its screens
        self._stays = False  # the user was asked, and did not want to leave it
        self._held = False  # a dialog waits for an answer, and the page with it
        self._changed = asyncio.Event()
        self.arrivals = self._starts = self._known = 0  # documents that came, loads that began, and the last look's
        self._ticks, self._seed, self._workers = 1000.0, 0, 0
        self.dragged: Mapping[str, Any] | None = None  # what the browser says is being dragged (`drags.py`)
        connection.listen(session, self._event)

    def send(self, method: str, params: Mapping[str, Any] | None = None) -> asyncio.Future[dict[str, Any]]:
        return self.connection.send(method, params, self.session)

    def post(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        self.connection.post(method, params, self.session)

    def set_up(self, width: int, height: int, touch: bool = False) -> list[asyncio.Future[dict[str, Any]]]:
        """What a new target is told first. touch: it is a phone's."""
        self._size = (width, height)
        return [self.send(*command) for command in page_setup.commands(width, height, touch)]

    def begin(self, seed: int, time: float) -> asyncio.Future[dict[str, Any]]:
        """Clock and chance of all documents to come. time: of the session, in ms."""
        self.time, self._seed = time, int(seed)
        patience = self.settings.timeout_s * 1000 * _PATIENCE
        source = page_setup.document_script(int(seed), time, patience)
        return self.send("Page.addScriptToEvaluateOnNewDocument", {"source": source})

    def send_headers(self, headers: Mapping[str, str]) -> list[asyncio.Future[dict[str, Any]]]:
        """Send these with every request from now on."""
        if not headers:
            return []
        return [self.send("Network.enable"), self.send("Network.setExtraHTTPHeaders", {"headers": dict(headers)})]

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

        read: JavaScript whose value is `game`. Gives `url`, `elements`, `beyond`, `game`, `notes`, `copied`
        (text that went to the clipboard, or None), `files` (how many the page asked to be kept), `drawn` and `posted`.
        """
        left, notes, copied, files, until = ms, [], None, 0, "null"
        reading = "()=>null" if read else "undefined"
        while True:
            late = "true" if self._late else "false"
            call = f"window.__flywheel__&&__flywheel__.observe({left!r},{reading},{self.time!r},{until},{late})"
            there, seen = await self._ask(call)
            if there and not seen:  # not a document of the kind that scripts run in
                seen = {"url": await self.address(), "elements": [], "game": None}
                return seen | {"notes": notes, "copied": copied, "files": files}
            if there:
                notes += seen["notes"]
                files += seen["files"]
                copied = copied if seen["copied"] is None else seen["copied"]
                self._ticks += max(seen["time"] - self.time, 0.0)
                self.time, left, until = seen["time"], seen["left"], "null"
                if not (seen["leaving"] or self._loading or self._asked or self._expected):
                    # By itself, since a page's policy on eval binds what comes after a wait.
                    there, game = await self._ask(read) if read else (True, seen["game"])
                    if there:
                        self.url, self.drawn, self._known = seen["url"], seen["drawn"], self._starts
                        told = {"notes": notes, "copied": copied, "files": files, "posted": self.posted}
                        return seen | told | {"game": game}
                # The page's word may come before its act, and after the end of an act that led nowhere (a download).
                self._expected |= seen["leaving"] and self._known == self._starts
                self._known = self._starts
            else:
                until = repr(self.time + left)
            await self._settled()

    async def leaves_key(self) -> bool:
        """The page let the last key pass, and is still there: the browser may act on it."""
        there, taken = await self._ask("window.__flywheel__&&__flywheel__.keyTaken()")
        return there and not taken

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
        await self._free()
        self._ticks += _FRAME_MS
        return cropped(await self.frames.shot(self.session, self._ticks), self._size)

    async def draw(self) -> None:
        await self._free()
        self._ticks += _FRAME_MS
        await self.frames.draw(self.session, self._ticks)

    async def deliver(self, sent: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        """The answer to an input that a page hears of in its next frame, such as a move of the mouse."""
        sent.add_done_callback(unheard)
        while not sent.done():
            await self.draw()
        return sent.result()

    async def until(self, there: Callable[[], bool], seconds: float) -> None:
        """Wait for what an event brings. Raises TimeoutError after so many seconds."""
        if not await self._wait(lambda: not there(), seconds):
            raise TimeoutError

    async def zoom(self, zoom: float) -> None:
        """Show it larger or smaller, as browsers do: it gets fewer or more pixels of its own to lay itself out in."""
        width, height = (math.ceil(side / zoom) for side in self._size)
        more = {"scale": zoom, "dontSetVisibleSize": True} if zoom != 1 else {}
        metrics = {"width": width, "height": height, "deviceScaleFactor": zoom, "mobile": False}
        await self.send("Emulation.setDeviceMetricsOverride", metrics | more)

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

    async def reload(self) -> None:
        """The same document anew."""
        await self._arrive("Page.reload", {})

    async def close(self) -> None:
        """Close it, unless the user is asked and stays."""
        with contextlib.suppress(PageGone):
            await self._arrive("Page.close", {})

    async def travel(self, steps: int) -> bool:
        """Back (-1) or forward (1) in the history; False where there is nothing."""
        history = await self.send("Page.getNavigationHistory")
        to = history["currentIndex"] + steps
        if not 0 <= to < len(history["entries"]):
            return False
        await self._arrive("Page.navigateToHistoryEntry", {"entryId": history["entries"][to]["id"]})
        return True

    async def _arrive(self, method: str, params: Mapping[str, Any]) -> None:
        """Go where a command leads; where that is refused, it stays where it is."""
        before, self._stays = self.arrivals, False
        await self.send(method, params)
        await self._wait(lambda: self.arrivals == before and not self._stays, _TRAVEL_S)
        await self._settled()

    def stay(self) -> None:
        """The user was asked whether to leave, and stays."""
        self._stays = True
        self._asked.clear()
        self._toward.clear()
        self._expected = False
        self._changed.set()

    async def _settled(self) -> None:
        """Nothing is on its way to another document. A frame that loads for ever is waited for in part."""
        # Some addresses a browser refuses without a word.
        if not await self._wait(lambda: self._asked or self._expected, _TRAVEL_S if self._expected else _ASKED_S):
            self._asked.clear()
            self.stillborn = self._expected and not self.arrivals
            self._expected = False
        if not await self._wait(lambda: self._loading, self.settings.timeout_s * _PATIENCE):
            self._loading.clear()
            self._late = True

    async def _wait(self, while_: Callable[[], Any], seconds: float) -> bool:
        """Wait while something holds; False after so many seconds, without those in which a dialog was open."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds) as limit:
                while while_() and not self.gone:
                    limit.reschedule(None if self._held else limit.when() or loop.time() + seconds)
                    await self._change()
        except TimeoutError:
            return False
        return True

    def hold(self, held: bool) -> None:
        """A dialog opened that the page waits for, or the last one closed."""
        self._held = held
        self._changed.set()

    async def _free(self) -> None:
        while self._held and not self.gone:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
        if self.gone:
            raise PageGone(self.gone, where=self.url)

    def wake(self) -> None:
        """Who waits in `until` looks again."""
        self._changed.set()

    def _equip(self, worker: str) -> None:
        """A worker begins: it gets a clock and chance of its own, ahead of its script."""
        self._workers += 1
        source = page_setup.worker_script(self._seed + self._workers * 0x9E3779B1 & 0xFFFFFFFF, self.time)
        # Awaited: of two commands that come at once, the worker may take the one that starts it first.
        equipped = self.connection.send("Runtime.evaluate", {"expression": source}, worker)
        equipped.add_done_callback(unheard)
        equipped.add_done_callback(lambda _: self.connection.post("Runtime.runIfWaitingForDebugger", session=worker))

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
                    self._toward[params["frameId"]] = params["url"]
            case "Page.frameStartedLoading":
                self._asked.discard(params["frameId"])
                self._loading.add(params["frameId"])
                self._expected = False
                self._starts += 1
            case "Page.frameClearedScheduledNavigation":
                self._asked.discard(params["frameId"])
                if params["frameId"] not in self._loading:
                    self._comes_to_nothing(params["frameId"])
            case "Page.frameStoppedLoading" | "Page.frameDetached":
                self._asked.discard(params["frameId"])
                self._loading.discard(params["frameId"])
                self._comes_to_nothing(params["frameId"])
            case "Page.frameNavigated":
                self._toward.pop(params["frame"]["id"], None)
                if "parentId" not in params["frame"]:
                    self.arrivals += 1
                    self._late = False
            case "Page.navigatedWithinDocument":
                self._toward.pop(params["frameId"], None)
                self.arrivals += params["frameId"] == self.target
            case "Target.attachedToTarget":
                if params["targetInfo"]["type"] == "worker":
                    self._equip(params["sessionId"])
                else:
                    self.connection.post("Runtime.runIfWaitingForDebugger", session=params["sessionId"])
            case "Input.dragIntercepted":
                self.dragged = params["data"]
            case _:
                self._hear(self, method, params)
                return
        self._changed.set()

    def _comes_to_nothing(self, frame: str) -> None:
        """A frame was told to go somewhere, and no document came: nothing is there, or a file, or nobody may go."""
        address = self._toward.pop(frame, "")
        if address:
            self._hear(self, WENT_NOWHERE, {"url": address})


def unheard(answer: asyncio.Future) -> None:
    if not answer.cancelled():
        answer.exception()
