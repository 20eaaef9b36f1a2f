"""One tab: a browser context of its own, with the pages of one session after the other.

A session begins with a fresh context, so nothing is left of the last one: no storage, no cookie, no visited link. Its
pages are a stack. A page that opens another, by a link or by `window.open`, is covered by it; when that one closes, or
the user goes back from its first document, the opener is there again as it was. All that a page does beside what is
seen (dialogs, popups, downloads, refused addresses) is told in `notes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from flywheel.agent.actions import Action, Hotkey, NavigateBack, Press
from flywheel.errors import EnvError, EnvTimeout
from flywheel.sandbox.cdp import CommandError, Connection
from flywheel.sandbox.downloads import Downloads
from flywheel.sandbox.frames import Frames
from flywheel.sandbox.inputs import Hands
from flywheel.sandbox.page import Page, PageGone
from flywheel.sandbox.profiles import Profile
from flywheel.sandbox.sessions import within
from flywheel.settings import Sandbox

_MAX_PAGES = 4  # of one session, one over the other
_MAX_NOTES = 5  # of one step
_MAX_FAULTS = 50  # of one session
_CLOSE_S = 5.0
_DOWNLOAD_S = 2.0  # that a step waits for a file
_CHUNK_MS = 5000.0  # page time passed by one call
_EMPTY = ("about:blank", "")


class Host(Protocol):
    """What a tab wants of its browser."""

    alive: bool
    profile: Profile

    def adopt(self, context: str, tab: Tab | None) -> None: ...


class Tab:
    def __init__(
        self, host: Host, connection: Connection, frames: Frames, settings: Sandbox, width: int, height: int
    ) -> None:
        self._host, self._connection, self._frames, self._settings = host, connection, frames, settings
        self._size = self.width, self.height = width, height
        self._context = ""
        self._pages: list[Page] = []
        self._blank = False  # the page is there and no session has begun in it
        self._preparing: asyncio.Task[None] | None = None
        self._seed = 0
        self._opened: asyncio.Future[list[asyncio.Future[dict[str, Any]]]] | None = None
        self._home, self._allowed, self._read = "", (), ""
        self._wanted = ""  # the address of a popup that was asked for
        self._good = ""  # the last address inside
        self._clipboard = ""  # what was copied last in this session
        self._folder: Path | None = None
        self._downloads: Downloads | None = None
        self.hands = Hands(width, height)
        self.notes: list[str] = []
        self.faults: list[str] = []  # what failed in the pages since `open`: uncaught errors, loads
        self.died = asyncio.Event()

    # -- the session ----------------------------------------------------------------------------------------------
    async def open(
        self, url: str, *, seed: int, allowed: tuple[str, ...], prepare: str = "", read: str = "",
        viewport: tuple[int, int] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """A fresh session at `url`: storage, clock and chance are new, and time stands still. Gives what is seen.

        prepare: JavaScript run after the load; a promise that it returns is waited for, and page time passes meanwhile.
        read: JavaScript whose value is `game` in what is seen; "": `window.__env__.getState()`. Raises EnvError where
        the page does not load or `prepare` fails. The caller keeps the deadline.
        """
        await self.prepare(viewport)
        self._blank, self._seed, self._clipboard = False, seed, ""
        self._home, self._allowed, self._read, self._good = url, allowed, read, url
        await self.page.begin(seed, 0.0)
        failed = await self.page.navigate(url)
        if failed:
            raise EnvError(f"the page does not load: {failed}", where=url)
        seen = await self.observe(0)
        status = await self.page.evaluate("performance.getEntriesByType('navigation')[0]?.responseStatus ?? 0")
        if status >= 400:
            raise EnvError(f"the page does not load: it answered status {status}", where=url)
        if prepare:
            with contextlib.suppress(CommandError):  # it led to another page
                await self.page.evaluate(f"__flywheel__.prepare(async () => {{ {prepare} }})")
            seen = await self.observe(0)
        await self.page.send("Page.resetNavigationHistory")
        return seen

    async def prepare(self, viewport: tuple[int, int] | None = None) -> None:
        """Have an empty page in a context of its own, which the next session begins in: a process is started for it."""
        if self._preparing is not None:
            await asyncio.gather(self._preparing, return_exceptions=True)
        size = viewport or self._size
        if not (self._blank and self._pages and not self._pages[-1].gone and size == (self.width, self.height)):
            self.width, self.height = size
            await self._renew()

    def rest(self) -> None:
        """Between two sessions: nothing of the last one is kept, and the next one's page is made ready."""
        self._dispose()
        self._preparing = asyncio.ensure_future(self._renew())
        self._preparing.add_done_callback(_unheard)

    async def close(self) -> None:
        """Give everything back, by force where a page hangs; may be called twice.

        Raises EnvTimeout where the browser does not let go of a page: it is then as good as dead itself.
        """
        if self._preparing is not None:
            self._preparing.cancel()
        for page in self._pages:  # not by its script, which may hang, but by the thread that speaks to the browser
            page.post("Page.crash")
        context = self._forget()
        if context and self._host.alive:
            with contextlib.suppress(CommandError):
                await self._connection.call(
                    "Target.disposeBrowserContext", {"browserContextId": context}, timeout_s=_CLOSE_S
                )

    async def ping(self) -> None:
        """Raises EnvTimeout where the page does not answer within `timeout_s`, EnvError where it is gone."""
        if not self._pages:
            return
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await self.page.evaluate("0")
        except TimeoutError:
            raise EnvTimeout(
                f"the page did not answer within {self._settings.timeout_s:g} s", where=self.page.url
            ) from None

    @property
    def page(self) -> Page:
        """The page that is seen."""
        if not self._pages:
            raise PageGone("the page is gone", where=self._good)
        return self._pages[-1]

    @property
    def url(self) -> str:
        return self._pages[-1].url if self._pages else ""

    @property
    def time(self) -> float:
        """Page time in ms since the session began."""
        return self._pages[-1].time if self._pages else 0.0

    @property
    def downloads(self) -> Path:
        """The folder of the session's files; it goes with the session."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="downloads-", dir=self._host.profile.path))
        return self._folder

    # -- what an environment does ---------------------------------------------------------------------------------
    async def do(self, action: Action) -> str:
        """Carry out one action on the page that is seen; "" or why nothing was done."""
        if isinstance(action, NavigateBack):
            return await self._back()
        page = self.page
        try:
            if isinstance(action, Hotkey | Press) and self._clipboard:  # it may paste
                held = json.dumps(self._clipboard)
                await page.evaluate(f"window.__flywheel__&&(__flywheel__.core.clipboard={held})")
            return await self.hands.do(action, page, self._allowed, page.url or self._home)
        except PageGone:
            if page in self._pages or not self._pages:
                raise
            return ""  # it closed itself, before it was told of the action's end

    async def observe(self, ms: float) -> dict[str, Any]:
        """Let what was begun finish, pass `ms` of page time, and tell what is seen: `url`, `elements`, `game`."""
        while True:
            page = self.page
            try:
                seen = await page.observe(ms, self._read)
            except EnvError:
                if page in self._pages or not self._pages:
                    raise
                continue  # it closed itself, and the one below is seen
            self._clipboard = self._clipboard if seen["copied"] is None else seen["copied"]
            for kind, text in seen["notes"]:
                (self._fault if kind == "fault" else self.note)(text)
            if page is not self._pages[-1]:
                ms = 0  # a page was opened over it: that one is seen, at its own beginning
                continue
            if within(seen["url"], self._allowed):
                self._good = seen["url"]
                return seen
            if seen["url"] in _EMPTY and len(self._pages) > 1:
                return seen  # an empty window, which its opener may write into
            self.note("the page left this world and was brought back")
            failed = await page.navigate(self._good)
            if failed:
                raise EnvError(f"the page left and cannot be brought back: {failed}", where=self._good)
            ms = 0

    async def settle_downloads(self) -> None:
        """Wait a moment for files that are under way: the next look at the folder finds them."""
        if self._downloads is not None and self._downloads.fresh:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DOWNLOAD_S):
                    while self._downloads.fresh:  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
            self._downloads.give_time()

    async def screenshot(self) -> bytes:
        """PNG of the viewport."""
        return await self.page.shot()

    async def advance(self, ms: float) -> dict[str, Any]:
        """Pass page time without looking at it, far faster than it is real; gives what is seen at the end."""
        while ms > _CHUNK_MS:
            await self.observe(_CHUNK_MS)
            ms -= _CHUNK_MS
        return await self.observe(ms)

    async def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression in the page that is seen."""
        return await self.page.evaluate(expression)

    def take_notes(self) -> list[str]:
        notes, self.notes = self.notes, []
        if len(notes) > _MAX_NOTES:
            notes = [*notes[:_MAX_NOTES], f"and {len(notes) - _MAX_NOTES} more"]
        return notes

    def note(self, text: str) -> None:
        if len(self.notes) < 1000:
            self.notes.append(text)

    def _fault(self, text: str) -> None:
        if len(self.faults) < _MAX_FAULTS:
            self.faults.append(text)

    # -- checkpoints ----------------------------------------------------------------------------------------------
    async def save(self) -> dict[str, Any]:
        """State of page, clock, chance and storage, as JSON values; `restorable` says whether `load` can use it."""
        kept = await self.page.evaluate("__flywheel__.save()")
        cookies = await self._connection.send("Storage.getCookies", {"browserContextId": self._context})
        kept["restorable"] &= len(self._pages) == 1 and not kept["databases"] and not self.hands.held
        return kept | {"cookies": cookies["cookies"], "mouse": self.hands.at, "clipboard": self._clipboard}

    async def load(self, kept: Mapping[str, Any]) -> bool:
        """Bring back what `save` gave, in a session just opened at the same address; False where that cannot be."""
        self._clipboard = kept["clipboard"]
        cookies = {"cookies": kept["cookies"], "browserContextId": self._context}
        await self._connection.send("Storage.setCookies", cookies)
        if kept["mouse"] != [0, 0]:
            self.hands.move(self.page, tuple(kept["mouse"]))
            await self.page.draw()
        return await self.page.evaluate(f"__flywheel__.load({json.dumps(kept)})")

    # -- targets --------------------------------------------------------------------------------------------------
    async def _renew(self) -> None:
        self._dispose()
        self.hands, self.notes, self.faults = Hands(self.width, self.height), [], []
        made = await self._connection.send("Target.createBrowserContext", {"disposeOnDetach": True})
        self._context = context = made["browserContextId"]
        self._host.adopt(context, self)
        self._downloads = Downloads(
            self.downloads, self._settings.download_mb * 2**20,
            lambda guid: self._connection.post("Browser.cancelDownload", {"guid": guid, "browserContextId": context}),
            self.note,
        )  # fmt: skip
        own = {"browserContextId": context}
        self._connection.post("Browser.grantPermissions", {"permissions": [], **own})  # all others are denied
        self._connection.post("Browser.setDownloadBehavior", {
            "behavior": "allowAndName", "downloadPath": str(self.downloads), "eventsEnabled": True, **own,
        })  # fmt: skip
        self._opened = asyncio.get_running_loop().create_future()
        target = {"url": "about:blank", "width": self.width, "height": self.height, **own}
        if self._frames.on_command:
            target["enableBeginFrameControl"] = True
        await self._connection.send("Target.createTarget", target)
        await asyncio.gather(*await self._opened)
        self._blank = True

    def attached(self, session: str, info: Mapping[str, Any]) -> None:
        """A target of this context is there, and waits. Its opener may wait with it, so nothing is awaited here."""
        opener = next((page for page in self._pages if page.target == info.get("openerId")), None)
        if info.get("openerId") and (opener is None or len(self._pages) >= _MAX_PAGES):
            self.note("a popup was closed: there are too many")
            self._connection.post("Target.closeTarget", {"targetId": info["targetId"]})
            self._connection.post("Runtime.runIfWaitingForDebugger", session=session)
            return
        page = Page(self._connection, self._frames, self._settings, info["targetId"], session, self._hear)
        told = page.set_up(self.width, self.height)
        if opener is not None:
            told.append(page.begin(self._seed + len(self._pages), self.time))
        for answer in told:
            answer.add_done_callback(_unheard)
        page.post("Runtime.runIfWaitingForDebugger")
        self._pages.append(page)
        if opener is not None:
            self.note("a page was opened over the last one")
            self._expect()
        elif self._opened is not None and not self._opened.done():
            self._opened.set_result(told)

    def _expect(self) -> None:
        """Of the opener's word, which comes before the opened page or after it: it is more than an empty window."""
        top = self._pages[-1]
        if self._wanted not in _EMPTY and len(self._pages) > 1 and not top.url:
            self._wanted = ""
            top.expect()

    def detached(self, session: str) -> None:
        page = next((page for page in self._pages if page.session == session), None)
        if page is not None:
            self._pages.remove(page)
            page.lose("the page closed itself")
            if self._pages:
                self.note("the page that was opened is closed")
            else:
                self.died.set()

    def _drop(self, page: Page) -> None:
        """Close a page that was opened over another."""
        self._pages.remove(page)
        page.lose("the page is closed")
        self._connection.post("Target.closeTarget", {"targetId": page.target})

    async def _back(self) -> str:
        if await self.page.back():
            return ""
        if len(self._pages) == 1:
            return "there is no page to go back to"
        self._drop(self.page)
        self.note("the page that was opened is closed")
        return ""

    def _dispose(self) -> None:
        context = self._forget()
        if context:
            self._connection.post("Target.disposeBrowserContext", {"browserContextId": context})

    def _forget(self) -> str:
        self._blank = False
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        for page in self._pages:
            page.lose("the page is closed")
        self._pages, self._opened = [], None
        context, self._context = self._context, ""
        if context:
            self._host.adopt(context, None)
        self.died.clear()
        return context

    # -- events ---------------------------------------------------------------------------------------------------
    def _hear(self, page: Page, method: str, params: Mapping[str, Any]) -> None:
        match method:
            case "Fetch.requestPaused":
                self._asked_for(page, params)
            case "Page.javascriptDialogOpening":
                self._answer(page, params)
            case "Page.windowOpen":
                self._wanted = params["url"]
                self._expect()
            case "Page.downloadWillBegin":
                self._downloads.begins(params)
            case "Page.downloadProgress":
                self._downloads.goes_on(params)
            case "Inspector.targetCrashed":
                page.lose("the page crashed")
                self.died.set()

    def _asked_for(self, page: Page, params: Mapping[str, Any]) -> None:
        """A document is asked for: inside this world it comes, outside nothing happens but a note."""
        request, url = params["requestId"], params["request"]["url"]
        if not within(url, self._allowed):
            self.note(f"an address outside this world was refused: {url[:200]}")
            page.post("Fetch.fulfillRequest", {"requestId": request, "responseCode": 204})
            if not page.url and page is not self._pages[0]:  # a popup that was opened for it
                self._drop(page)
            return
        page.post("Fetch.continueRequest", {"requestId": request})

    def _answer(self, page: Page, params: Mapping[str, Any]) -> None:
        """Dialogs that the page's script could not answer itself (`clock.js`): leaving is allowed, the rest is OK."""
        kind, text = params["type"], params.get("message", "")[:100]
        answer = {"accept": True} | ({"promptText": params.get("defaultPrompt", "")} if kind == "prompt" else {})
        page.post("Page.handleJavaScriptDialog", answer)
        self.note(f'{kind} "{text}": answered OK')


def _unheard(answer: asyncio.Future) -> None:
    if not answer.cancelled():
        answer.exception()
