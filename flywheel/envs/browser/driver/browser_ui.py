"""Show what a browser itself puts over a page: JavaScript dialogs and the find bar."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from flywheel.agent.actions import (
    ACTION_NAMES,
    Action,
    CallUser,
    Finished,
    Hotkey,
    Navigate,
    NavigateBack,
    Point,
    Press,
    Release,
    Type,
    Wait,
)
from flywheel.config import SandboxSettings
from flywheel.envs.browser.driver.cdp import CdpConnection, TargetRouter
from flywheel.envs.browser.driver.frames import FrameCapture
from flywheel.envs.browser.driver.input import InputDriver
from flywheel.envs.browser.driver.page import BrowserPage, SessionNotes, ignore_answer
from flywheel.utils.errors import EnvError

_BACKGROUND_SCRIPT = """(() => {
    const screen = document.getElementById("flywheel-screen") ?? document.body.appendChild(new Image());
    screen.id = "flywheel-screen";
    screen.style.cssText = "position:fixed;inset:0;width:100vw;height:100vh;z-index:-1;pointer-events:none";
    screen.src = SOURCE;
    return screen.decode();
})()"""


class CoverPage:
    """A page over the session's last screen, which shows what the browser puts on top.

    A page whose script waits for an answer draws nothing and answers nothing. So what a person would see over it is
    another page, in a process of its own, made when it is first shown: its background is the screen last taken, and
    mouse and keys reach it as any page. `page` is there while it is shown.
    """

    def __init__(
        self, targets: TargetRouter, connection: CdpConnection, frames: FrameCapture, settings: SandboxSettings
    ) -> None:
        self._targets, self._connection, self._frames, self._settings = targets, connection, frames, settings
        self._context = ""
        self._size = (0, 0)
        self._made: asyncio.Future[list[asyncio.Future[dict[str, Any]]]] | None = None
        self._page: BrowserPage | None = None

    @property
    def page(self) -> BrowserPage:
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
        """Put another screen below the same HTML."""
        if screen:
            source = f"data:image/png;base64,{base64.b64encode(screen).decode()}"
            await self.page.evaluate(_BACKGROUND_SCRIPT.replace("SOURCE", json.dumps(source)))

    async def do(self, action: Action, hands: InputDriver) -> str:
        """Carry out one action on it; "" or why nothing was done."""
        if isinstance(action, Hotkey | Press):  # it may paste
            await self.page.evaluate(f"__flywheel__.core.clipboard={json.dumps(hands.clipboard)}")
        note = await hands.do(action, self.page, (), "")
        seen = await self.page.observe(0)
        hands.clipboard = hands.clipboard if seen["copied"] is None else seen["copied"]
        return note

    async def screenshot(self) -> bytes:
        return await self.page.screenshot()

    def close(self) -> None:
        """Drop the page; may be called twice."""
        if self._page is not None:
            self._page.mark_gone("the cover is closed")
        context, self._context, self._page, self._made = self._context, "", None, None
        if context:
            self._targets.adopt(context, None)
            self._connection.post("Target.disposeBrowserContext", {"browserContextId": context})

    # -- its target -----------------------------------------------------------------------------------------------
    async def _make(self, size: tuple[int, int]) -> None:
        self.close()
        self._size = size
        made = await self._connection.send("Target.createBrowserContext", {"disposeOnDetach": True})
        self._context = made["browserContextId"]
        self._targets.adopt(self._context, self)
        self._made = asyncio.get_running_loop().create_future()
        target = {"url": "about:blank", "width": size[0], "height": size[1], "browserContextId": self._context}
        if self._frames.on_command:
            target["enableBeginFrameControl"] = True
        await self._connection.send("Target.createTarget", target)
        await asyncio.gather(*await self._made)
        await self.page.install_document_script(0, 0.0)

    def attached(self, session: str, info: Mapping[str, Any]) -> None:
        self._page = BrowserPage(self._connection, self._frames, self._settings, info["targetId"], session, self._hear)
        told = self._page.set_up(*self._size)
        self._page.post("Runtime.runIfWaitingForDebugger")
        self._made.set_result(told)

    def detached(self, session: str) -> None:
        if self._page is not None and self._page.session == session:
            self._page.mark_gone("the cover is gone")

    def _hear(self, page: BrowserPage, method: str, params: Mapping[str, Any]) -> None:
        match method:
            case "Fetch.requestPaused":
                page.post("Fetch.continueRequest", {"requestId": params["requestId"]})
            case "Inspector.targetCrashed":
                page.mark_gone("the cover crashed")


_FIND_BAR_HTML = (Path(__file__).parent / "find_bar.html").read_text(encoding="utf-8")


class FindBar:
    """The bar that finds text in the page (ctrl-f), drawn by a page of its own over the page's screen.

    It takes the keys while it has the focus, and the mouse where it is; all else goes to the page below it. What is
    found is selected and scrolled to by the engine's own `window.find`. elements: the places of its parts.
    """

    def __init__(self, cover: CoverPage) -> None:
        self._cover = cover
        self._page: BrowserPage | None = None  # that is searched
        self._arrivals = 0  # of its documents, when the bar opened
        self._focused = False
        self._text = ""
        self.elements: list[dict[str, Any]] = []

    def open(self, page: BrowserPage) -> bool:
        """Tell whether it is over this page. It goes with the document that it was opened for."""
        if self._page is not None and (self._page is not page or page.arrivals != self._arrivals):
            self._page = None
        return self._page is not None

    async def press(self, page: BrowserPage, go: int, size: tuple[int, int]) -> None:
        """Do what ctrl-f does (go 0), or the keys that go forward (1) and backward (-1)."""
        if not self.open(page):
            await self._cover.show(_FIND_BAR_HTML, b"", size, f"begin({json.dumps(self._text)})")
            self._page, self._arrivals = page, page.arrivals
        elif not go:
            await self._cover.page.evaluate("select()")
        self._focused = self._focused or not go or not self._text
        if go and self._text:
            await self._find(go)
        await self._look()

    async def take(self, action: Action, hands: InputDriver) -> str | None:
        """Carry out an action on the bar; None where it is meant for the page."""
        points = [value for value in vars(action).values() if isinstance(value, Point)]
        if points:
            bar = next(element for element in self.elements if element["name"] == "find bar")
            if not (bar["x"] <= points[0].x < bar["x"] + bar["w"] and 0 <= points[0].y < bar["y"] + bar["h"]):
                self._focused = False
                await self._cover.page.evaluate("leave()")
                return None
            self._focused = True
        elif not (self._focused and isinstance(action, Hotkey | Press | Release | Type)):
            return None
        note = await self._cover.do(action, hands)
        taken = await self._cover.page.evaluate("take()")
        self._text = taken["text"]
        if taken["closed"]:
            self._page = None
            return note
        if taken["fresh"]:
            await self._find(0)
        for _ in range(abs(taken["go"])):
            await self._find(1 if taken["go"] > 0 else -1)
        await self._look()
        return note

    async def onto(self, screen: bytes) -> bytes:
        """Return a screen of the page, with the bar over it."""
        await self._cover.put_under(screen)
        return await self._cover.screenshot()

    def forget(self) -> None:
        self._page, self._text, self.elements = None, "", []
        self._cover.close()

    async def _find(self, go: int) -> None:
        found = await self._page.evaluate(f"__flywheel__.find({json.dumps(self._text)}, {go})")
        await self._cover.page.evaluate(f"tell({found})")

    async def _look(self) -> None:
        self.elements = (await self._cover.page.observe(0))["elements"]


_DIALOG_HTML = (Path(__file__).parent / "dialog.html").read_text(encoding="utf-8")
_MAX_MESSAGE, _MAX_DEFAULT = 10_000, 2000  # characters that are shown
_MAX_TOLD = 100  # characters of a message in a note
_LEAVE_MESSAGE = "Changes you made may not be saved."
_MAX_CLOSED = 100  # at the end of an episode
WorkResult = TypeVar("T")
_inside_held_work: ContextVar[bool] = ContextVar("inside", default=False)  # this task is what a dialog would hold up


@dataclass(eq=False)
class Dialog:
    """Show a JavaScript dialog.

    page: whose script asks. answered: the script goes on already, and the dialog is only shown.
    """

    page: BrowserPage
    kind: str  # alert, confirm, prompt, beforeunload
    message: str
    default: str
    answered: bool

    def __str__(self) -> str:
        return f'{self.kind} "{self.message[:_MAX_TOLD]}"' if self.message else self.kind

    @property
    def question(self) -> str:
        """The call that fills in `dialog.html`."""
        asked = (self.kind, "This page says", self.message[:_MAX_MESSAGE], self.default[:_MAX_DEFAULT], "OK")
        if self.kind == "beforeunload":
            asked = (self.kind, "Leave site?", _LEAVE_MESSAGE, "", "Leave")
        return f"ask({', '.join(map(json.dumps, asked))})"


class Dialogs:
    """Dialogs of a tab's pages: alert, confirm, prompt, and the question before a page is left.

    The script that asks stands still until it is answered, and its page can neither be drawn nor read meanwhile. So
    what a step was doing is held up (`through`), the dialog is shown over the last screen, and the step that answers it
    goes on with what was held up. A dialog that opens while its page is being drawn would hold up every page of the
    browser, so it is answered at once: an alert is shown all the same, others are cancelled and noted.

    open: those that wait for an answer, of which the first is shown.
    """

    def __init__(self, notes: SessionNotes, cover: CoverPage) -> None:
        self._notes, self._cover = notes, cover
        self.open: list[Dialog] = []
        self._blocked: asyncio.Future[None] | None = None  # done as soon as a script waits for an answer
        self._held: asyncio.Task[Any] | None = None  # what the dialogs hold up
        self._shown: Dialog | None = None
        self._seen = False  # the policy has had a look at it

    @property
    def blocking(self) -> bool:
        """A script waits, and its page with it."""
        return any(not dialog.answered for dialog in self.open)

    # -- what pages tell ------------------------------------------------------------------------------------------
    def opens(self, page: BrowserPage, params: Mapping[str, Any], drawing: bool) -> None:
        """Show a dialog that a page has opened. drawing: the page is being drawn."""
        dialog = Dialog(page, params["type"], params.get("message", ""), params.get("defaultPrompt", ""), drawing)
        if drawing:
            page.post("Page.handleJavaScriptDialog", {"accept": dialog.kind == "alert"})
            if dialog.kind != "alert" or self.open:
                how = "closed" if dialog.kind == "alert" else "cancelled"
                self._notes.add(f"{dialog}: {how} unseen, since it opened while the page was being drawn")
                return
        self.open.append(dialog)
        if self.blocking and self._blocked is not None and not self._blocked.done():
            self._blocked.set_result(None)

    def closes(self, page: BrowserPage) -> None:
        """Forget a dialog once the page's script goes on."""
        for dialog in self.open:
            if dialog.page is page and not dialog.answered:
                self.open.remove(dialog)
                return

    def forget(self, page: BrowserPage | None = None) -> None:
        """Forget the dialogs of a page that is gone, or of all."""
        self.open = [dialog for dialog in self.open if page is not None and dialog.page is not page]
        if page is None:
            held, self._held, self._shown = self._held, None, None
            if held is not None:
                held.cancel()
            self._cover.close()

    # -- what is held up ------------------------------------------------------------------------------------------
    async def through(self, work: Coroutine[Any, Any, WorkResult]) -> WorkResult | None:
        """Finish what was held up, then do some work; None where a dialog opens, which then holds it up.

        A part of such work is held up with it."""
        if _inside_held_work.get():
            return await work
        held, self._blocked = self._held, asyncio.get_running_loop().create_future()
        if self.blocking:
            self._blocked.set_result(None)
        self._held = task = asyncio.ensure_future(_run_after(held, work))
        try:
            await asyncio.wait([task, self._blocked], return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            task.cancel()
            raise
        if not task.done():
            task.add_done_callback(ignore_answer)
            return None
        self._held = None
        return task.result()

    # -- what the policy sees and does ----------------------------------------------------------------------------
    async def look(self, screen: bytes, size: tuple[int, int]) -> dict[str, Any]:
        """Tell what is seen of the first one, as of a page. screen: PNG, `size` pixels, over which it is shown."""
        dialog = self.open[0]
        await self._show(screen, size)
        seen = await self._cover.page.observe(0)
        return {"elements": seen["elements"], "dialog": {"kind": dialog.kind, "message": dialog.message[:_MAX_MESSAGE]}}

    async def screenshot(self, screen: bytes, size: tuple[int, int]) -> bytes:
        """Show the first one over `screen` (PNG of `size` pixels); the PNG of both."""
        await self._show(screen, size)
        self._seen = True
        return await self._cover.screenshot()

    async def do(self, action: Action, hands: InputDriver) -> str:
        """Carry out an action on the first one; "" or why nothing was done."""
        dialog = self.open[0]
        if isinstance(action, Wait | Finished | CallUser):
            return ""
        if self._shown is not dialog or not self._seen:
            return f"not done, since a dialog had opened: {dialog}"
        waits = f"a dialog waits for an answer: {dialog}"
        if isinstance(action, Navigate | NavigateBack):
            return f"{ACTION_NAMES[type(action)]} was not done: {waits}"
        page = self._cover.page
        before = await page.evaluate("likeness()")
        note = await self._cover.do(action, hands)
        answer = await page.evaluate("answer")
        if answer is not None:
            await self._answer(dialog, answer)
        elif not note and before == await page.evaluate("likeness()"):
            note = waits
        return note

    async def close(self) -> None:
        """Close all, as at the end of an episode: an alert is closed, the rest is cancelled."""
        closed = 0
        while self.open:
            dialog = self.open[0]
            if closed == _MAX_CLOSED:
                raise EnvError(f"the page opens dialogs without end: {dialog}", where="the end of the episode")
            closed += 1
            self._notes.add(f"{dialog}: {'closed' if dialog.kind == 'alert' else 'cancelled'} at the end")
            await self._answer(dialog, {"accept": dialog.kind == "alert"})

    async def _show(self, screen: bytes, size: tuple[int, int]) -> None:
        dialog = self.open[0]
        if self._shown is not dialog:
            await self._cover.show(_DIALOG_HTML, screen, size, dialog.question)
            self._shown, self._seen = dialog, False

    async def _answer(self, dialog: Dialog, answer: Mapping[str, Any]) -> None:
        """The script goes on, until what was held up is done or asks again."""
        if not dialog.answered:
            await dialog.page.send("Page.handleJavaScriptDialog", answer)
        if dialog.kind == "beforeunload" and not answer["accept"]:
            dialog.page.stay()
        if dialog in self.open:
            self.open.remove(dialog)
        await self.through(_do_nothing())


async def _run_after(held: asyncio.Task[Any] | None, work: Coroutine[Any, Any, WorkResult]) -> WorkResult:
    _inside_held_work.set(True)
    try:
        if held is not None:
            await held
    except BaseException:
        work.close()
        raise
    return await work


async def _do_nothing() -> None:
    """What is held up is all there is to do."""
