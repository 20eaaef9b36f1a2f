"""One tab: a browser context of its own, with the pages of one session after the other.

A session begins with a fresh context, so nothing is left of the last one: no storage, no cookie, no visited link. Its
pages are a stack (`page_stack.py`). A dialog of any of them is seen over
the last screen, and is what the user acts on until it is answered (`dialogs.py`). All that a page does beside what is
seen (popups, downloads, refused addresses) is told in `notes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from flywheel.agent.actions import Action, Hotkey, NavigateBack, Press
from flywheel.errors import EnvError, EnvTimeout
from flywheel.sandbox import browser_keys, opening
from flywheel.sandbox.cdp import CommandError, Connection
from flywheel.sandbox.chooser import FileChooser
from flywheel.sandbox.context import BrowserContext
from flywheel.sandbox.cover import Contexts, Cover
from flywheel.sandbox.dialogs import Dialogs
from flywheel.sandbox.drags import Rest
from flywheel.sandbox.find_bar import FindBar
from flywheel.sandbox.frames import Frames
from flywheel.sandbox.inputs import InputDriver
from flywheel.sandbox.page import WENT_NOWHERE, Page, PageGone, unheard
from flywheel.sandbox.page_stack import EMPTY, PageStack
from flywheel.sandbox.pickers import Pickers
from flywheel.sandbox.profiles import Profile
from flywheel.sandbox.sessions import origins, within
from flywheel.settings import Sandbox

if TYPE_CHECKING:
    from flywheel.sandbox.entry import Entry

_MAX_NOTES = 5  # of one step
_MAX_FAULTS = 50  # of one session
_CLOSE_S = 5.0
_CHOOSER_S = 1.0  # for the browser to say which input wants a file
_CHUNK_MS = 5000.0  # page time passed by one call
_ACTION_MS = 200.0  # page time that an action may take


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
        self._context: BrowserContext | None = None
        self.stack = PageStack(connection, frames, settings, self._hear, self.note, self._ends)
        self._blank = False  # the page is there and no session has begun in it
        self._preparing: asyncio.Task[None] | None = None
        self._home, self._read = "", ""
        self._good = ""  # the last address inside
        self.clipboard = ""  # what was copied last in this session
        self._files: list[Path] = []  # folders whose files a page may be given
        self._chooser = FileChooser(width, height)
        self._asked_files: tuple[Page, Mapping[str, Any]] | None = None
        self.screen = b""  # the last one of this session
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
        self._files = [*([files] if files else []), self.context.folder]
        self._blank, self.clipboard, self.screen = False, "", b""
        self._home, self._read, self._good = url, read, url
        self.stack.seed, self.stack.allowed, self.stack.headers = seed, allowed, {}
        self.context.proxy.origins = origins(allowed)
        seen = await self.dialogs.through(opening.begin(self, url, seed, prepare, entry))
        return await self.observe(0) if seen is None else seen

    async def prepare(self, viewport: tuple[int, int] | None = None) -> None:
        """Have an empty page in a context of its own, which the next session begins in: a process is started for it."""
        if self._preparing is not None:
            await asyncio.gather(self._preparing, return_exceptions=True)
        size = viewport or self._size
        if not (
            self._blank and self.stack.pages and not self.stack.pages[-1].gone and size == (self.width, self.height)
        ):
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
        for page in self.stack.pages:  # not by its script, which may hang, but by the thread that speaks to the browser
            page.post("Page.crash")
        context = self._forget()
        if context and self._host.alive:
            with contextlib.suppress(CommandError):
                await self._connection.call(
                    "Target.disposeBrowserContext", {"browserContextId": context}, timeout_s=_CLOSE_S
                )

    def disconnect(self) -> None:
        """What its pages reached, they reach no more; may be called twice."""
        if self._context is not None:
            self._context.proxy.close()

    async def ping(self) -> None:
        """Raises EnvTimeout where the page does not answer within `timeout_s`, EnvError where it is gone.

        A page whose dialog is open waits for its user."""
        if not self.stack.pages or self.dialogs.open:
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
        if not self.stack.pages:
            raise PageGone("the page is gone", where=self._good)
        return self.stack.pages[-1]

    @property
    def url(self) -> str:
        return self.stack.pages[-1].url if self.stack.pages else ""

    @property
    def time(self) -> float:
        """Page time in ms since the session began."""
        return self.stack.pages[-1].time if self.stack.pages else 0.0

    @property
    def drawn(self) -> int:
        """Numbers that the document which is seen has taken from its seeded chance."""
        return self.stack.pages[-1].drawn if self.stack.pages else 0

    @property
    def context(self) -> BrowserContext:
        if self._context is None:
            raise PageGone("the page is gone", where=self._good)
        return self._context

    @property
    def zoom(self) -> float:
        return self.stack.zoom

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
            note = await self.hands.do(action, page, self.stack.allowed, page.url or self._home, ms, self._rest(page))
            if key is not None and page is self.page and await page.leaves_key():
                note = await browser_keys.press(key, self)
            return note
        except PageGone:
            if page in self.stack.pages or not self.stack.pages:
                raise
            return ""  # it closed itself, before it was told of the action's end

    def _rest(self, page: Page) -> Rest:
        """Pass page time within an action on `page`; None where another page is seen from then on."""

        async def rest(ms: float) -> dict[str, Any] | None:
            seen = await self.observe(ms)
            return seen if self.stack.pages and page is self.stack.pages[-1] else None

        return rest

    async def observe(self, ms: float) -> dict[str, Any]:
        """Let what was begun finish, pass `ms` of page time, and tell what is seen: `url`, `elements`, `game`.

        Of a dialog: `url`, its own `elements`, and `dialog`; `game` is None. No time passes while one is open.
        """
        seen = None
        while seen is None or self.dialogs.open:
            if self.dialogs.open:
                return {"url": self.url or self._home, "game": None} | await self.dialogs.look()
            seen = await self.dialogs.through(self.look(ms))
        return seen | {"elements": [*seen["elements"], *self._bar.elements]} if self._bar.open(self.page) else seen

    async def look(self, ms: float) -> dict[str, Any]:
        """As `observe`, where no dialog opens."""
        while True:
            page = self.page
            try:
                seen = await page.observe(ms, self._read)
            except EnvError:
                if page in self.stack.pages or not self.stack.pages:
                    raise
                continue  # it closed itself, and the one below is seen
            self.clipboard = self.clipboard if seen["copied"] is None else seen["copied"]
            self.context.downloads.expect(seen["files"])
            for kind, text in seen["notes"]:
                (self._fault if kind == "fault" else self.note)(text)
            if page.stillborn and page in self.stack.pages[1:]:
                self.stack.drop(page)
                self.note("a popup was closed: it never came to its address")
            if page is not self.stack.pages[-1]:
                ms = 0  # a page was opened over it: that one is seen, at its own beginning
                continue
            if seen.get("choosing"):
                await self._show_chooser(page)
            if within(seen["url"], self.stack.allowed):
                self._good = seen["url"]
                await self.pickers.look(page, seen, self.context.id, (self.width, self.height))
                return seen
            if seen["url"] in EMPTY and len(self.stack.pages) > 1:
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
        if self._context is not None:
            await self._context.downloads.settle()

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
        cookies = await self.context.cookies()
        kept["restorable"] &= len(self.stack.pages) == 1 and not (kept["databases"] or self.hands.held)
        kept["restorable"] &= not (self._chooser.open or self.pickers.open)
        return kept | {"cookies": cookies, "mouse": self.hands.at, "clipboard": self.clipboard, "zoom": self.zoom}

    async def load(self, kept: Mapping[str, Any]) -> bool:
        """Bring back what `save` gave, in a session just opened at the same address; False where that cannot be."""
        self.clipboard = kept["clipboard"]
        await self.set_zoom(kept["zoom"])
        await self.context.set_cookies(kept["cookies"])
        if kept["mouse"] != [0, 0]:
            self.hands.move(self.page, tuple(kept["mouse"]))
            await self.page.draw()
        return await self.page.evaluate(f"__flywheel__.load({json.dumps(kept)})")

    # -- targets --------------------------------------------------------------------------------------------------
    async def _renew(self) -> None:
        self._dispose()
        self.hands, self.notes, self.faults = InputDriver(self.width, self.height), [], []
        self._chooser, self._asked_files = FileChooser(self.width, self.height), None
        limit = self._settings.download_mb * 2**20
        self._context = await BrowserContext.open(
            self._connection, self._host.profile.path, limit, self.note, self._fault
        )
        self._host.adopt(self._context.id, self)
        await self.stack.begin(self._context.id, (self.width, self.height))
        self._blank = True

    def attached(self, session: str, info: Mapping[str, Any]) -> None:
        """A target of this context is there, and waits."""
        if not self.pickers.overlay.attached(session, info):
            self.stack.attached(session, info)

    def detached(self, session: str) -> None:
        self.pickers.overlay.detached(session)
        if self.stack.detached(session) is not None:
            if self.stack.pages:
                self.note("the page that was opened is closed")
            else:
                self.died.set()

    async def _back(self) -> str:
        if await self.page.travel(-1):
            return ""
        return "there is no page to go back to" if len(self.stack.pages) == 1 else await self.close_page()

    async def close_page(self) -> str:
        """Close the page that is seen, where it was opened over another; "" or why not."""
        if len(self.stack.pages) == 1:
            return "not done: it is the only page"
        await self.page.close()
        return ""

    async def find(self, go: int) -> None:
        """Open the bar that finds text, or go to the next (1) or previous (-1) place of the last one."""
        await self._bar.press(self.page, go, (self.width, self.height))

    async def set_zoom(self, zoom: float) -> None:
        """Of all pages of this session, those to come included."""
        await self.stack.set_zoom(zoom)

    def _dispose(self) -> None:
        context = self._forget()
        if context:
            self._connection.post("Target.disposeBrowserContext", {"browserContextId": context})

    def _forget(self) -> str:
        self._blank = False
        self.pickers.forget()
        self.dialogs.forget()
        self._bar.forget()
        self.stack.forget()
        context, self._context = self._context, None
        if context is not None:
            context.forget()
            self._host.adopt(context.id, None)
        self.died.clear()
        return context.id if context is not None else ""

    # -- events ---------------------------------------------------------------------------------------------------
    def _hear(self, page: Page, method: str, params: Mapping[str, Any]) -> None:
        match method:
            case "Fetch.requestPaused":
                self.stack.asked_for(page, params)
            case "Page.fileChooserOpened":
                self._asked_files = (page, params)
                page.wake()
            case "Page.javascriptDialogOpening":
                self.dialogs.opens(page, params, any(self._frames.drawing(one.session) for one in self.stack.pages))
                self._hold()
            case "Page.javascriptDialogClosed":
                self.dialogs.closes(page)
                self._hold()
            case _ if method == WENT_NOWHERE:
                self._went_nowhere(params["url"])
            case "Page.windowOpen":
                self.stack.wants(params["url"])
            case "Page.downloadWillBegin":
                self.context.downloads.begins(params)
            case "Page.downloadProgress":
                self.context.downloads.goes_on(params)
            case "Inspector.targetCrashed":
                page.lose("the page crashed")
                self._ends(page)
                self.died.set()

    def _went_nowhere(self, url: str) -> None:
        if within(url, self.stack.allowed):
            self.context.downloads.expect(1)  # it may be one
        elif not url.startswith(("http:", "https:", "javascript:")):  # of those is told where they are refused
            self.note(f"an address that pages may not lead to was not opened: {url[:200]}")

    def _ends(self, page: Page) -> None:
        """Nobody answers the dialogs of a page that is gone."""
        self.dialogs.forget(page)
        self._hold()

    def _hold(self) -> None:
        self.stack.hold(self.dialogs.blocking)
