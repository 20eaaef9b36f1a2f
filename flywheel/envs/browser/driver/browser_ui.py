"""Imitate the UI that a browser draws over its pages, which their screenshots lack: dialogs, find bar, file chooser."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import itertools
import json
import mimetypes
import re
from collections.abc import Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from PIL import Image, ImageDraw, ImageFont

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point
from flywheel.envs.browser.driver.cdp import BrowserLink, CdpCommandError, encode_png, ignore_answer
from flywheel.envs.browser.driver.input import InputDriver
from flywheel.envs.browser.driver.page import BrowserPage, SessionNotes, read_script
from flywheel.utils.errors import EnvError

_BACKGROUND_SCRIPT = read_script("background.js")


class CoverPage:
    """Show an imitation of the browser's UI in a page of ours, the cover, over the last screenshot of the played page.

    A page whose script waits for an answer neither draws nor answers. So what a person would see over it is drawn by
    the cover: a page that the session's pages cannot reach, in a browser context of its own, made when it is first
    shown. Its coroutines raise EnvError where what is shown does not load, a script of it fails, or page or browser is
    gone.
    """

    def __init__(self, link: BrowserLink) -> None:
        self._link = link
        self._context = ""
        self._size = (0, 0)
        self._made: asyncio.Future[list[asyncio.Future[dict[str, Any]]]] | None = None
        self._page: BrowserPage | None = None

    @property
    def page(self) -> BrowserPage:
        """Return the cover that is shown. Raises EnvError where there is none."""
        if self._page is None:
            raise EnvError("nothing is shown over the page", where="cover")
        return self._page

    @property
    def there(self) -> bool:
        """Tell whether the cover is open and has not crashed."""
        return self._page is not None and not self._page.gone

    async def open(self, size: tuple[int, int]) -> bool:
        """Open the cover where there is none of that size (in pixels); returns whether it is a new one."""
        if self.there and self._size == size:
            return False
        self.close()
        self._size = size
        made = await self._link.connection.send("Target.createBrowserContext", {"disposeOnDetach": True})
        self._context = made["browserContextId"]
        self._link.targets.owners[self._context] = self
        self._made = asyncio.get_running_loop().create_future()
        await self._link.open_blank_page(self._context, size)
        await asyncio.gather(*await self._made)
        await asyncio.gather(*self.page.install_document_script(0, 0.0))
        return True

    async def show(self, html: str, screen: bytes, size: tuple[int, int], begin: str) -> None:
        """Show `html` over the screenshot `screen` (PNG; b"": white) of `size` pixels. begin: JavaScript run first."""
        await self.open(size)
        if failed := await self.page.navigate(f"data:text/html;charset=utf-8,{quote(html)}"):
            raise EnvError(f"what the browser shows over the page does not load: {failed}", where="cover")
        await self.page.evaluate(begin)
        await self.put_under(screen)
        await self.page.observe(0)

    async def put_under(self, screen: bytes) -> None:
        """Replace the screenshot (PNG) below the HTML; b"": it stays."""
        if screen:
            source = f"data:image/png;base64,{base64.b64encode(screen).decode()}"
            await self.page.evaluate(f"({_BACKGROUND_SCRIPT})({json.dumps(source)})")

    async def do(self, action: Action, hands: InputDriver) -> str:
        """Carry out one action on the cover; returns "" or why nothing was done."""
        if isinstance(action, act.Hotkey | act.Press):  # it may paste
            await self.page.evaluate(f"__flywheel__.core.clipboard={json.dumps(hands.clipboard)}")
        note = await hands.do(action, self.page, (), "")
        seen = await self.page.observe(0)
        hands.clipboard = hands.clipboard if seen["copied"] is None else seen["copied"]
        return note

    def close(self) -> None:
        """Close the cover; may be called twice."""
        if self._page is not None:
            self._page.mark_gone("the cover is closed")
        context, self._context, self._page, self._made = self._context, "", None, None
        if context:
            self._link.targets.owners.pop(context, None)
            self._link.connection.post("Target.disposeBrowserContext", {"browserContextId": context})

    # -- TargetListener -------------------------------------------------------------------------------------------
    def attached(self, session: str, info: Mapping[str, Any]) -> None:
        self._page = BrowserPage(self._link, info["targetId"], session, self._hear)
        told = self._page.set_up(self._size)
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
    """Imitate the browser's bar that finds text in a page (ctrl-f), on a cover of its own.

    It takes the keys while it has the focus, and the mouse on its area; all else goes to the page below. `window.find`
    selects what is found and scrolls to it. elements: names and boxes of the bar's parts. Its coroutines raise EnvError
    as those of `CoverPage` and `BrowserPage`.
    """

    def __init__(self, cover: CoverPage) -> None:
        self._cover = cover
        self._page: BrowserPage | None = None  # the page that is searched
        self._arrivals = 0  # the page's count of documents when the bar opened
        self._focused = False
        self._text = ""
        self.elements: list[dict[str, Any]] = []

    def is_open_on(self, page: BrowserPage) -> bool:
        """Tell whether the bar is open over `page`; it closes with the document that it was opened for."""
        if self._page is not None and (self._page is not page or page.arrivals != self._arrivals):
            self._page = None
        return self._page is not None

    async def press(self, page: BrowserPage, go: int, size: tuple[int, int]) -> None:
        """Open the bar over `page` as ctrl-f does (go: 0), or find the next (1) or previous match (-1).

        size: of the screen, in pixels.
        """
        if not self.is_open_on(page):
            await self._cover.show(_FIND_BAR_HTML, b"", size, f"begin({json.dumps(self._text)})")
            self._page, self._arrivals = page, page.arrivals
        elif not go:
            await self._cover.page.evaluate("select()")
        self._focused = self._focused or not go or not self._text
        if go and self._text:
            await self._find(go)
        await self._look()

    async def take(self, action: Action, hands: InputDriver) -> str | None:
        """Carry out an action on the bar and return its note; None where the action is meant for the page."""
        points = [value for value in vars(action).values() if isinstance(value, Point)]
        if points:
            bar = next(element for element in self.elements if element["name"] == "find bar")
            if not (bar["x"] <= points[0].x < bar["x"] + bar["w"] and 0 <= points[0].y < bar["y"] + bar["h"]):
                self._focused = False
                await self._cover.page.evaluate("leave()")
                return None
            self._focused = True
        elif not (self._focused and isinstance(action, act.Hotkey | act.Press | act.Release | act.Type)):
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

    async def draw_over(self, screen: bytes) -> bytes:
        """Draw the bar over a screen of the page (PNG); returns a PNG."""
        await self._cover.put_under(screen)
        return await self._cover.page.screenshot()

    def forget(self) -> None:
        """Close the bar and forget what was searched: the session is over."""
        self._page, self._text, self.elements = None, "", []
        self._cover.close()

    async def _find(self, go: int) -> None:
        found = await self._page.evaluate(f"__flywheel__.find({json.dumps(self._text)}, {go})")
        await self._cover.page.evaluate(f"tell({found})")

    async def _look(self) -> None:
        self.elements = (await self._cover.page.observe(0))["elements"]


_DIALOG_HTML = (Path(__file__).parent / "dialog.html").read_text(encoding="utf-8")
_MAX_MESSAGE, _MAX_DEFAULT = 10_000, 2000  # characters that a dialog shows
_MAX_TOLD = 100  # characters of a message in a note
_LEAVE_MESSAGE = "Changes you made may not be saved."
_MAX_CLOSED = 100  # dialogs closed at the end of an episode
WorkResult = TypeVar("WorkResult")
_inside_held_work: ContextVar[bool] = ContextVar("inside", default=False)  # in the suspended work itself


@dataclass(eq=False)
class Dialog:
    """Hold an open JavaScript dialog. page: the page whose script asks. default: text that a prompt begins with.

    answered: the browser was answered already, so the script runs on, and the dialog is only shown.
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
        """Return the JavaScript call that fills in `dialog.html`."""
        asked = (self.kind, "This page says", self.message[:_MAX_MESSAGE], self.default[:_MAX_DEFAULT], "OK")
        if self.kind == "beforeunload":
            asked = (self.kind, "Leave site?", _LEAVE_MESSAGE, "", "Leave")
        return f"ask({', '.join(map(json.dumps, asked))})"


