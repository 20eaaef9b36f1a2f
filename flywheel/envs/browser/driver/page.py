"""Drive one page by its protocol session: set-up, scripts, navigation, clock, and the popups over it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from flywheel.envs.browser.driver.cdp import BrowserLink, CdpCommandError, crop_png, ignore_answer
from flywheel.envs.browser.driver.context import is_within_prefixes
from flywheel.utils.errors import EnvError

# The JavaScript that runs in pages: ahead of a document's or worker's own scripts, and the pickers. A script in several
# parts is one function, run at once: its parts share their names, and a page sees none of them.

_HERE = Path(__file__).parent / "scripts"

# In order: a later part may replace what an earlier one defined.
_DOCUMENT_PARTS = """
    builtins core clock chance dialogs gestures navigation requests loads threads workers settling shadow_trees
    animations frames advance native_controls observe checkpoints clipboard install
"""
_PICKER_PARTS = "style common list calendar times colour show"


def read_script(path: str) -> str:
    """Read a script that runs in pages. path: below `scripts`."""
    return (_HERE / path).read_text(encoding="utf-8")


def _join_scripts(folder: str, parts: str) -> str:
    texts = (read_script(f"{folder}/{part}.js") for part in parts.split())
    return "".join(['(() => {\n"use strict";\n', *texts, "})();\n"])


# `CONFIG` in the first two is replaced for each page and worker.
DOCUMENT_SCRIPT = _join_scripts("document", _DOCUMENT_PARTS) + read_script("refusals.js")
WORKER_SCRIPT = read_script("worker_clock.js")
PICKERS_SCRIPT = _join_scripts("pickers", _PICKER_PARTS)


_MAX_NOTES_A_STEP = 5  # notes of one step
_MAX_NOTES = 1000  # that wait to be told
_MAX_FAULTS = 50  # of one session


class SessionNotes:
    """What is told of a session beside what is seen.

    faults: what failed in its pages since it began, such as uncaught errors and loads.
    """

    def __init__(self) -> None:
        self._notes: list[str] = []
        self.faults: list[str] = []

    def add(self, text: str) -> None:
        """Add a note for the user."""
        if len(self._notes) < _MAX_NOTES:
            self._notes.append(text)

    def fault(self, text: str) -> None:
        """Add what failed in a page."""
        if len(self.faults) < _MAX_FAULTS:
            self.faults.append(text)

    def take(self) -> list[str]:
        """Take the notes since it was called last."""
        notes, self._notes = self._notes, []
        if len(notes) > _MAX_NOTES_A_STEP:
            notes = [*notes[:_MAX_NOTES_A_STEP], f"and {len(notes) - _MAX_NOTES_A_STEP} more"]
        return notes

    def clear(self) -> None:
        self._notes, self.faults = [], []


_SETUP = yaml.safe_load(Path(__file__).with_name("page_setup.yaml").read_text(encoding="utf-8"))
# A page's clock must stand still while something loads, and no script can see an `import()`, or the picture that a
# style sheet asks for. So the browser reports each request to the document (`loads.js`), in the order of its events.
REPORT_ONLY_POLICY = _SETUP["report_only_policy"]
_DOCUMENT_TYPES = ("text/html", "application/xhtml+xml", "image/svg+xml")
# Of the body as it was sent, not as we have it.
_STALE_HEADERS = ("content-encoding", "content-length", "transfer-encoding")


def _continue_response(page: BrowserPage, params: Mapping[str, Any]) -> None:
    """Let an answer go on: a document with the policy, anything else as it is.

    A document is given anew, since a browser has read the policies of an answer before it lets us see it.
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
        if body.cancelled() or body.exception() is not None:  # it broke off: let the browser say so
            page.post("Fetch.continueRequest", on)
            return
        text, encoded = body.result()["body"], body.result()["base64Encoded"]
        given = {"responseCode": status, "responseHeaders": [{"name": name, "value": value} for name, value in told]}
        given["body"] = text if encoded else base64.b64encode(text.encode()).decode()
        page.post("Fetch.fulfillRequest", on | given)

    page.send("Fetch.getResponseBody", on).add_done_callback(give)


