"""One tab: a browser context of its own, with the pages of one session after the other.

A session begins with a fresh context, so nothing is left of the last one: no storage, no cookie, no visited link. Its
pages are a stack. A page that opens another, by a link or by `window.open`, is covered by it; when that one closes, or
the user goes back from its first document, the opener is there again as it was. A dialog of any of them is seen over
the last screen, and is what the user acts on until it is answered (`dialogs.py`). All that a page does beside what is
seen (popups, downloads, refused addresses) is told in `notes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from flywheel.agent.actions import Action, Hotkey, NavigateBack, Press
from flywheel.errors import EnvError, EnvTimeout
from flywheel.sandbox import browser_keys, loads
from flywheel.sandbox.cdp import CommandError, Connection
from flywheel.sandbox.chooser import FileChooser
from flywheel.sandbox.cover import Contexts, Cover
from flywheel.sandbox.dialogs import Dialogs
from flywheel.sandbox.downloads import Downloads
from flywheel.sandbox.drags import Rest
from flywheel.sandbox.find_bar import FindBar
from flywheel.sandbox.frames import Frames
from flywheel.sandbox.inputs import InputDriver
from flywheel.sandbox.page import WENT_NOWHERE, Page, PageGone, unheard
from flywheel.sandbox.pickers import Pickers
from flywheel.sandbox.profiles import Profile
from flywheel.sandbox.proxy import Proxy
from flywheel.sandbox.sessions import origins, within
from flywheel.settings import Sandbox

if TYPE_CHECKING:
    from flywheel.sandbox.entry import Entry

_MAX_PAGES = 4  # of one session, one over the other
_MAX_NOTES = 5  # of one step
_MAX_FAULTS = 50  # of one session
_CLOSE_S = 5.0
_CHOOSER_S = 1.0  # for the browser to say which input wants a file
_CHUNK_MS = 5000.0  # page time passed by one call
_ACTION_MS = 200.0  # page time that an action may take
_EMPTY = ("about:blank", "")
_NEVER_OPENED = ("data:", "filesystem:")  # by a link or a script, in a window of its own


class Host(Contexts, Protocol):
    """What a tab wants of its browser."""

    alive: bool
    profile: Profile


class Tab:
    def __init__(
        self, host: Host, connection: Connection, frames: Frames, settings: Sandbox, width: int, height: int
    ) -> None:
        self._host, self._connection, self._frames, self._settings = host, connection, frames, settings
        self._size = self.width, self.height = width, height
        self._context = ""
        self._proxy: Proxy | None = None  # of the context
        self._pages: list[Page] = []
        self._blank = False  # the page is there and no session has begun in it
        self._preparing: asyncio.Task[None] | None = None
        self._seed = 0
        self._opened: asyncio.Future[list[asyncio.Future[dict[str, Any]]]] | None = None
        self._home, self._allowed, self._read = "", (), ""
        self._headers: Mapping[str, str] = {}  # that the session sends with each request
        self._wanted = ""  # the address of a popup that was asked for
        self._good = ""  # the last address inside
        self.clipboard = ""  # what was copied last in this session
        self._files: list[Path] = []  # folders whose files a page may be given
        self._chooser = FileChooser(width, height)
        self._asked_files: tuple[Page, Mapping[str, Any]] | None = None
        self.zoom = 1.0
        self.screen = b""  # the last one of this session
        self._folder: Path | None = None
        self._downloads: Downloads | None = None
        self.hands = InputDriver(width, height)
        self.pickers = Pickers(connection, frames, settings)
        self._bar = FindBar(Cover(host, connection, frames, settings))
        self.dialogs = Dialogs(self, Cover(host, connection, frames, settings))
        self.notes: list[str] = []
        self.faults: list[str] = []  # what failed in the pages since `open`: uncaught errors, loads
        self.died = asyncio.Event()

    # -- the session ----------------------------------------------------------------------------------------------
    async def open(
        self,
        url: str,
        *,
        seed: int,
        allowed: tuple[str, ...],
        prepare: str = "",
        read: str = "",
        viewport: tuple[int, int] | None = None,
        files: Path | None = None,
        entry: Entry | None = None,
    ) -> dict[str, Any]:
        """A fresh session at `url`: storage, clock and chance are new, and time stands still. Gives what is seen.

        prepare: JavaScript run after the load; a promise that it returns is waited for, and page time passes meanwhile.
        read: JavaScript whose value is `game` in what is seen; "": `window.__env__.getState()`. Raises EnvError where
        the page does not load or `prepare` fails. The caller keeps the deadline. Where a dialog opens, it is what is
        seen, and the rest follows when it is answered. files: a folder whose files the session has, beside what it
        downloads. entry: how one logs in before.
        """
        await self.prepare(viewport)
        self._files = [*([files] if files else []), self.downloads]
        self._blank, self._seed, self.clipboard, self.screen = False, seed, "", b""
        self._headers = {}
        self._home, self._allowed, self._read, self._good = url, allowed, read, url
        self._proxy.origins = origins(allowed)
        seen = await self.dialogs.through(self._begin(url, seed, prepare, entry))
        return await self.observe(0) if seen is None else seen

    async def _begin(self, url: str, seed: int, prepare: str, entry: Entry | None) -> dict[str, Any]:
        await self.page.begin(seed, 0.0)
        if entry:
            await self._enter(entry)
        seen = await self._load(url)
        for script in (entry.done if entry else "", prepare):
            if script:
                seen = await self._prepared(script)
        await self.page.send("Page.resetNavigationHistory")
        return seen

    async def _enter(self, entry: Entry) -> None:
        """Log in, before the first page."""
        self._headers = entry.headers
        if entry.cookies:
            cookies = {"cookies": list(entry.cookies), "browserContextId": self._context}
            await self._connection.send("Storage.setCookies", cookies)
        await asyncio.gather(*self.page.send_headers(self._headers))
        if entry.script:
            await self._load(entry.address or self._home)
            await self._prepared(entry.script)

    async def _load(self, url: str) -> dict[str, Any]:
        failed = await self.page.navigate(url)
        if failed:
            why = f" ({self.faults[-1]})" if self.faults else ""
            raise EnvError(f"the page does not load: {failed}{why}", where=url)
        seen = await self._observe(0)
        status = await self.page.evaluate("performance.getEntriesByType('navigation')[0]?.responseStatus ?? 0")
        if status >= 400:
            raise EnvError(f"the page does not load: it answered status {status}", where=url)
        return seen

    async def _prepared(self, script: str) -> dict[str, Any]:
        """Run what prepares a page, and follow where it leads."""
        with contextlib.suppress(CommandError):  # it led to another page
            await self.page.evaluate(f"__flywheel__.prepare(async () => {{ {script} }})")
        return await self._observe(0)

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
        self._preparing.add_done_callback(unheard)

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

    def disconnect(self) -> None:
        """What its pages reached, they reach no more; may be called twice."""
        if self._proxy is not None:
            self._proxy.close()

    async def ping(self) -> None:
        """Raises EnvTimeout where the page does not answer within `timeout_s`, EnvError where it is gone.

        A page whose dialog is open waits for its user."""
        if not self._pages or self.dialogs.open:
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
    def drawn(self) -> int:
        """Numbers that the document which is seen has taken from its seeded chance."""
        return self._pages[-1].drawn if self._pages else 0

    @property
    def downloads(self) -> Path:
        """The folder of the session's files; it goes with the session."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="downloads-", dir=self._host.profile.path))
        return self._folder

    # -- what an environment does ---------------------------------------------------------------------------------
    async def do(self, action: Action, ms: float = _ACTION_MS) -> str:
        """Carry out one action on what is seen, page or dialog; "" or why nothing was done.

        ms: page time that it may take: a drag takes some, all other actions take none.
        """
        if self.dialogs.open:
            return await self.dialogs.do(action)
        return await self.dialogs.through(self._do(action, ms)) or ""

    async def _do(self, action: Action, ms: float) -> str:
        if self._chooser.open:
            return await self._chooser.do(action)
        page = self.page
        taken = await self.pickers.take(action, self.hands, page, (self.width, self.height))
        if taken is not None:
            return taken
        if isinstance(action, NavigateBack):
            return await self._back()
        try:
            if isinstance(action, Hotkey | Press) and self.clipboard:  # it may paste
                held = json.dumps(self.clipboard)
                await page.evaluate(f"window.__flywheel__&&(__flywheel__.core.clipboard={held})")
            key = browser_keys.find(action, self.hands.modifiers)
            if key is None and self._bar.open(page):
                taken = await self._bar.take(action, self)
                if taken is not None:
                    return taken
            if key is not None and key.reserved:
                return await browser_keys.press(key, self)
            note = await self.hands.do(action, page, self._allowed, page.url or self._home, ms, self._rest(page))
            if key is not None and page is self.page and await page.leaves_key():
                note = await browser_keys.press(key, self)
            return note
        except PageGone:
            if page in self._pages or not self._pages:
                raise
            return ""  # it closed itself, before it was told of the action's end

    def _rest(self, page: Page) -> Rest:
        """Pass page time within an action on `page`; None where another page is seen from then on."""

        async def rest(ms: float) -> dict[str, Any] | None:
            seen = await self.observe(ms)
            return seen if self._pages and page is self._pages[-1] else None

        return rest

    async def observe(self, ms: float) -> dict[str, Any]:
        """Let what was begun finish, pass `ms` of page time, and tell what is seen: `url`, `elements`, `game`.

        Of a dialog: `url`, its own `elements`, and `dialog`; `game` is None. No time passes while one is open.
        """
        seen = None
        while seen is None or self.dialogs.open:
            if self.dialogs.open:
                return {"url": self.url or self._home, "game": None} | await self.dialogs.look()
            seen = await self.dialogs.through(self._observe(ms))
        return seen | {"elements": [*seen["elements"], *self._bar.elements]} if self._bar.open(self.page) else seen

    async def _observe(self, ms: float) -> dict[str, Any]:
        while True:
            page = self.page
            try:
                seen = await page.observe(ms, self._read)
            except EnvError:
                if page in self._pages or not self._pages:
                    raise
                continue  # it closed itself, and the one below is seen
            self.clipboard = self.clipboard if seen["copied"] is None else seen["copied"]
            self._downloads.expect(seen["files"])
            for kind, text in seen["notes"]:
                (self._fault if kind == "fault" else self.note)(text)
            if page.stillborn and page in self._pages[1:]:
                self._drop(page)
                self.note("a popup was closed: it never came to its address")
            if page is not self._pages[-1]:
                ms = 0  # a page was opened over it: that one is seen, at its own beginning
                continue
            if seen.get("choosing"):
                await self._show_chooser(page)
            if within(seen["url"], self._allowed):
                self._good = seen["url"]
                await self.pickers.look(page, seen, self._context, (self.width, self.height))
                return seen
            if seen["url"] in _EMPTY and len(self._pages) > 1:
                return seen  # an empty window, which its opener may write into
            self.note("the page left this world and was brought back")
            failed = await page.navigate(self._good)
            if failed:
                raise EnvError(f"the page left and cannot be brought back: {failed}", where=self._good)
            ms = 0

    async def close_dialogs(self) -> dict[str, Any]:
        """Close all that are open, as at the end of an episode: alerts are closed, the rest is cancelled."""
        await self.dialogs.close()
        return await self.observe(0)

    async def settle_downloads(self) -> None:
        """Wait a moment for files that are under way: the next look at the folder finds them."""
        if self._downloads is not None:
            await self._downloads.settle()

    async def screenshot(self) -> bytes:
        """PNG of the viewport, with what the browser shows over it."""
        if not self.dialogs.open:
            shot = await self.page.shot()
            self.screen = self._chooser.drawn(shot) if self._chooser.open else await self.pickers.onto(shot)
            if self._bar.open(self.page) and not self.dialogs.open:
                self.screen = await self._bar.onto(self.screen)
        return await self.dialogs.shot() if self.dialogs.open else self.screen

    async def _show_chooser(self, page: Page) -> None:
        """A page asked for a file: a list of the session's files opens over it."""
        with contextlib.suppress(TimeoutError):  # refused by the browser: nobody pressed anything
            await page.until(lambda: self._asked_files is not None, _CHOOSER_S)
        asked, self._asked_files = self._asked_files, None
        if asked is not None:
            self.note(await self._chooser.show(*asked, self._files))

    async def advance(self, ms: float) -> dict[str, Any]:
        """Pass page time without looking at it, far faster than it is real; gives what is seen at the end."""
        while ms > _CHUNK_MS:
            await self.observe(_CHUNK_MS)
            ms -= _CHUNK_MS
        return await self.observe(ms)

    async def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression in the page that is seen; None where it opens a dialog."""
        if self.dialogs.blocking:
            raise EnvError("the page waits for an answer to its dialog", where=self.url, fix="answer it first")
        return await self.dialogs.through(self.page.evaluate(expression))

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
        if self.dialogs.open or self._bar.open(self.page):
            return {"restorable": False}
        kept = await self.page.evaluate("__flywheel__.save()")
        cookies = await self._connection.send("Storage.getCookies", {"browserContextId": self._context})
        kept["restorable"] &= len(self._pages) == 1 and not (kept["databases"] or self.hands.held)
        kept["restorable"] &= not (self._chooser.open or self.pickers.open)
        return kept | {
            "cookies": cookies["cookies"],
            "mouse": self.hands.at,
            "clipboard": self.clipboard,
            "zoom": self.zoom,
        }

    async def load(self, kept: Mapping[str, Any]) -> bool:
        """Bring back what `save` gave, in a session just opened at the same address; False where that cannot be."""
        self.clipboard = kept["clipboard"]
        await self.set_zoom(kept["zoom"])
        cookies = {"cookies": kept["cookies"], "browserContextId": self._context}
        await self._connection.send("Storage.setCookies", cookies)
        if kept["mouse"] != [0, 0]:
            self.hands.move(self.page, tuple(kept["mouse"]))
            await self.page.draw()
        return await self.page.evaluate(f"__flywheel__.load({json.dumps(kept)})")

    # -- targets --------------------------------------------------------------------------------------------------
    async def _renew(self) -> None:
        self._dispose()
        self.hands, self.notes, self.faults = InputDriver(self.width, self.height), [], []
        self._chooser, self._asked_files = FileChooser(self.width, self.height), None
        self._proxy = Proxy(self._fault)
        await self._proxy.start()
        wanted = {"disposeOnDetach": True, "proxyServer": self._proxy.address, "proxyBypassList": "<-loopback>"}
        try:
            made = await self._connection.send("Target.createBrowserContext", wanted)
        except BaseException:
            self.disconnect()
            raise
        self._context = context = made["browserContextId"]
        self._host.adopt(context, self)
        self._downloads = Downloads(
            self.downloads,
            self._settings.download_mb * 2**20,
            lambda guid: self._connection.post("Browser.cancelDownload", {"guid": guid, "browserContextId": context}),
            self.note,
        )
        own = {"browserContextId": context}
        self._connection.post("Browser.grantPermissions", {"permissions": [], **own})  # all others are denied
        self._connection.post(
            "Browser.setDownloadBehavior",
            {"behavior": "allowAndName", "downloadPath": str(self.downloads), "eventsEnabled": True, **own},
        )
        self._opened = asyncio.get_running_loop().create_future()
        target = {"url": "about:blank", "width": self.width, "height": self.height, **own}
        if self._frames.on_command:
            target["enableBeginFrameControl"] = True
        await self._connection.send("Target.createTarget", target)
        await asyncio.gather(*await self._opened)
        self._blank = True

    def attached(self, session: str, info: Mapping[str, Any]) -> None:
        """A target of this context is there, and waits. Its opener may wait with it, so nothing is awaited here."""
        if self.pickers.overlay.attached(session, info):
            return
        opener = next((page for page in self._pages if page.target == info.get("openerId")), None)
        if info.get("openerId") and (opener is None or len(self._pages) >= _MAX_PAGES):
            self.note("a popup was closed: there are too many")
            self._connection.post("Target.closeTarget", {"targetId": info["targetId"]})
            self._connection.post("Runtime.runIfWaitingForDebugger", session=session)
            return
        page = Page(self._connection, self._frames, self._settings, info["targetId"], session, self._hear)
        told = page.set_up(self.width, self.height)
        if self.zoom != 1:
            told.append(asyncio.ensure_future(page.zoom(self.zoom)))
        if opener is not None:
            told.append(page.begin(self._seed + len(self._pages), self.time))
            told += page.send_headers(self._headers)
        for answer in told:
            answer.add_done_callback(unheard)
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
            wanted, self._wanted = self._wanted, ""
            if wanted.startswith(_NEVER_OPENED):
                self._drop(top)
                self.note(f"a popup was closed: browsers open no {wanted.partition(':')[0]}: address in one")
                return
            top.expect()

    def detached(self, session: str) -> None:
        self.pickers.overlay.detached(session)
        page = next((page for page in self._pages if page.session == session), None)
        if page is not None:
            self._pages.remove(page)
            page.lose("the page closed itself")
            self._ends(page)
            if self._pages:
                self.note("the page that was opened is closed")
            else:
                self.died.set()

    def _drop(self, page: Page) -> None:
        """Close a page that was opened over another."""
        self._pages.remove(page)
        page.lose("the page is closed")
        self._ends(page)
        self._connection.post("Target.closeTarget", {"targetId": page.target})

    async def _back(self) -> str:
        if await self.page.travel(-1):
            return ""
        return "there is no page to go back to" if len(self._pages) == 1 else await self.close_page()

    async def close_page(self) -> str:
        """Close the page that is seen, where it was opened over another; "" or why not."""
        if len(self._pages) == 1:
            return "not done: it is the only page"
        await self.page.close()
        return ""

    async def find(self, go: int) -> None:
        """Open the bar that finds text, or go to the next (1) or previous (-1) place of the last one."""
        await self._bar.press(self.page, go, (self.width, self.height))

    async def set_zoom(self, zoom: float) -> None:
        """Of all pages of this session, those to come included."""
        self.zoom = zoom
        for page in self._pages:
            await page.zoom(zoom)

    def _dispose(self) -> None:
        context = self._forget()
        if context:
            self._connection.post("Target.disposeBrowserContext", {"browserContextId": context})

    def _forget(self) -> str:
        self._blank, self.zoom = False, 1.0
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        self.pickers.forget()
        self.dialogs.forget()
        self._bar.forget()
        for page in self._pages:
            page.lose("the page is closed")
        self._pages, self._opened = [], None
        self.disconnect()
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
            case "Page.fileChooserOpened":
                self._asked_files = (page, params)
                page.wake()
            case "Page.javascriptDialogOpening":
                self.dialogs.opens(page, params, any(self._frames.drawing(one.session) for one in self._pages))
                self._hold()
            case "Page.javascriptDialogClosed":
                self.dialogs.closes(page)
                self._hold()
            case _ if method == WENT_NOWHERE:
                self._went_nowhere(params["url"])
            case "Page.windowOpen":
                self._wanted = params["url"]
                self._expect()
            case "Page.downloadWillBegin":
                self._downloads.begins(params)
            case "Page.downloadProgress":
                self._downloads.goes_on(params)
            case "Inspector.targetCrashed":
                page.lose("the page crashed")
                self._ends(page)
                self.died.set()

    def _went_nowhere(self, url: str) -> None:
        if within(url, self._allowed):
            self._downloads.expect(1)  # it may be one
        elif not url.startswith(("http:", "https:", "javascript:")):  # of those is told where they are refused
            self.note(f"an address that pages may not lead to was not opened: {url[:200]}")

    def _asked_for(self, page: Page, params: Mapping[str, Any]) -> None:
        """A document is asked for: inside this world it comes, outside nothing happens but a note."""
        if loads.answered(params):
            loads.pass_on(page, params)
            return
        request, url = params["requestId"], params["request"]["url"]
        if not within(url, self._allowed):
            self.note(f"an address outside this world was refused: {url[:200]}")
            page.post("Fetch.fulfillRequest", {"requestId": request, "responseCode": 204})
            if not page.url and page is not self._pages[0]:  # a popup that was opened for it
                self._drop(page)
            return
        if params["frameId"] == page.target:
            page.posted = params["request"]["method"] != "GET"
        page.post("Fetch.continueRequest", {"requestId": request})

    def _ends(self, page: Page) -> None:
        """Nobody answers the dialogs of a page that is gone."""
        self.dialogs.forget(page)
        self._hold()

    def _hold(self) -> None:
        """Pages of one session may share a process: where one waits, none is drawn."""
        for page in self._pages:
            page.hold(self.dialogs.blocking)