class Dialogs:
    """Show and answer the JavaScript dialogs of a tab's pages: alert, confirm, prompt and beforeunload.

    The script that asks is blocked until it is answered, and its page can neither be drawn nor read meanwhile. So the
    work of the step is suspended (`run_unless_blocked`), the dialog is shown over the last screen, and the step that
    answers it resumes that work. A dialog that opens while its page is being drawn would block every page of the
    browser, so it is answered at once: an alert is shown all the same, others are cancelled and noted. open: the
    dialogs to be answered or seen, of which the first is shown. Its coroutines raise EnvError as those of `CoverPage`.
    """

    def __init__(self, notes: SessionNotes, cover: CoverPage) -> None:
        self._notes, self._cover = notes, cover
        self.open: list[Dialog] = []
        self._blocked: asyncio.Future[None] | None = None  # done when a script waits for an answer
        self._held: asyncio.Task[Any] | None = None  # the suspended work
        self._shown: Dialog | None = None
        self._seen = False  # the policy has seen the dialog that is shown

    @property
    def blocking(self) -> bool:
        """Tell whether a script waits for an answer, which blocks its page."""
        return any(not dialog.answered for dialog in self.open)

    # -- events of pages ------------------------------------------------------------------------------------------
    def opens(self, page: BrowserPage, params: Mapping[str, Any], drawing: bool) -> None:
        """Take a dialog that a page has opened. params: of the protocol's event. drawing: the page is being drawn."""
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
        """Forget the first unanswered dialog of a page, whose script goes on."""
        for dialog in self.open:
            if dialog.page is page and not dialog.answered:
                self.open.remove(dialog)
                return

    def forget(self, page: BrowserPage | None = None) -> None:
        """Forget the dialogs of a page that is gone; None: those of all pages, and the suspended work."""
        self.open = [dialog for dialog in self.open if page is not None and dialog.page is not page]
        if page is None:
            held, self._held, self._shown = self._held, None, None
            if held is not None:
                held.cancel()
            self._cover.close()

    # -- suspended work -------------------------------------------------------------------------------------------
    async def run_unless_blocked(self, work: Coroutine[Any, Any, WorkResult]) -> WorkResult | None:
        """Finish the suspended work, then `work`, and return its result; None where a dialog opens and suspends both.

        Raises what the suspended work and `work` raise.
        """
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

    # -- the policy's view and actions ----------------------------------------------------------------------------
    async def look(self, screen: bytes, size: tuple[int, int]) -> dict[str, Any]:
        """Show the first dialog over `screen` (PNG of `size` pixels) and observe it.

        Returns `elements`, the dialog's fields and buttons, and `dialog`, with its `kind` and `message`.
        """
        dialog = self.open[0]
        await self._show(screen, size)
        seen = await self._cover.page.observe(0)
        return {"elements": seen["elements"], "dialog": {"kind": dialog.kind, "message": dialog.message[:_MAX_MESSAGE]}}

    async def screenshot(self, screen: bytes, size: tuple[int, int]) -> bytes:
        """Show the first dialog over `screen` (PNG of `size` pixels); returns the PNG of both."""
        await self._show(screen, size)
        self._seen = True
        return await self._cover.page.screenshot()

    async def do(self, action: Action, hands: InputDriver) -> str:
        """Carry out an action on the first dialog; returns "" or why nothing was done."""
        dialog = self.open[0]
        if isinstance(action, act.Wait | act.Finished | act.CallUser):
            return ""
        if self._shown is not dialog or not self._seen:
            return f"not done, since a dialog had opened: {dialog}"
        waits = f"a dialog waits for an answer: {dialog}"
        if isinstance(action, act.Navigate | act.NavigateBack):
            return f"{act.ACTION_NAMES[type(action)]} was not done: {waits}"
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
        """Close all dialogs at the end of an episode: accept alerts, cancel others. Raises EnvError for above 100."""
        for closed in itertools.count():
            if not self.open:
                return
            dialog = self.open[0]
            if closed == _MAX_CLOSED:
                raise EnvError(f"the page opens dialogs without end: {dialog}", where="the end of the episode")
            self._notes.add(f"{dialog}: {'closed' if dialog.kind == 'alert' else 'cancelled'} at the end")
            await self._answer(dialog, {"accept": dialog.kind == "alert"})

    async def _show(self, screen: bytes, size: tuple[int, int]) -> None:
        dialog = self.open[0]
        if self._shown is not dialog:
            await self._cover.show(_DIALOG_HTML, screen, size, dialog.question)
            self._shown, self._seen = dialog, False

    async def _answer(self, dialog: Dialog, answer: Mapping[str, Any]) -> None:
        """Answer a dialog, and run its script until the suspended work is done or a dialog opens again."""
        if not dialog.answered:
            await dialog.page.send("Page.handleJavaScriptDialog", answer)
        if dialog.kind == "beforeunload" and not answer["accept"]:
            dialog.page.stay()
        if dialog in self.open:
            self.open.remove(dialog)
        await self.run_unless_blocked(_do_nothing())


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
    """Do nothing: `run_unless_blocked` then only finishes the suspended work."""