_LEFT_SIGNS = (  # what a call that was under way in the page says after a navigation
    "context was destroyed",
    "Cannot find",
    "navigated or closed",
    "frame was detached",
    "Promise was collected",
)
WENT_NOWHERE = "flywheel.wentNowhere"  # told like an event of the browser: `url`, where a frame was to go
_ASKED_S = 0.5  # for a navigation that was asked for to begin
_FRAME_MS = 1.0  # between two frames at one page time: one that is not later than the last is never drawn
_PATIENCE = 1 / 3  # of the deadline, for a document that goes on loading; spent once
_TRAVEL_S = 2.0  # for a step in the history to begin


HearPageEvent = Callable[["BrowserPage", str, Mapping[str, Any]], None]  # (page, method, parameters)


class PageGone(EnvError):
    """The page crashed, or closed itself."""


class BrowserPage:
    """Drive one page by its protocol session.

    target, session: ids of the protocol. hear: told of the events that are not its own. time: page time in ms since the
    episode began.
    """

    def __init__(self, link: BrowserLink, target: str, session: str, hear: HearPageEvent) -> None:
        self.connection, self.frames, self.settings = link.connection, link.frames, link.settings
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
        self.dragged: Mapping[str, Any] | None = None  # what the browser says is being dragged (`input.py`)
        self.connection.listen(session, self._event)

    def send(self, method: str, params: Mapping[str, Any] | None = None) -> asyncio.Future[dict[str, Any]]:
        return self.connection.send(method, params, self.session)

    def post(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        self.connection.post(method, params, self.session)

    def set_up(self, size: tuple[int, int], touch: bool = False) -> list[asyncio.Future[dict[str, Any]]]:
        """Tell a new target its size in pixels and how it is to behave. touch: it is a phone's."""
        self._size = size
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": touch}
        told = _SETUP["page"] | {"Emulation.setDeviceMetricsOverride": metrics} | (_SETUP["phone"] if touch else {})
        return [self.send(method, params) for method, params in told.items()]

    def install_document_script(self, seed: int, time: float) -> asyncio.Future[dict[str, Any]]:
        """Give all documents to come their clock and chance. time: of the session, in ms."""
        self.time, self._seed = time, int(seed)
        patience = self.settings.timeout_s * 1000 * _PATIENCE  # real ms that loads are waited for
        config = {"seed": self._seed, "start": time, "patience": patience, "policy": REPORT_ONLY_POLICY}
        source = DOCUMENT_SCRIPT.replace("= CONFIG;", f"= {json.dumps(config)};")
        return self.send("Page.addScriptToEvaluateOnNewDocument", {"source": source})

    def send_headers(self, headers: Mapping[str, str]) -> list[asyncio.Future[dict[str, Any]]]:
        """Send these with every request from now on."""
        if not headers:
            return []
        return [self.send("Network.enable"), self.send("Network.setExtraHTTPHeaders", {"headers": dict(headers)})]

    async def evaluate(self, expression: str) -> Any:
        """Evaluate JavaScript, awaited where it is a promise. Raises EnvError for what it throws."""
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

    async def left_key_unhandled(self) -> bool:
        """Tell whether the page let the last key pass, and is still there: the browser may act on it."""
        there, taken = await self._ask("window.__flywheel__&&__flywheel__.keyTaken()")
        return there and not taken

    async def _ask(self, expression: str) -> tuple[bool, Any]:
        """Value of an expression; (False, None) where its document was left meanwhile."""
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
        await self._free()
        self._ticks += _FRAME_MS
        return crop_png(await self.frames.screenshot(self.session, self._ticks), self._size)

    async def draw(self) -> None:
        await self._free()
        self._ticks += _FRAME_MS
        await self.frames.draw(self.session, self._ticks)

    async def deliver(self, sent: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        """Wait for the answer to an input that a page hears of in its next frame, such as a move of the mouse."""
        sent.add_done_callback(ignore_answer)
        while not sent.done():
            await self.draw()
        return sent.result()

    async def until(self, there: Callable[[], bool], seconds: float) -> None:
        """Wait until `there()`, which an event brings about. Raises TimeoutError after so many seconds."""
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
        """Expect a document, which is on its way to this page while it is still empty."""
        self._expected = True

    # -- navigation -----------------------------------------------------------------------------------------------
    async def navigate(self, url: str) -> str:
        """Go to an address: "" once its document is there, else what the browser said."""
        self._asked.discard(self.target)
        answer = await self.send("Page.navigate", {"url": url})
        await self._settled()
        return answer.get("errorText", "")

    async def reload(self) -> None:
        """Load the same document anew."""
        await self._arrive("Page.reload", {})

    async def close(self) -> None:
        """Close it, unless the user is asked and stays."""
        with contextlib.suppress(PageGone):
            await self._arrive("Page.close", {})

    async def travel(self, steps: int) -> bool:
        """Go back (-1) or forward (1) in the history; False where there is nothing."""
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
        """Stay on the page: the user was asked whether to leave it."""
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
        """Hold the page up while a dialog is open that it waits for."""
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
        """Let those who wait in `until` check again."""
        self._changed.set()

    def _equip(self, worker: str) -> None:
        """A worker begins: it gets a clock and chance of its own, ahead of its script."""
        self._workers += 1
        config = {"seed": self._seed + self._workers * 0x9E3779B1 & 0xFFFFFFFF, "start": self.time}
        source = WORKER_SCRIPT.replace("= CONFIG", f"= {json.dumps(config)}")
        # Awaited: of two commands that come at once, the worker may take the one that starts it first.
        equipped = self.connection.send("Runtime.evaluate", {"expression": source}, worker)
        equipped.add_done_callback(ignore_answer)
        equipped.add_done_callback(lambda _: self.connection.post("Runtime.runIfWaitingForDebugger", session=worker))

    def mark_gone(self, why: str) -> None:
        """Mark the page as gone: every call to it ends."""
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


EMPTY_ADDRESSES = ("about:blank", "")
_MAX_PAGES = 4
_NEVER_OPENED_SCHEMES = ("data:", "filesystem:")  # by a link or a script, in a window of its own


class PageStack:
    """The pages of one session, one over the other: each was opened by the one below. The last one is seen.

    zoom: of all pages, those to come included. allowed: where they may go. headers: sent with each request. hear: told
    of the events of a page that are not its own. note: told what the user should know. ends: told of each page that is
    gone.
    """

    def __init__(
        self, link: BrowserLink, hear: HearPageEvent, note: Callable[[str], None], ends: Callable[[BrowserPage], None]
    ) -> None:
        self._link, self._connection = link, link.connection
        self._hear, self._note, self._ends = hear, note, ends
        self.pages: list[BrowserPage] = []
        self.zoom, self.seed = 1.0, 0
        self.allowed: tuple[str, ...] = ()
        self.headers: Mapping[str, str] = {}
        self._size = (0, 0)
        self._wanted = ""  # the address of a popup that was asked for
        self._opened: asyncio.Future[list[asyncio.Future[dict[str, Any]]]] | None = None

    async def begin(self, context: str, size: tuple[int, int]) -> None:
        """Open the first page of a context, empty. size: in pixels."""
        self._size = size
        self._opened = asyncio.get_running_loop().create_future()
        await self._link.open_blank_page(context, size)
        await asyncio.gather(*await self._opened)

    @property
    def top(self) -> BrowserPage | None:
        """The page that is seen."""
        return self.pages[-1] if self.pages else None

    def attached(self, session: str, info: Mapping[str, Any]) -> None:
        """Take a target of this context, which waits; its opener may wait with it, so nothing is awaited here."""
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
            told.append(page.install_document_script(self.seed + len(self.pages), self.pages[-1].time))
            told += page.send_headers(self.headers)
        for answer in told:
            answer.add_done_callback(ignore_answer)
        page.post("Runtime.runIfWaitingForDebugger")
        self.pages.append(page)
        if opener is not None:
            self._note("a page was opened over the last one")
            self._expect()
        elif self._opened is not None and not self._opened.done():
            self._opened.set_result(told)

    def wants(self, url: str) -> None:
        """Hear where the page that another opens is to go: before that one is there, or after it."""
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
            top.expect()

    def detached(self, session: str) -> BrowserPage | None:
        """Drop the page that closed itself, and give it; None where it was none of these."""
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

    def asked_for(self, page: BrowserPage, params: Mapping[str, Any]) -> None:
        """Let a document that is asked for come where its address is allowed; else only a note is made."""
        if "responseStatusCode" in params or "responseErrorReason" in params:
            _continue_response(page, params)
            return
        request, url = params["requestId"], params["request"]["url"]
        if not is_within_prefixes(url, self.allowed):
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
        """Hold all pages up where one waits for its user, since they may share a process."""
        for page in self.pages:
            page.hold(held)

    def forget(self) -> None:
        """Forget all pages: their context goes."""
        for page in self.pages:
            page.mark_gone("the page is closed")
        self.pages, self._opened, self.zoom = [], None, 1.0
