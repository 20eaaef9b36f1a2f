"""Drive one tab, which plays one session after the other: pages, input, imitated browser UI, and watchers' pictures."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from flywheel.agent.actions import Action, Hotkey, NavigateBack, Press, split_action
from flywheel.envs import keyboard
from flywheel.envs.base import LatestPicture
from flywheel.envs.browser.driver import page as pages
from flywheel.envs.browser.driver.browser_ui import CoverPage, Dialogs, FileChooser, FindBar
from flywheel.envs.browser.driver.cdp import BrowserLink, CdpCommandError, ignore_answer
from flywheel.envs.browser.driver.context import BrowserContext, is_within_prefixes, list_allowed_origins
from flywheel.envs.browser.driver.input import InputDriver, TouchDriver
from flywheel.envs.browser.driver.page import BrowserPage, PageGone, PageStack, SessionNotes
from flywheel.envs.browser.driver.pickers import FormPickers
from flywheel.envs.browser.page_source import LoginSteps
from flywheel.utils.errors import EnvError, EnvTimeout

_SCREENCAST_FORMAT = {"format": "jpeg", "quality": 80}
_MAX_CORNER_WIDTH = 8  # pixels: a narrower frame comes from `ScreenshotCapture.draw` (`cdp.py`)


class Screencast:
    """Send a tab's picture to people who watch it: the browser's own screencast, and the screenshot of each step.

    The screencast causes no frame itself, so the agent's pictures do not change. While something is open over the page,
    watchers get the picture with it in place of the browser's. While nobody watches, the browser has nothing to do.
    """

    def __init__(self, tab: BrowserTab) -> None:
        self._tab = tab
        self._watchers: set[LatestPicture] = set()
        self._page: BrowserPage | None = None  # the page that sends its screencast
        self._last, self._sent = b"", False  # the last full picture, and whether it was sent

    @property
    def covered(self) -> bool:
        """Tell whether a dialog, picker, file chooser or find bar is over the page."""
        tab, page = self._tab, self._tab.stack.top
        return bool(tab.dialogs.open or tab.chooser.open or tab.pickers.open or (page and tab.bar.is_open_on(page)))

    @contextmanager
    def watch(self) -> Iterator[LatestPicture]:
        """Add a watcher until the block ends; yields the `LatestPicture` that the watcher takes pictures from."""
        watcher = LatestPicture()
        self._watchers.add(watcher)
        if self._tab.screen:
            watcher.put(self._tab.screen)
        self._follow()
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
            self._follow()

    def shown(self, picture: bytes, moving: bool = False) -> None:
        """Send watchers a full screenshot (PNG).

        moving: others follow soon, so the browser's own frames, of less quality, will do meanwhile.
        """
        if not self._watchers:
            return
        self._follow()
        rests = picture == self._last
        if rests and self._sent:
            return
        self._last, self._sent = picture, rests or not moving or self.covered
        if self._sent:
            self._put(picture)

    def heard(self, page: BrowserPage, params: Mapping[str, Any]) -> None:
        """Take the event of a frame of the screencast, and send it to watchers where nothing covers the page."""
        page.post("Page.screencastFrameAck", {"sessionId": params["sessionId"]})
        whole = params["metadata"]["deviceWidth"] > _MAX_CORNER_WIDTH
        if whole and page is self._page and page is self._tab.stack.top and not self.covered:
            self._put(base64.b64decode(params["data"]))

    # -- inside -------------------------------------------------------------------------------------------------------
    def _put(self, picture: bytes) -> None:
        for watcher in self._watchers:
            watcher.put(picture)

    def _follow(self) -> None:
        """Make the page that is seen send its screencast, and no other page."""
        page = self._tab.stack.top if self._watchers else None
        if page is self._page:
            return
        if self._page is not None and not self._page.gone:
            self._page.post("Page.stopScreencast")
        self._page = page
        if page is not None:
            page.post("Page.startScreencast", _SCREENCAST_FORMAT)


_ACTION_MS = 200.0  # page time that an action may take by default
_CLOSE_S = 5.0  # deadline for the browser to dispose of a context
_MAX_FOLLOW_UPS = 50  # sessions in a process after the first: its memory is given back now and then


class BrowserTab:
    """Play sessions in a tab, each in a browser context of its own; first-party ones may share one in a row.

    The context is made between two sessions, with an empty page in its own process, since that takes time. First-party
    sessions follow one another in one context and process, after all stores were emptied (`_continue`), since a new
    process costs more than most episodes. An open dialog takes all actions until it is answered; pickers, the file
    chooser and the find bar take the actions that are meant for them. Events that the picture does not show (popups,
    downloads, refused addresses) become `notes`.

    size: width and height of the viewport in pixels, where a session asks for none of its own. died: set once the pages
    of the session are gone. Its coroutines raise EnvError (PageGone, EnvTimeout) where page or browser is gone, or a
    page hangs in its frame.
    """

    def __init__(self, link: BrowserLink, size: tuple[int, int]) -> None:
        self._link, self._connection = link, link.connection
        self.size = self._default_size = size  # of the viewport, in pixels
        self.notes = SessionNotes()
        self._driver = TouchDriver if link.touch else InputDriver
        self.stack = PageStack(link, self._hear, self.notes.add, self._ends)
        self._context: BrowserContext | None = None  # None between two sessions
        self._blank = False  # its page is empty: no session has begun in it
        self._first_party, self._follow_ups = False, 0  # of the last session; of its context: sessions after the first
        self._preparing: asyncio.Task[None] | None = None
        self.home, self._read = "", ""
        self._good = ""  # the last allowed address
        self._folders: list[Path] = []  # folders of files that may be given to a page
        self.screen = b""  # PNG, the last one of this session
        self.hands = self._driver(*size)
        self.chooser = FileChooser(*size)
        self.pickers = FormPickers(CoverPage(link))
        self.bar = FindBar(CoverPage(link))
        self.dialogs = Dialogs(self.notes, CoverPage(link))
        self.cast = Screencast(self)
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
        entry: LoginSteps | None = None,
        first_party: bool = False,
    ) -> dict[str, Any]:
        """Begin a fresh session at `url`, with a new clock and random generator; returns as `observe`.

        seed: of the page's random generator. allowed: prefixes of addresses that navigation may not leave. prepare:
        JavaScript run after the load; a promise that it returns is awaited while page time passes. read: JavaScript
        whose value becomes `game`; "": `window.__env__.getState()`. viewport: width and height in pixels; None: the
        tab's. files: a folder whose files the session may upload, besides its downloads. entry: the login before the
        first page. first_party: as in `PageSession`; requests of its documents are not paused to be looked at. Where a
        dialog opens, it is what is observed, and the rest follows when it is answered. The caller keeps the deadline.
        Raises EnvError where the page does not load or `prepare` fails.
        """
        if not (first_party and self._may_continue(viewport or self._default_size) and await self._continue()):
            await self.prepare(viewport)
        self._blank, self._first_party = False, first_party
        self._folders = [*([files] if files else []), self.context.folder]
        self.screen = b""
        self.home, self._read, self._good = url, read, url
        self.stack.seed, self.stack.allowed = seed, allowed
        self.context.proxy.origins = list_allowed_origins(allowed)
        seen = await self.dialogs.run_unless_blocked(self._begin(url, seed, prepare, entry))
        return await self.observe(0) if seen is None else seen

    async def prepare(self, viewport: tuple[int, int] | None = None) -> None:
        """Open an empty page in a context of its own, in which the next session begins.

        viewport: width and height in pixels; None: the tab's. Raises EnvError where the browser is gone.
        """
        if self._preparing is not None:
            await asyncio.gather(self._preparing, return_exceptions=True)
        size, top = viewport or self._default_size, self.stack.top
        if not (self._blank and top and not top.gone and size == self.size):
            self.size = size
            await self._renew()

    def rest(self) -> None:
        """End the session: all of it is dropped, and the next session's page is opened in the background."""
        if self._preparing is not None and not self._preparing.done():
            return  # no session has begun since
        if self._may_continue(self._default_size):
            self.context.proxy.origins = frozenset()
            self.screen = b""
            return
        self._dispose()
        self._preparing = asyncio.ensure_future(self._renew())
        self._preparing.add_done_callback(ignore_answer)

    async def close(self) -> None:
        """Crash the pages and dispose of the context, so that a hung page closes too; may be called twice.

        Raises EnvTimeout where the browser does not dispose of it within 5 s: the browser itself then hangs.
        """
        if self._preparing is not None:
            self._preparing.cancel()
        for page in self.stack.pages:  # works even where the page's script hangs
            page.post("Page.crash")
        context = self._forget_context()
        if context and not self._connection.closed.done():
            asked = {"browserContextId": context}
            with contextlib.suppress(CdpCommandError):
                await self._connection.call("Target.disposeBrowserContext", asked, timeout_s=_CLOSE_S)

    def disconnect(self) -> None:
        """Close the proxy, which cuts the pages off the network; may be called twice."""
        if self._context is not None:
            self._context.proxy.close()

    async def ping(self) -> None:
        """Check that the page answers; without a check where a dialog is open, since that blocks the page.

        Raises EnvTimeout where it does not answer within `sandbox.timeout_s`, EnvError where it is gone.
        """
        if not self.stack.pages or self.dialogs.open:
            return
        limit_s = self._link.settings.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self.page.evaluate("0")
        except TimeoutError:
            raise EnvTimeout(f"the page did not answer within {limit_s:g} s", where=self.page.url) from None

    @property
    def page(self) -> BrowserPage:
        """Return the page that is seen. Raises PageGone where there is none."""
        if self.stack.top is None:
            raise PageGone("the page is gone", where=self._good)
        return self.stack.top

    @property
    def url(self) -> str:
        """Return the address of the page that is seen; "" where there is none."""
        return self.stack.top.url if self.stack.top else ""

    @property
    def time(self) -> float:
        """Return the page time in ms since the session began."""
        return self.stack.top.time if self.stack.top else 0.0

    @property
    def drawn(self) -> int:
        """Return how many random numbers the document that is seen has drawn from its seeded generator."""
        return self.stack.top.drawn if self.stack.top else 0

    @property
    def context(self) -> BrowserContext:
        """Return the session's browser context. Raises PageGone where there is none."""
        if self._context is None:
            raise PageGone("the page is gone", where=self._good)
        return self._context

    # -- calls of an environment ----------------------------------------------------------------------------------
    async def do(self, action: Action, ms: float = _ACTION_MS) -> str:
        """Carry out one action on the page or the dialog that is seen; returns "" or why nothing was done.

        ms: page time that a drag may take; a long press takes 600 ms whatever it is, other actions take none. Raises
        EnvError where the page is gone.
        """
        first, *more = split_action(action)
        if isinstance(self.hands, TouchDriver) and Hotkey in map(type, more):
            return "a phone cannot empty a field and type in one action"
        note = await self._do_one(first, ms)
        for part in more if not note else ():
            await self.observe(0)  # what the part before began finishes first, so that the result does not vary
            if not self.dialogs.open:
                await self.page.screenshot()  # an empty document loses input
            if note := await self._do_one(part, ms):
                return f"clicked, and then: {note}"
        return note

    async def _do_one(self, action: Action, ms: float) -> str:
        if self.dialogs.open:
            return await self.dialogs.do(action, self.hands)
        return await self.dialogs.run_unless_blocked(self._perform(action, ms)) or ""

    async def observe(self, ms: float) -> dict[str, Any]:
        """Let loads and navigations finish, pass `ms` of page time, and return what is seen: `url`, `elements`, `game`.

        The rest is as of `BrowserPage.observe`. While a dialog is open no time passes, and the result is `url`, the
        dialog's `elements`, `dialog`, and None as `game`. Raises EnvError where the page is gone or cannot be observed.
        """
        seen = None
        while seen is None or self.dialogs.open:
            if self.dialogs.open:
                return {"url": self.url or self.home, "game": None} | await self.dialogs.look(self.screen, self.size)
            seen = await self.dialogs.run_unless_blocked(self.look(ms))
        return seen | {"elements": [*seen["elements"], *self.bar.elements]} if self.bar.is_open_on(self.page) else seen

    async def look(self, ms: float) -> dict[str, Any]:
        """Observe the seen page after `ms` of page time; a page that left the allowed addresses is brought back.

        No dialog may be open: `observe` is for all cases. Raises EnvError where a page cannot be brought back, or the
        tab is gone.
        """
        while True:
            page = self.page
            try:
                seen = await page.observe(ms, self._read)
            except EnvError:
                if page in self.stack.pages or not self.stack.pages:
                    raise
                continue  # the page closed itself, and the one below is seen
            self.hands.clipboard = self.hands.clipboard if seen["copied"] is None else seen["copied"]
            self.context.downloads.expect(seen["files"])
            for kind, text in seen["notes"]:
                (self.notes.fault if kind == "fault" else self.notes.add)(text)
            if page.stillborn and page in self.stack.pages[1:]:
                self.stack.drop(page)
                self.notes.add("a popup was closed: it never came to its address")
            if page is not self.stack.top:
                ms = 0  # a page was opened over it: that one is seen, at its own beginning
                continue
            if seen.get("choosing") and (note := await self.chooser.appear(page, self._folders)):
                self.notes.add(note)
            if is_within_prefixes(seen["url"], self.stack.allowed):
                self._good = seen["url"]
                await self.pickers.look(page, seen, self.size)
                return seen
            if seen["url"] in pages.EMPTY_ADDRESSES and len(self.stack.pages) > 1:
                return seen  # an empty window, which its opener may write into
            self.notes.add("the page left this world and was brought back")
            if failed := await page.navigate(self._good):
                raise EnvError(f"the page left and cannot be brought back: {failed}", where=self._good)
            ms = 0

    async def close_dialogs(self) -> dict[str, Any]:
        """Close all open dialogs (`Dialogs.close`), and return as `observe`. Raises EnvError as these two."""
        await self.dialogs.close()
        return await self.observe(0)

    async def settle_downloads(self) -> None:
        """Wait for the session's downloads, as `Downloads.settle`; do nothing without a session."""
        if self._context is not None:
            await self._context.downloads.settle()

    async def screenshot(self) -> bytes:
        """Capture a PNG of the viewport with what the browser shows over it. Raises EnvError where the page is gone."""
        if not self.dialogs.open:
            shot = await self.page.screenshot()
            self.screen = self.chooser.draw_over(shot) if self.chooser.open else await self.pickers.draw_over(shot)
            if self.bar.is_open_on(self.page) and not self.dialogs.open:
                self.screen = await self.bar.draw_over(self.screen)
        return await self.dialogs.screenshot(self.screen, self.size) if self.dialogs.open else self.screen

    async def evaluate(self, expression: str) -> Any:
        """Evaluate JavaScript in the page that is seen and return a JSON value; None where it opens a dialog.

        Raises EnvError where a dialog is open, or the script fails.
        """
        if self.dialogs.blocking:
            raise EnvError("the page waits for an answer to its dialog", where=self.url, fix="answer it first")
        return await self.dialogs.run_unless_blocked(self.page.evaluate(expression))

    async def save_state(self) -> dict[str, Any]:
        """Return the state of page, clock, random generator and storage, as JSON values for `load_state`.

        `restorable` in it tells whether `load_state` can use it; under a dialog or the find bar it is all there is.
        Raises EnvError where the page is gone.
        """
        if self.dialogs.open or self.bar.is_open_on(self.page):
            return {"restorable": False}
        kept = await self.page.evaluate("__flywheel__.save()")
        cookies = await self.context.cookies()
        kept["restorable"] &= len(self.stack.pages) == 1 and not (kept["databases"] or self.hands.held)
        kept["restorable"] &= not (self.chooser.open or self.pickers.open)
        own = {"mouse": self.hands.at, "clipboard": self.hands.clipboard, "zoom": self.stack.zoom}
        return kept | {"cookies": cookies} | own

    async def load_state(self, kept: Mapping[str, Any]) -> bool:
        """Restore a saved state in a session just opened at the same address; False where that is impossible.

        kept: from `save_state`, with `restorable` true. Raises EnvError where the page is gone.
        """
        self.hands.clipboard = kept["clipboard"]
        await self.stack.set_zoom(kept["zoom"])
        await self.context.set_cookies(kept["cookies"])
        if kept["mouse"] != [0, 0]:
            self.hands.move(self.page, tuple(kept["mouse"]))
            await self.page.draw()
        return await self.page.evaluate(f"__flywheel__.load({json.dumps(kept)})")

    # -- closing a page -------------------------------------------------------------------------------------------
    async def close_page(self) -> str:
        """Close the page that is seen, where it was opened over another one; returns "" or why not.

        Raises PageGone where there is no page.
        """
        if len(self.stack.pages) == 1:
            return "not done: it is the only page"
        await self.page.close()
        return ""

    # -- how a session begins -------------------------------------------------------------------------------------
    async def _begin(self, url: str, seed: int, prepare: str, entry: LoginSteps | None) -> dict[str, Any]:
        """Log in, load the first page and prepare it, as `open` says; returns what `look` does."""
        told = self.page.install_document_script(seed, 0.0)
        if self._first_party and not self._follow_ups:
            told = [*told, self.page.pause_no_requests()]
        await asyncio.gather(*told)
        if entry:
            await self._log_in(entry, url)
        seen = await self._load_page(url)
        for script in (entry.done if entry else "", prepare):
            if script:
                seen = await self._run_preparation(script)
        await self.page.send("Page.resetNavigationHistory")
        return seen

    async def _log_in(self, entry: LoginSteps, home: str) -> None:
        """Log in before the first page. home: the URL of that page."""
        if entry.cookies:
            await self.context.set_cookies(entry.cookies)
        await self.stack.set_headers(entry.headers, home)
        if entry.script:
            await self._load_page(entry.address or home)
            await self._run_preparation(entry.script)

    async def _load_page(self, url: str) -> dict[str, Any]:
        if failed := await self.page.navigate(url):
            why = f" ({self.notes.faults[-1]})" if self.notes.faults else ""
            raise EnvError(f"the page does not load: {failed}{why}", where=url)
        seen = await self.look(0)
        status = await self.page.evaluate("performance.getEntriesByType('navigation')[0]?.responseStatus ?? 0")
        if status >= 400:
            raise EnvError(f"the page does not load: it answered status {status}", where=url)
        return seen

    async def _run_preparation(self, script: str) -> dict[str, Any]:
        """Run JavaScript that prepares a page, and observe the page that it leads to."""
        with contextlib.suppress(CdpCommandError):  # the script led to another page
            await self.page.evaluate(f"__flywheel__.prepare(async () => {{ {script} }})")
        return await self.look(0)

    # -- one action -----------------------------------------------------------------------------------------------
    async def _perform(self, action: Action, ms: float) -> str:
        """Carry out an action where no dialog is open; returns "" or why nothing was done. ms: as for `do`."""
        if self.chooser.open:
            return await self.chooser.do(action)
        page = self.page
        taken = await self.pickers.take(action, self.hands, page, self.size)
        if taken is not None:
            return taken
        if isinstance(action, NavigateBack):
            return await self._go_back()
        try:
            if isinstance(action, Hotkey | Press) and self.hands.clipboard:  # it may paste
                held = json.dumps(self.hands.clipboard)
                await page.evaluate(f"window.__flywheel__&&(__flywheel__.core.clipboard={held})")
            key = keyboard.find_shortcut(action, self.hands.modifiers)
            if (
                key is None
                and self.bar.is_open_on(page)
                and (taken := await self.bar.take(action, self.hands)) is not None
            ):
                return taken
            if key is not None and key.reserved:
                return await self._run_shortcut(key)
            home, rest = page.url or self.home, partial(self._pass_time, page)
            note = await self.hands.do(action, page, self.stack.allowed, home, ms, rest)
            if key is not None and page is self.page and await page.left_key_unhandled():
                note = await self._run_shortcut(key)
            return note
        except PageGone:
            if page in self.stack.pages or not self.stack.pages:
                raise
            return ""  # the page closed itself before the action ended

    async def _pass_time(self, page: BrowserPage, ms: float) -> dict[str, Any] | None:
        """Pass `ms` of page time within an action on `page`, and observe; None once another page is seen."""
        seen = await self.observe(ms)
        return seen if page is self.stack.top else None

    async def _go_back(self) -> str:
        if await self.page.travel(-1):
            return ""
        return "there is no page to go back to" if len(self.stack.pages) == 1 else await self.close_page()

    async def _run_shortcut(self, key: keyboard.BrowserShortcut) -> str:
        """Carry out a shortcut of the browser; returns "" or why nothing was done."""
        match key.does:
            case keyboard.RELOAD:
                await self.page.reload()
            case keyboard.BACK:
                return "" if await self.page.travel(-1) else "there is no page to go back to"
            case keyboard.FORWARD:
                return "" if await self.page.travel(1) else "there is no page to go forward to"
            case keyboard.ZOOM_IN | keyboard.ZOOM_OUT:
                to = keyboard.ZOOM_LEVELS.index(self.stack.zoom) + (1 if key.does == keyboard.ZOOM_IN else -1)
                if not 0 <= to < len(keyboard.ZOOM_LEVELS):
                    return f"the page is at its {'smallest' if to < 0 else 'largest'}"
                await self.stack.set_zoom(keyboard.ZOOM_LEVELS[to])
            case keyboard.ZOOM_RESET:
                await self.stack.set_zoom(1.0)
            case keyboard.CLOSE:
                return await self.close_page()
            case keyboard.FIND | keyboard.FIND_NEXT | keyboard.FIND_LAST:
                go = {keyboard.FIND: 0, keyboard.FIND_NEXT: 1, keyboard.FIND_LAST: -1}[key.does]
                await self.bar.press(self.page, go, self.size)
            case _:
                return key.missing
        return ""

    # -- between two sessions -------------------------------------------------------------------------------------
    def _may_continue(self, size: tuple[int, int]) -> bool:
        """Tell whether a session of a viewport of `size` may begin in the page of the last one, without remains of it.

        It may where our own code alone ran in that, and nothing but documents in its one page.
        """
        idle = self._context is not None and self._context.downloads.untouched
        idle = idle and not (self.dialogs.open or self._link.touch)
        idle = idle and self.stack.unchanged and size == self.size and not self._blank
        return idle and self._first_party and self._follow_ups < _MAX_FOLLOW_UPS

    async def _continue(self) -> bool:
        """Make ready for another session in the context and process of the last one; False where that cannot be.

        The load of the first page makes a new page with a new realm, history and input; what outlives a page is emptied
        here, and by the first script of that page (`core.js`) what no command reaches. A page that would hear that it
        is left could leave something then, so there must be none.
        """
        page = self.page
        try:
            hears, *_ = await asyncio.gather(page.hears_end(), *self.context.clear(self.stack.allowed, page.session))
        except CdpCommandError:
            return False
        if hears:
            return False
        self._follow_ups += 1
        for part in (self.pickers, self.dialogs, self.bar):
            part.forget()
        self.stack.continue_for_next_session()
        self.hands, self.chooser = self._driver(*self.size), FileChooser(*self.size)
        self.notes.clear()
        self.died.clear()
        return True

    async def _renew(self) -> None:
        """Open a new context with an empty page, which shares nothing with the last session."""
        self._dispose()
        self._first_party, self._follow_ups = False, 0
        self.hands, self.chooser = self._driver(*self.size), FileChooser(*self.size)
        self.notes.clear()
        self._context = await BrowserContext.open(self._link, self.notes.add, self.notes.fault)
        self._link.targets.owners[self._context.id] = self
        await self.stack.begin(self._context.id, self.size)
        self._blank = True

    def _dispose(self) -> None:
        context = self._forget_context()
        if context:
            self._connection.post("Target.disposeBrowserContext", {"browserContextId": context})

    def _forget_context(self) -> str:
        """Drop all that belongs to the session; returns the id of the context to be disposed of, "" for none."""
        self._blank = False
        for part in (self.pickers, self.dialogs, self.bar, self.stack):
            part.forget()
        self.died.clear()
        context, self._context = self._context, None
        if context is None:
            return ""
        context.forget()
        self._link.targets.owners.pop(context.id, None)
        return context.id

    # -- targets --------------------------------------------------------------------------------------------------
    def attached(self, session: str, info: Mapping[str, Any]) -> None:
        """Set up a new page of the session, which the browser has paused, as `PageStack.attached`."""
        self.stack.attached(session, info)

    def detached(self, session: str) -> None:
        """Drop the page of a protocol session that has ended; without a page left the tab is dead."""
        if self.stack.detached(session) is not None:
            if self.stack.pages:
                self.notes.add("the page that was opened is closed")
            else:
                self.died.set()

    # -- events ---------------------------------------------------------------------------------------------------
    def _hear(self, page: BrowserPage, method: str, params: Mapping[str, Any]) -> None:
        match method:
            case "Fetch.requestPaused":
                self.stack.handle_paused_request(page, params)
            case "Page.fileChooserOpened":
                self.chooser.asked(page, params)
            case "Page.javascriptDialogOpening":
                drawing = any(self._link.frames.drawing(one.session) for one in self.stack.pages)
                self.dialogs.opens(page, params, drawing)
                self._hold()
            case "Page.javascriptDialogClosed":
                self.dialogs.closes(page)
                self._hold()
            case pages.WENT_NOWHERE:
                self._went_nowhere(params["url"])
            case "Page.windowOpen":
                self.stack.handle_window_open(params["url"])
            case "Page.screencastFrame":
                self.cast.heard(page, params)
            case "Page.downloadWillBegin":
                self.context.downloads.begins(params)
            case "Page.downloadProgress":
                self.context.downloads.goes_on(params)
            case "Inspector.targetCrashed":
                page.mark_gone("the page crashed")
                self._ends(page)
                self.died.set()

    def _went_nowhere(self, url: str) -> None:
        if is_within_prefixes(url, self.stack.allowed):
            self.context.downloads.expect(1)  # it may be a download
        elif not url.startswith(("http:", "https:", "javascript:")):  # these are noted where they are refused
            self.notes.add(f"an address that pages may not lead to was not opened: {url[:200]}")

    def _ends(self, page: BrowserPage) -> None:
        """Drop the dialogs of a page that is gone."""
        self.dialogs.forget(page)
        self._hold()

    def _hold(self) -> None:
        self.stack.hold(self.dialogs.blocking)