# The file chooser: a list of the session's files for `<input type=file>`, drawn over the page, since a browser's own
# would show the machine's disk. A name is looked up among the manifest's `files` and the session's downloads, never
# made into a path. While the chooser is open it takes mouse and keys, as a browser's does, and page time goes on.

_MAX_FILES = 200
_ASKED_S = 1.0  # seconds that the browser may take to say which input wants a file
_ROW, _EDGE = 20, 6  # pixels
_INK, _PAPER, _BAR, _CHOSEN = "#202124", "#ffffff", "#e8eaed", "#c2dbff"
_PARTIAL_DOWNLOAD = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(\.\w+)?")  # name of an unfinished download
# The input gets this event, as it does when a browser's own chooser is cancelled.
_CANCEL_FUNCTION = "function () { this.dispatchEvent(new Event('cancel', {bubbles: true})) }"
_QUOTED = re.compile(r'"([^"]*)"')


class FileChooser:
    """Imitate the browser's file chooser by a list of the session's files, its rows always at the same places.

    width, height: of the viewport in pixels. Its coroutines raise EnvError where the page is gone.
    """

    def __init__(self, width: int, height: int) -> None:
        self._width, self._height = width, height
        self._asked: tuple[BrowserPage, Mapping[str, Any]] | None = None  # the page, and the event's parameters
        self._page: BrowserPage | None = None
        self._document = self._input = 0  # the page's count of documents; the node's id
        self._many = False
        self._files: dict[str, Path] = {}
        self._listed: list[str] = []  # names of those that the input accepts
        self._chosen: list[str] = []
        self._first = 0  # index of the row shown first
        self._typed = ""

    @property
    def open(self) -> bool:
        """Tell whether the chooser is open; it closes with the document that asked."""
        return self._page is not None and not self._page.gone and self._page.arrivals == self._document

    def asked(self, page: BrowserPage, params: Mapping[str, Any]) -> None:
        """Take the event `Page.fileChooserOpened`: an input of a page wants a file."""
        self._asked = (page, params)
        page.wake()

    async def appear(self, page: BrowserPage, folders: list[Path]) -> str:
        """Open the chooser over a page that asked for a file, and return a note for the agent.

        folders: of the files to list. Returns "" where no click made the page ask: the browser then refuses it, without
        an event.
        """
        with contextlib.suppress(TimeoutError):
            await page.wait_until(lambda: self._asked is not None, _ASKED_S)
        asked, self._asked = self._asked, None
        return await self._show(*asked, folders) if asked is not None else ""

    async def _show(self, page: BrowserPage, params: Mapping[str, Any], folders: list[Path]) -> str:
        if "backendNodeId" not in params:
            return "a chooser of files without an input of the page: refused"
        self.close()
        self._page, self._document, self._input = page, page.arrivals, params["backendNodeId"]
        self._many = params["mode"] == "selectMultiple"
        self._files = list_session_files(folders)
        accept = await _call_on_node(page, self._input, "function () { return this.accept }") or ""
        self._listed = [name for name in self._files if accepts_file(accept, name)]
        what = "files" if self._many else "a file"
        names = ", ".join(self._listed[:10]) + ("..." if len(self._listed) > 10 else "")
        if not self._listed:
            return "the page asks for a file, and the session has none that it takes: Escape closes the list"
        return f"the page asks for {what}: click one of the list ({names}), or type its name and a line end"

    def close(self) -> None:
        """Close the chooser without a choice."""
        self._page, self._chosen, self._typed, self._first = None, [], "", 0

    async def do(self, action: Action) -> str:
        """Carry out an action on the list; returns "" or why nothing was done."""
        match action:
            case act.Click(point) | act.LeftDouble(point) | act.LeftTriple(point):
                return await self._click(point)
            case act.Scroll(_, "up" | "down" as way):
                step = self._rows if way == "down" else -self._rows
                self._first = max(min(self._first + step, len(self._listed) - self._rows), 0)
                return ""
            case act.Type(content):
                self._typed += content.rstrip("\n")
                return await self._submit() if content.endswith("\n") else ""
            case act.Hotkey(("enter",) | ("return",)):
                return await self._submit()
            case act.Hotkey(("esc",) | ("escape",)):
                page, number = self._page, self._input
                self.close()
                with contextlib.suppress(CdpCommandError):  # the node is gone
                    await _call_on_node(page, number, _CANCEL_FUNCTION)
                return ""
            case act.Hotkey(("backspace",)):
                self._typed = self._typed[:-1]
                return ""
            case act.Wait() | act.Finished() | act.CallUser() | act.Hover():
                return ""
        return "a list of files is open: choose one of them, or press Escape"

    # -- choosing -------------------------------------------------------------------------------------------------
    @property
    def _rows(self) -> int:
        return max((self._height - 2 * _EDGE) // _ROW - 2, 1)  # without the title and the line of buttons

    async def _click(self, point: Point) -> str:
        if not (0 <= point.x < 1 and 0 <= point.y < 1):
            return "the point is outside the viewport"
        line = int((point.y * self._height - _EDGE) // _ROW)
        if line == self._rows + 1:  # two buttons, each half of the line
            return await self.do(act.Hotkey(("esc",))) if point.x >= 0.5 else await self._submit()
        row = line - 1 + self._first
        if not (1 <= line <= self._rows and row < len(self._listed)):
            return "there is no file"
        name = self._listed[row]
        if not self._many:
            return await self._give([name])
        self._chosen = [one for one in self._chosen if one != name] + [name] * (name not in self._chosen)
        return ""

    async def _submit(self) -> str:
        names = _QUOTED.findall(self._typed) or ([self._typed.strip()] if self._typed.strip() else self._chosen)
        self._typed = ""
        if not names:
            return "no file is chosen"
        if missing := [name for name in names if name not in self._files]:
            return f"the session has no file {missing[0][:80]!r}"
        if len(names) > 1 and not self._many:
            return "the page asks for one file"
        return await self._give(names)

    async def _give(self, names: list[str]) -> str:
        page, files = self._page, [str(self._files[name]) for name in names]
        self.close()
        try:
            await page.send("DOM.setFileInputFiles", {"files": files, "backendNodeId": self._input})
        except CdpCommandError:  # the node is gone
            return "the page wants no file any more"
        return ""

    # -- drawing --------------------------------------------------------------------------------------------------
    def draw_over(self, screen: bytes) -> bytes:
        """Draw the list over the screen (PNG); returns a PNG."""
        picture = Image.open(io.BytesIO(screen)).convert("RGB")
        pen, font = ImageDraw.Draw(picture), ImageFont.load_default(13)
        left, right = _EDGE, self._width - _EDGE

        def line(number: int, text: str, ground: str) -> None:
            top = _EDGE + number * _ROW
            pen.rectangle((left, top, right - 1, top + _ROW - 1), ground)
            pen.text((left + 6, top + 2), _fit_text(text, font, right - left - 12), _INK, font)

        line(0, f"File name: {self._typed}" if self._typed else "Open files" if self._many else "Open file", _BAR)
        for number in range(self._rows):
            row = self._first + number
            name = self._listed[row] if row < len(self._listed) else ""
            line(number + 1, name, _CHOSEN if name in self._chosen else _PAPER)
        line(self._rows + 1, "Open", _BAR)
        pen.text((self._width / 2 + 6, _EDGE + (self._rows + 1) * _ROW + 2), "Cancel", _INK, font)
        pen.rectangle((left, _EDGE, right - 1, _EDGE + (self._rows + 2) * _ROW - 1), outline=_INK)
        return encode_png(picture)


def list_session_files(folders: list[Path]) -> dict[str, Path]:
    """List the files below `folders`, 200 at most: name relative to the folder -> path. No link is followed."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            real = path.resolve()
            inside = real.is_relative_to(folder.resolve()) and not path.is_symlink()
            there = real.is_file() and not _PARTIAL_DOWNLOAD.fullmatch(path.name)
            if inside and there and len(found) < _MAX_FILES:
                found.setdefault(path.relative_to(folder).as_posix(), real)
    return found


def accepts_file(accept: str, name: str) -> bool:
    """Tell whether an input whose `accept` attribute is `accept` takes the file `name`, by suffix or media type."""
    kinds = [kind.strip().lower() for kind in accept.split(",") if kind.strip()]
    guessed = mimetypes.guess_type(name)[0] or ""
    return not kinds or any(
        name.lower().endswith(kind) if kind.startswith(".") else guessed.startswith(kind.removesuffix("*"))
        for kind in kinds
    )


async def _call_on_node(page: BrowserPage, number: int, function: str) -> Any:
    node = await page.send("DOM.resolveNode", {"backendNodeId": number})
    call = {"objectId": node["object"]["objectId"], "functionDeclaration": function}
    return (await page.send("Runtime.callFunctionOn", call))["result"].get("value")


def _fit_text(text: str, font: Any, width: float) -> str:
    while text and font.getlength(text) > width:
        text = text[:-1]
    return text
