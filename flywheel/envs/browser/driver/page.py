"""Drive one page by its DevTools protocol session: set-up, scripts, navigation, clock; and stack popups over it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from flywheel.envs.browser.driver.cdp import BrowserLink, CdpCommandError, crop_png, ignore_answer
from flywheel.envs.browser.driver.context import Origin, is_within_prefixes, list_allowed_origins
from flywheel.utils.errors import EnvError

# The JavaScript that runs in pages: before a document's or worker's own scripts, and in the pickers. A script of
# several parts is wrapped in one function: its parts share their names, and a page sees none of them.

_HERE = Path(__file__).parent / "scripts"

# In order: a later part may replace what an earlier one defined.
_DOCUMENT_PARTS = """
    builtins core clock chance dialogs gestures navigation requests loads threads workers settling shadow_trees
    animations frames advance native_controls observe checkpoints clipboard install
"""
_PICKER_PARTS = "style common list calendar times colour show"


def read_script(path: str) -> str:
    """Read a JavaScript file that runs in pages. path: below the folder `scripts`."""
    return (_HERE / path).read_text(encoding="utf-8")


def _join_scripts(folder: str, parts: str) -> str:
    texts = (read_script(f"{folder}/{part}.js") for part in parts.split())
    return "".join(['(() => {\n"use strict";\n', *texts, "})();\n"])


# `CONFIG` in the worker's is replaced for each. A document's text is always the same, so that a process that has run it
# once compiles it no more; a script before it leaves it its configuration.
DOCUMENT_SCRIPT = _join_scripts("document", _DOCUMENT_PARTS) + read_script("refusals.js")
WORKER_SCRIPT = read_script("worker_clock.js")
PICKERS_SCRIPT = _join_scripts("pickers", _PICKER_PARTS)


_MAX_NOTES_A_STEP = 5
_MAX_NOTES = 1000  # that wait to be taken
_MAX_FAULTS = 50  # of one session


class SessionNotes:
    """Collect notes on a session that a step's result tells, such as refused addresses, besides what is seen.

    faults: what failed in the session's pages since it began, such as uncaught errors and failed loads.
    """

    def __init__(self) -> None:
        self._notes: list[str] = []
        self.faults: list[str] = []

    def add(self, text: str) -> None:
        """Add a note for the result of the step."""
        if len(self._notes) < _MAX_NOTES:
            self._notes.append(text)

    def fault(self, text: str) -> None:
        """Add a failure in a page."""
        if len(self.faults) < _MAX_FAULTS:
            self.faults.append(text)

    def take(self) -> list[str]:
        """Return the notes since the last call; of many, the first five and how many more there are."""
        notes, self._notes = self._notes, []
        if len(notes) > _MAX_NOTES_A_STEP:
            notes = [*notes[:_MAX_NOTES_A_STEP], f"and {len(notes) - _MAX_NOTES_A_STEP} more"]
        return notes

    def clear(self) -> None:
        """Forget all notes and failures."""
        self._notes, self.faults = [], []


_SETUP = yaml.safe_load(Path(__file__).with_name("page_setup.yaml").read_text(encoding="utf-8"))
# A page's clock must stand still while something loads, and no script can see an `import()`, or a picture that a style
# sheet loads. So this policy makes the browser report each request to the document (`loads.js`), in event order.
REPORT_ONLY_POLICY = _SETUP["report_only_policy"]
_DOCUMENT_TYPES = ("text/html", "application/xhtml+xml", "image/svg+xml")
# They describe the body as the server sent it, not as the browser gives it to us.
_STALE_HEADERS = ("content-encoding", "content-length", "transfer-encoding")


def _continue_response(page: BrowserPage, params: Mapping[str, Any]) -> None:
    """Let a paused response continue: a document with the report-only policy, anything else unchanged.

    A document's response is replaced, since the browser has read a response's policies before it pauses it for us.
    """
    on = {"requestId": params["requestId"]}
    headers = [(one["name"], one["value"]) for one in params.get("responseHeaders", [])]
    status, kinds = params.get("responseStatusCode", 0), {name.lower(): value.lower() for name, value in headers}
    shown = kinds.get("content-type", "").startswith(_DOCUMENT_TYPES) and "content-disposition" not in kinds
    if not shown or 300 <= status < 400 or status == 204:
        page.post("Fetch.continueRequest", on)
        return
    kept = [(name, value) for name, value in headers if name.lower() not in _STALE_HEADERS]
    told = [*kept, ("Content-Security-Policy-Report-Only", REPORT_ONLY_POLICY)]

    def give(body: asyncio.Future[dict[str, Any]]) -> None:
        if body.cancelled() or body.exception() is not None:  # the response broke off: let the browser report it
            page.post("Fetch.continueRequest", on)
            return
        text, encoded = body.result()["body"], body.result()["base64Encoded"]
        given = {"responseCode": status, "responseHeaders": [{"name": name, "value": value} for name, value in told]}
        given["body"] = text if encoded else base64.b64encode(text.encode()).decode()
        page.post("Fetch.fulfillRequest", on | given)

    page.send("Fetch.getResponseBody", on).add_done_callback(give)


_LEFT_SIGNS = (  # in the error of a call that a navigation of the page interrupted
    "context was destroyed",
    "Cannot find",
    "navigated or closed",
    "frame was detached",
    "Promise was collected",
)
WENT_NOWHERE = "flywheel.wentNowhere"  # reported like an event of the browser; `url`: where a frame was to go
_ASKED_S = 0.5  # seconds that a requested navigation may take to begin
_FRAME_MS = 1.0  # between two frames at one page time: a frame not later than the last is never drawn
_PATIENCE = 1 / 3  # share of the deadline that a document may go on loading, once
_TRAVEL_S = 2.0  # seconds that a step in the history may take to begin


# One listener of `pagehide` is ours (`install.js`).
_HEARS_END = """frames.length > 0 || [window, document].some((target) => {
  const heard = getEventListeners(target), ours = target === window ? 1 : 0;
  return heard.beforeunload || heard.unload || heard.pageswap || heard.visibilitychange || heard.freeze
    || (heard.pagehide?.length ?? 0) > ours;
})"""


HearPageEvent = Callable[["BrowserPage", str, Mapping[str, Any]], None]  # (page, method, parameters)


class PageGone(EnvError):
    """Report that the page crashed, or closed itself."""


class BrowserPage:
    """Drive one page by its DevTools protocol session.

    target, session: ids of the protocol. hear: called with the events that this class does not handle itself. time:
    page time in ms since the episode began. Its coroutines raise PageGone where the page crashed or closed itself,
    EnvError where the browser is gone or refuses a command, and, where they draw, EnvTimeout for a page that hangs in
    its frame.
    """

    def __init__(self, link: BrowserLink, target: str, session: str, hear: HearPageEvent) -> None:
        self._link = link
        self.connection, self.frames, self.settings = link.connection, link.frames, link.settings
        self.target, self.session = target, session
        self.time = 0.0
        self.gone = ""  # why the page is gone; "" while it is there
        self.url = ""  # of the document last observed
        self.posted = False  # the last request for a document carried a form's content
        self.drawn = 0  # random numbers that the document last observed had drawn from its seeded generator
        self._hear = hear
        self._asked: set[str] = set()  # frames whose script has requested another document
        self._expected = False  # a document is on its way, though no load has begun
        self._late = False  # the document has been waited for long enough
        self.stillborn = False  # a popup that never came to its address
        self._loading: set[str] = set()  # frames that are loading a document
        self._toward: dict[str, str] = {}  # the addresses that frames were told to go to
        self._size = (0, 0)  # of its screens, in pixels
        self._stays = False  # the user was asked whether to leave, and stays
        self._held = False  # a dialog waits for an answer and blocks the page
        self._changed = asyncio.Event()
        self.arrivals = self._starts = self._known = 0  # counts of documents, of loads begun, and of loads observed
        self._ticks, self._seed, self._workers = 1000.0, 0, 0
        self._sessions = 0  # that were played in this target before
        self._installed: list[asyncio.Future[dict[str, Any]]] = []  # answers to the scripts for its documents
        self.dragged: Mapping[str, Any] | None = None  # what the browser says is being dragged (`input.py`)
        self.connection.listen(session, self._event)

    def send(self, method: str, params: Mapping[str, Any] | None = None) -> asyncio.Future[dict[str, Any]]:
        """Send a command to the page, as `CdpConnection.send` does; returns the pending answer."""
        return self.connection.send(method, params, self.session)

    def post(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a command to the page whose answer nobody waits for."""
        self.connection.post(method, params, self.session)

    def set_up(self, size: tuple[int, int], touch: bool = False) -> list[asyncio.Future[dict[str, Any]]]:
        """Set up a new page: viewport, events, limits; returns the pending answers.

        size: width, height in pixels. touch: it is a phone's.
        """
        self._size = size
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": touch}
        told = _SETUP["page"] | {"Emulation.setDeviceMetricsOverride": metrics} | (_SETUP["phone"] if touch else {})
        return [self.send(method, params) for method, params in told.items()]

    def install_document_script(self, seed: int, time: float) -> list[asyncio.Future[dict[str, Any]]]:
        """Make the page run our script in all later documents, before their own; returns the pending answers.

        It gives them a clock and a seeded random generator. seed: of that. time: page time of the session, in ms.
        """
        self.time, self._seed = time, int(seed)
        for answer in self._installed:  # of the session before
            self.post("Page.removeScriptToEvaluateOnNewDocument", answer.result())
        patience = self.settings.timeout_s * 1000 * _PATIENCE  # real ms to wait for loads
        config = {"seed": self._seed, "start": time, "patience": patience, "policy": REPORT_ONLY_POLICY}
        config["session"] = self._sessions
        sources = (f"if (!window.__flywheel__) window.__flywheel_config__ = {json.dumps(config)};", DOCUMENT_SCRIPT)
        self._installed = [self.send("Page.addScriptToEvaluateOnNewDocument", {"source": one}) for one in sources]
        return self._installed

    def for_next_session(self) -> BrowserPage:
        """Return a new driver of the same browser page for the next session; events of the last one reach it no more.

        The browser makes a new page of the target, and of the process another realm, at each load of a document.
        """
        self.mark_gone("the page is closed")
        page = BrowserPage(self._link, self.target, self.session, self._hear)
        page._size, page._installed, page._sessions = self._size, self._installed, self._sessions + 1
        page._ticks = self._ticks  # the frames of one target need ever later times
        return page

    def pause_no_requests(self) -> asyncio.Future[dict[str, Any]]:
        """Pause no later request of the target for us; returns the pending answer."""
        return self.send("Fetch.disable")

    def pause_all_requests(self) -> asyncio.Future[dict[str, Any]]:
        """Pause every later request for us, not a document's alone; returns the pending answer."""
        documents = _SETUP["page"]["Fetch.enable"]["patterns"]
        return self.send("Fetch.enable", {"patterns": [*documents, {"urlPattern": "*", "requestStage": "Request"}]})

    async def evaluate(self, expression: str) -> Any:
        """Evaluate JavaScript, awaited if it is a promise, and return its JSON value. Raises EnvError if it throws."""
        # This way the page's content security policy does not apply.
        call = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        answer = await self.send("Runtime.evaluate", call)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            text = details.get("exception", {}).get("description") or details.get("text", "a script error")
            raise EnvError(f"the page's script failed: {text}", where=self.url)
        return answer["result"].get("value")

    # -- observation ----------------------------------------------------------------------------------------------
    async def observe(self, ms: float, read: str = "") -> dict[str, Any]:
        """Let loads and navigations finish, pass `ms` of page time, and return what the page then shows and tells.

        read: JavaScript whose value is `game`; "": `window.__env__.getState()`. Returns `url`, `elements`, `beyond`,
        `game`, `notes`, `copied` (text that went to the clipboard, or None), `files` (downloads that the page began),
        `drawn` and `posted`. Raises EnvError where its script fails, and as all coroutines here.
        """
        left, notes, copied, files, until = ms, [], None, 0, "null"
        reading = "()=>null" if read else "undefined"
        while True:
            late = "true" if self._late else "false"
            call = f"window.__flywheel__&&__flywheel__.observe({left!r},{reading},{self.time!r},{until},{late})"
            there, seen = await self._ask(call)
            if there and not seen:  # a document in which no scripts run
                seen = {"url": await self.address(), "elements": [], "game": None}
                return seen | {"notes": notes, "copied": copied, "files": files}
            if there:
                notes += seen["notes"]
                files += seen["files"]
                copied = copied if seen["copied"] is None else seen["copied"]
                self._ticks += max(seen["time"] - self.time, 0.0)
                self.time, left, until = seen["time"], seen["left"], "null"
                if not (seen["leaving"] or self._loading or self._asked or self._expected):
                    # In a call of its own, since a page's policy on eval applies to what comes after a wait.
                    there, game = await self._ask(read) if read else (True, seen["game"])
                    if there:
                        self.url, self.drawn, self._known = seen["url"], seen["drawn"], self._starts
                        told = {"notes": notes, "copied": copied, "files": files, "posted": self.posted}
                        return seen | told | {"game": game}
                # The page may report that it leaves before it does, or after a navigation to nowhere (a download).
                self._expected |= seen["leaving"] and self._known == self._starts
                self._known = self._starts
            else:
                until = repr(self.time + left)
            await self._settled()

    async def left_key_unhandled(self) -> bool:
        """Tell whether the page is still there and did not block the last key, so that the browser may act on it."""
        there, taken = await self._ask("window.__flywheel__&&__flywheel__.keyTaken()")
        return there and not taken

    async def hears_end(self) -> bool:
        """Tell whether the end of the page's document would run code: it has frames, or listeners for that."""
        call = {"expression": _HEARS_END, "includeCommandLineAPI": True, "returnByValue": True}
        return (await self.send("Runtime.evaluate", call))["result"].get("value") is not False

    async def _ask(self, expression: str) -> tuple[bool, Any]:
        """Return (True, the expression's value), or (False, None) where its document was left meanwhile."""
        try:
            return True, await self.evaluate(expression)
        except CdpCommandError as error:
            if not any(sign in error.what for sign in _LEFT_SIGNS):
                raise
            return False, None
        except EnvError as error:
            if self.gone or self.connection.closed.done():
                raise
            raise EnvError(f"the page could not be observed: {error.what}", where=self.url) from None

    async def screenshot(self) -> bytes:
        """Capture a PNG of the page's viewport, once no dialog blocks the page."""
        await self._free()
        self._ticks += _FRAME_MS
        return crop_png(await self.frames.screenshot(self.session, self._ticks), self._size)

    async def draw(self) -> None:
        """Draw a frame of the page, once no dialog blocks the page."""
        await self._free()
        self._ticks += _FRAME_MS
        await self.frames.draw(self.session, self._ticks)

    async def deliver(self, sent: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        """Draw frames until an input is answered that a page gets with its next frame, such as a move of the mouse.

        sent: the pending answer of the input's command; its result is returned.
        """
        sent.add_done_callback(ignore_answer)
        while not sent.done():
            await self.draw()
        return sent.result()

    async def wait_until(self, there: Callable[[], bool], seconds: float) -> None:
        """Wait until `there()` is true; checked at each event of the page.

        Raises TimeoutError after `seconds`, PageGone.
        """
        if not await self._wait(lambda: not there(), seconds):
            raise TimeoutError

    async def zoom(self, zoom: float) -> None:
        """Zoom the page as browsers do: it gets fewer (`zoom` > 1) or more CSS pixels for its layout."""
        width, height = (math.ceil(side / zoom) for side in self._size)
        more = {"scale": zoom, "dontSetVisibleSize": True} if zoom != 1 else {}
        metrics = {"width": width, "height": height, "deviceScaleFactor": zoom, "mobile": False}
        await self.send("Emulation.setDeviceMetricsOverride", metrics | more)

    async def address(self) -> str:
        """Return the address of the current entry in the page's history."""
        history = await self.send("Page.getNavigationHistory")
        return history["entries"][history["currentIndex"]]["url"]

    def expect_document(self) -> None:
        """Make `observe` wait for the document that is on its way to this page, which is still empty."""
        self._expected = True

    # -- navigation -----------------------------------------------------------------------------------------------
    async def navigate(self, url: str) -> str:
        """Go to the address `url`; returns "" once its document is there, else the browser's error."""
        self._asked.discard(self.target)
        answer = await self.send("Page.navigate", {"url": url})
        await self._settled()
        return answer.get("errorText", "")

    async def reload(self) -> None:
        """Reload the document."""
        await self._arrive("Page.reload", {})

    async def close(self) -> None:
        """Close the page; it stays where its beforeunload dialog is answered by staying."""
        with contextlib.suppress(PageGone):
            await self._arrive("Page.close", {})

    async def travel(self, steps: int) -> bool:
        """Go back (-1) or forward (1) in the history; returns False where there is no such entry."""
        history = await self.send("Page.getNavigationHistory")
        to = history["currentIndex"] + steps
        if not 0 <= to < len(history["entries"]):
            return False
        await self._arrive("Page.navigateToHistoryEntry", {"entryId": history["entries"][to]["id"]})
        return True

    async def _arrive(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a command that navigates, and wait until the document has come or the user has refused to leave."""
        before, self._stays = self.arrivals, False
        await self.send(method, params)
        await self._wait(lambda: self.arrivals == before and not self._stays, _TRAVEL_S)
        await self._settled()

    def stay(self) -> None:
        """Give up all navigations: the user was asked whether to leave the page, and stays."""
        self._stays = True
        self._asked.clear()
        self._toward.clear()
        self._expected = False
        self._changed.set()

    async def _settled(self) -> None:
        """Wait until no navigation is under way; a frame that goes on loading is waited for up to a limit."""
        # A browser refuses some addresses without an event.
        if not await self._wait(lambda: self._asked or self._expected, _TRAVEL_S if self._expected else _ASKED_S):
            self._asked.clear()
            self.stillborn = self._expected and not self.arrivals
            self._expected = False
        if not await self._wait(lambda: self._loading, self.settings.timeout_s * _PATIENCE):
            self._loading.clear()
            self._late = True

    async def _wait(self, while_: Callable[[], Any], seconds: float) -> bool:
        """Wait while `while_()` is true; returns False after `seconds`, not counting time with an open dialog."""
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
        """Make pictures and waits of this page pause while a dialog blocks it. held: whether one does."""
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
        """Make pending calls of `wait_until` check their condition again."""
        self._changed.set()

    def _equip(self, worker: str) -> None:
        """Give a new worker its clock and random generator before its script runs. worker: its protocol session."""
        self._workers += 1
        config = {"seed": self._seed + self._workers * 0x9E3779B1 & 0xFFFFFFFF, "start": self.time}
        source = WORKER_SCRIPT.replace("= CONFIG", f"= {json.dumps(config)}")
        # It is started after the answer: of two commands that come at once, the worker may take the start first.
        equipped = self.connection.send("Runtime.evaluate", {"expression": source}, worker)
        equipped.add_done_callback(ignore_answer)
        equipped.add_done_callback(lambda _: self.connection.post("Runtime.runIfWaitingForDebugger", session=worker))

    def mark_gone(self, why: str) -> None:
        """Mark the page as gone: every call to it raises PageGone. why: the error's message."""
        self.gone = self.gone or why
        self.connection.end_session(self.session, PageGone(self.gone, where=self.url))
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
        """Report a frame's navigation without a document: the address has none, is a file, or is not allowed."""
        address = self._toward.pop(frame, "")
        if address:
            self._hear(self, WENT_NOWHERE, {"url": address})


EMPTY_ADDRESSES = ("about:blank", "")
_MAX_PAGES = 4
_HEADER = re.compile(r"[!#$%&'*+.^_`|~\w-]+:[^\r\n\0]*", re.ASCII)
_BROWSER_HEADERS = ("cookie", "referer")  # that the browser itself adds where a request's headers lack them
_NEVER_OPENED_SCHEMES = ("data:", "filesystem:")  # browsers let no link or script open these in a new window


class PageStack:
    """Hold the pages of one session, popups over the page that opened them. The last page is seen.

    zoom: of all pages, later ones included. allowed: prefixes of addresses that they may go to. hear: called with the
    events that a page does not handle itself. note: called with notes for the step's result. ends: called with each
    page that is gone.
    """

    def __init__(
        self, link: BrowserLink, hear: HearPageEvent, note: Callable[[str], None], ends: Callable[[BrowserPage], None]
    ) -> None:
        self._link, self._connection = link, link.connection
        self._hear, self._note, self._ends = hear, note, ends
        self.pages: list[BrowserPage] = []
        self.zoom, self.seed = 1.0, 0
        self.allowed: tuple[str, ...] = ()
        self._headers: Mapping[str, str] = {}  # sent with requests to `_headers_to`
        self._headers_to: frozenset[Origin] = frozenset()
        self._size = (0, 0)
        self._wanted = ""  # the address of a popup that a page has requested
        self._opened: asyncio.Future[list[asyncio.Future[dict[str, Any]]]] | None = None
        self._alone = True  # no page was opened over the first one

    async def begin(self, context: str, size: tuple[int, int]) -> None:
        """Open the first page, empty, of the browser context with the id `context`. size: width, height in pixels."""
        self._size, self._alone = size, True
        self._opened = asyncio.get_running_loop().create_future()
        await self._link.open_blank_page(context, size)
        await asyncio.gather(*await self._opened)

    @property
    def unchanged(self) -> bool:
        """Tell whether there is the first page alone, as it was set up, and no other page was ever opened over it."""
        top = self.top
        idle = top is not None and not (top.gone or self._link.frames.drawing(top.session))
        return idle and self._alone and self.zoom == 1 and not self._headers

    def continue_for_next_session(self) -> None:
        """End the session, and keep its page for the next one; the stack must be `unchanged`."""
        self.pages = [self.pages[0].for_next_session()]

    async def set_headers(self, headers: Mapping[str, str], home: str) -> None:
        """Send `headers` with each request to the origin of the address `home`, and with no other.

        Raises EnvError for a header that HTTP does not allow.
        """
        for name, value in headers.items():
            if not _HEADER.fullmatch(f"{name}:{value}"):
                fix = "give a name of letters, digits and hyphens, and a value without line breaks"
                raise EnvError(f"the header {name!r} cannot be sent", where=home, fix=fix)
        self._headers = {name: value.strip() for name, value in headers.items()}
        self._headers_to = list_allowed_origins((home,))
        if headers:
            await asyncio.gather(*(page.pause_all_requests() for page in self.pages))

    @property
    def top(self) -> BrowserPage | None:
        """Return the page that is seen; None where there is none."""
        return self.pages[-1] if self.pages else None

    def attached(self, session: str, info: Mapping[str, Any]) -> None:
        """Set up a new page of the session, which the browser has paused; called at the protocol's event.

        session: of the protocol. info: of its target. Its opener may be paused too, so nothing is awaited here.
        """
        opener = next((page for page in self.pages if page.target == info.get("openerId")), None)
        if info.get("openerId") and (opener is None or len(self.pages) >= _MAX_PAGES):
            self._note("a popup was closed: there are too many")
            self._connection.post("Target.closeTarget", {"targetId": info["targetId"]})
            self._connection.post("Runtime.runIfWaitingForDebugger", session=session)
            return
        page = BrowserPage(self._link, info["targetId"], session, self._hear)
        told = page.set_up(self._size, self._link.touch)
        if self.zoom != 1:
            told.append(asyncio.ensure_future(page.zoom(self.zoom)))
        if opener is not None:
            told += page.install_document_script(self.seed + len(self.pages), self.pages[-1].time)
            self._alone = False
            if self._headers:
                told.append(page.pause_all_requests())
        for answer in told:
            answer.add_done_callback(ignore_answer)
        page.post("Runtime.runIfWaitingForDebugger")
        self.pages.append(page)
        if opener is not None:
            self._note("a page was opened over the last one")
            self._expect()
        elif self._opened is not None and not self._opened.done():
            self._opened.set_result(told)

    def handle_window_open(self, url: str) -> None:
        """Take the event that a page opens another one at `url`, which may come before or after that page itself."""
        self._wanted = url
        self._expect()

    def _expect(self) -> None:
        top = self.pages[-1]
        if self._wanted not in EMPTY_ADDRESSES and len(self.pages) > 1 and not top.url:
            wanted, self._wanted = self._wanted, ""
            if wanted.startswith(_NEVER_OPENED_SCHEMES):
                self.drop(top)
                self._note(f"a popup was closed: browsers open no {wanted.partition(':')[0]}: address in one")
                return
            top.expect_document()

    def detached(self, session: str) -> BrowserPage | None:
        """Drop the page of a protocol session, which closed itself, and return it; None where there is no such page."""
        page = next((page for page in self.pages if page.session == session), None)
        if page is not None:
            self._lose(page, "the page closed itself")
        return page

    def drop(self, page: BrowserPage) -> None:
        """Close a page that was opened over another."""
        self._lose(page, "the page is closed")
        self._connection.post("Target.closeTarget", {"targetId": page.target})

    def _lose(self, page: BrowserPage, why: str) -> None:
        self.pages.remove(page)
        page.mark_gone(why)
        self._ends(page)

    def handle_paused_request(self, page: BrowserPage, params: Mapping[str, Any]) -> None:
        """Answer the event of a paused request or response: documents outside `allowed` are refused, with a note."""
        if "responseStatusCode" in params or "responseErrorReason" in params:
            _continue_response(page, params)
            return
        request, url = params["requestId"], params["request"]["url"]
        if params["resourceType"] != "Document":
            page.post("Fetch.continueRequest", {"requestId": request, **self._with_headers(params["request"])})
            return
        if not is_within_prefixes(url, self.allowed):
            self._note(f"an address outside this world was refused: {url[:200]}")
            page.post("Fetch.fulfillRequest", {"requestId": request, "responseCode": 204})
            if not page.url and page is not self.pages[0]:  # a popup that was opened for this address
                self.drop(page)
            return
        if params["frameId"] == page.target:
            page.posted = params["request"]["method"] != "GET"
        page.post("Fetch.continueRequest", {"requestId": request, **self._with_headers(params["request"])})

    def _with_headers(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return what replaces a request's headers: with ours to our origin, without them elsewhere; {} to keep them.

        A redirection to elsewhere still has them.
        """
        if not self._headers:
            return {}
        ours = {name.lower(): value for name, value in self._headers.items()}
        own = list_allowed_origins((request["url"],)) == self._headers_to
        sent = dict(self._headers) if own else {}
        for name, value in request["headers"].items():
            low = name.lower()
            if low not in _BROWSER_HEADERS and (low not in ours or (not own and value != ours[low])):
                sent[name] = value
        return {"headers": [{"name": name, "value": value} for name, value in sent.items()]}

    async def set_zoom(self, zoom: float) -> None:
        """Zoom all pages, later ones included, as `BrowserPage.zoom` does. Raises EnvError where one is gone."""
        self.zoom = zoom
        for page in self.pages:
            await page.zoom(zoom)

    def hold(self, held: bool) -> None:
        """Block all pages while a dialog of one waits for an answer, since they may share a process."""
        for page in self.pages:
            page.hold(held)

    def forget(self) -> None:
        """Forget all pages; the caller disposes of their context."""
        for page in self.pages:
            page.mark_gone("the page is closed")
        self.pages, self._opened, self.zoom, self._headers = [], None, 1.0, {}
