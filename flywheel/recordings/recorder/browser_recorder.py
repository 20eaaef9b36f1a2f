"""Record a person's work in a Chromium of the recorder's own, by the DevTools protocol.

A script in each document (`browser_page.js`), which the page's own scripts cannot reach, tells the input, with the
accessible name of the element under the pointer; the browser's screencast gives the screens, and each input has the
newest one from before it. What the browser itself does (its bar, tabs, dialogs, lists) is told by the protocol and
becomes keys that do the same.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from PIL import Image

from flywheel.recordings.recorder.gestures import HIDDEN_TEXT, MODIFIERS, RawInput
from flywheel.recordings.recorder.recorder import RecordingOptions, RecordingWriter
from flywheel.recordings.recorder.windows import Box
from flywheel.utils.errors import BadInput, EnvError

Shares = tuple[float, float, float, float]  # left, top, width, height as shares of a tab's screen
_WHOLE: Shares = (0.0, 0.0, 1.0, 1.0)
WORLD = "web"  # of tasks that a person set themselves in a browser
_SCRIPT = Path(__file__).with_name("browser_page.js").read_text(encoding="utf-8")
_NAME = "flywheel"  # of the script's own world
_FRAMES = 24  # that are held of each tab
_SETTLE_S = 0.25  # without a new frame, before a last look at what the screencast may have left out
_EXPLAINED_S = 1.0  # as long does an input explain what the browser does next
_ANSWER_S = 2.0  # for a question to a page
_START_S = 60.0
_EDGES = """one => { const style = getComputedStyle(one); return ["Left", "Top", "Right", "Bottom"].map(
    (side) => parseFloat(style[`border${side}Width`]) + parseFloat(style[`padding${side}`])); }"""
_FLAGS = (
    "--enable-blink-features=ComputedAccessibilityInfo",  # names of elements, as assistive technology gets them
    "--site-per-process",  # as browsers with windows have it
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-infobars",
    "--test-type",  # no bar above the page that warns of flags
)


@dataclass
class _Frame:
    """Hold the screen of a tab at `time_s` (`time.monotonic`). shot: PNG, as the browser gave it. boxes: of it that are
    not to be seen. stale: some of them are of a document that was gone already."""

    time_s: float
    width: int
    height: int
    shot: bytes = field(repr=False)
    url: str
    boxes: Sequence[Box] = ()
    stale: bool = False
    number: int | None = None

    def png(self) -> bytes:
        """Encode it as PNG, with its boxes in black."""
        if not self.boxes:
            return self.shot
        picture = Image.open(io.BytesIO(self.shot)).convert("RGB")
        for left, top, width, height in self.boxes:
            picture.paste((0, 0, 0), (left, top, left + width, top + height))
        out = io.BytesIO()
        picture.save(out, "png", compress_level=1)
        return out.getvalue()


class _Target:
    """Hold what has a protocol session of its own: a page, or a frame in another process. frame: None for a page."""

    def __init__(self, tab: _Tab, session: Any, frame: Any) -> None:
        self.tab, self.session, self.frame = tab, session, frame
        self.root = ""  # id of its topmost frame
        self.contexts: dict[int, str] = {}  # of the script's world in each document -> its frame
        self.places: dict[str, Shares] = {}  # of its frames, as they were found last
        self.secret: set[int] = set()  # contexts with a field whose text is not to be kept


class _Tab:
    """Hold a tab. expected: its next navigation is no deed of the person in the browser's bar."""

    def __init__(self, page: Any) -> None:
        self.page, self.expected = page, True
        self.targets: list[_Target] = []
        self.frames: deque[_Frame] = deque(maxlen=_FRAMES)
        self.drawn_s = 0.0
        self.secrets: list[Shares] = []  # as they were found last

    def before(self, time_s: float) -> _Frame:
        """Return the newest frame of before `time_s`; the oldest that is held where none is."""
        frames = sorted(self.frames, key=lambda one: one.time_s)
        return next((frame for frame in reversed(frames) if frame.time_s <= time_s), frames[0])


class BrowserRecorder(RecordingWriter):
    """Record a browser, which it opens at `url`, into `folder`, which it makes: `with BrowserRecorder(...)`.

    options: its `excluded` are patterns of hosts or addresses. executable: of a Chromium. headless: without a window,
    as tests want it. sandbox: Chromium's own. size: of the window in pixels. Raises BadInput where the address cannot
    be opened, the microphone is missing or `folder` exists; EnvError where the browser does not start.
    """

    def __init__(
        self, folder: Path, options: RecordingOptions, url: str, executable: Path,
        *, headless: bool = False, sandbox: bool = True, size: tuple[int, int] = (1280, 720),
    ) -> None:  # fmt: skip
        super().__init__(folder, options)
        self._url, self._executable, self._headless, self._sandbox = _clean(url), executable, headless, sandbox
        self._size = size
        self._tabs: list[_Tab] = []
        self._active: _Tab | None = None
        self._lost = ""
        self._acted_s = 0.0  # when the last input came
        self._tasks: set[asyncio.Task] = set()
        self._patterns = [pattern.casefold() for pattern in options.excluded]

    # -- life --------------------------------------------------------------------------------------------------------
    def __enter__(self) -> BrowserRecorder:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="recorder-browser", daemon=True)
        self._thread.start()
        try:
            self.call(self._start(), _START_S)
        except BaseException:
            self.call(self._stop_browser(), _START_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stopped.set()
        self.call(self._finish(), _START_S)
        self._close_folder(self._why_lost(), 0)
        self.call(self._stop_browser(), _START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def call(self, work: Coroutine[Any, Any, Any], timeout_s: float = _START_S) -> Any:
        """Run a coroutine in the recorder's thread, and return its result. Raises TimeoutError after `timeout_s`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    @property
    def pages(self) -> list[Any]:
        """List Playwright's pages of the open tabs, in order."""
        return [tab.page for tab in self._tabs]

    def _why_lost(self) -> list[str]:
        return ([self._lost] if self._lost else []) + super()._why_lost()

    async def _start(self) -> None:
        from playwright.async_api import Error, async_playwright

        self._playwright = self._browser = None
        self._heard: asyncio.Queue[tuple[_Target, int, dict[str, Any], float] | None] = asyncio.Queue()
        self._playwright = await async_playwright().start()
        width, height = self._size
        environment = os.environ | ({"DISPLAY": self._options.display} if self._options.display else {})
        try:
            self._browser = await self._playwright.chromium.launch(
                executable_path=self._executable, headless=self._headless, chromium_sandbox=self._sandbox,
                args=[*_FLAGS, f"--window-size={width},{height}"], ignore_default_args=["--enable-automation"],
                handle_sigint=False, handle_sigterm=False, env=environment,
            )  # fmt: skip
        except Error as error:
            fix = "see whether the display is there, and that Chromium starts by itself"
            why = str(error).splitlines()[0]
            raise EnvError(f"Chromium does not start: {why}", where=self._executable, fix=fix) from None
        self._browser.on("disconnected", lambda _: self._lose("the browser was closed"))
        viewport = {"viewport": {"width": width, "height": height}} if self._headless else {"no_viewport": True}
        self._context = await self._browser.new_context(**viewport)
        self._context.on("dialog", lambda dialog: None)  # it is the person's to answer
        page = await self._context.new_page()
        width, height = await page.evaluate("[innerWidth, innerHeight]")
        self._open_folder(width, height, {"world": WORLD, "url": self._url})
        self._context.on("page", lambda opened: self._spawn(self._add_tab(opened)))
        self._consumer = asyncio.create_task(self._consume())
        await self._add_tab(page)
        try:
            await page.goto(self._url, wait_until="domcontentloaded")
        except Error as error:
            self.stopped.set()
            self._close_folder([], 0)
            shutil.rmtree(self.folder)
            why = str(error).splitlines()[0]
            fix = "name it whole, such as https://shop.example/"
            raise BadInput(f"the address cannot be opened: {why}", where=self._url, fix=fix) from None

    async def _finish(self) -> None:
        await self._heard.put(None)
        await self._consumer
        tab = self._active
        if tab is not None and tab.frames and not self.stats.paused and not self._is_excluded(tab.page.url):
            with contextlib.suppress(Exception):  # the browser may be gone
                await self._look(tab)
            self._bind(tab.before(time.monotonic()))  # what the work led to

    async def _stop_browser(self) -> None:
        with contextlib.suppress(Exception):  # it may be gone
            if self._browser:
                await self._browser.close()
        with contextlib.suppress(Exception):
            if self._playwright:
                await self._playwright.stop()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _lose(self, why: str) -> None:
        if not self.stopped.is_set():
            self._lost = self._lost or why

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(_quietly(work), name=work.__name__)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- tabs and frames ---------------------------------------------------------------------------------------------
    async def _add_tab(self, page: Any) -> None:
        tab = _Tab(page)
        first, now = not self._tabs, time.monotonic()
        by_page = first or await page.opener() is not None or now - self._acted_s < _EXPLAINED_S
        self._tabs.append(tab)
        page.on("close", lambda _: self._remove_tab(tab))
        page.on("crash", lambda _: self._note("a page that crashed"))
        page.on("framenavigated", lambda frame: self._spawn(self._add_frame(tab, frame)))
        tab.expected = by_page
        await self._attach(tab, None)
        if first or by_page:
            self._active = tab
        else:
            self._heard.put_nowait((tab.targets[0], 0, {"kind": "new"}, now))
        for frame in page.frames[1:]:
            await self._add_frame(tab, frame)

    def _remove_tab(self, tab: _Tab) -> None:
        now = time.monotonic()
        self._tabs.remove(tab)
        if tab is self._active:
            if now - self._acted_s >= _EXPLAINED_S and tab.frames and not self.stopped.is_set():
                self._write(tab, _key(now, "w", "Control"))
            self._active = self._tabs[-1] if self._tabs else None
        if not self._tabs:
            self._lose("the last tab was closed")

    async def _add_frame(self, tab: _Tab, frame: Any) -> None:
        """Attach to a frame in a process of its own; others belong to their page's session."""
        if frame.parent_frame is None:
            return
        for target in [one for one in tab.targets if one.frame is frame]:
            try:
                await target.session.send("Page.getFrameTree")
                return
            except Exception:  # it went to another process
                tab.targets.remove(target)
        with contextlib.suppress(Exception):  # it has no session of its own
            await self._attach(tab, frame)

    async def _attach(self, tab: _Tab, frame: Any) -> None:
        session = await self._context.new_cdp_session(frame or tab.page)
        target = _Target(tab, session, frame)
        tab.targets.append(target)

        def began(told: Mapping[str, Any]) -> None:
            context = told["context"]
            if context["name"] == _NAME:
                target.contexts[context["id"]] = context["auxData"]["frameId"]

        def said(told: Mapping[str, Any]) -> None:
            self._said(target, told["executionContextId"], told["payload"])

        session.on("Runtime.executionContextCreated", began)
        session.on("Runtime.bindingCalled", said)
        if frame is None:
            session.on("Page.screencastFrame", lambda told: self._spawn(self._take_frame(target, told)))
            session.on("Page.frameRequestedNavigation", lambda told: self._navigates(target, told, True))
            session.on("Page.frameStartedNavigating", lambda told: self._navigates(target, told, False))
            session.on("Page.javascriptDialogClosed", lambda told: self._put(target, "dialog", told))
        await session.send("Page.enable")
        await session.send("Runtime.enable")
        target.root = (await session.send("Page.getFrameTree"))["frameTree"]["frame"]["id"]
        await session.send("Runtime.addBinding", {"name": "flywheel_record", "executionContextName": _NAME})
        script = {"source": _SCRIPT, "worldName": _NAME, "runImmediately": True}
        await session.send("Page.addScriptToEvaluateOnNewDocument", script)
        if frame is None:
            await session.send("Page.startScreencast", {"format": "png"})

    def _put(self, target: _Target, kind: str, more: Mapping[str, Any]) -> None:
        self._heard.put_nowait((target, 0, {"kind": kind, **more}, time.monotonic()))

    def _navigates(self, target: _Target, told: Mapping[str, Any], by_page: bool) -> None:
        tab, how = target.tab, told.get("navigationType", "")
        if told["frameId"] != target.root or how == "sameDocument":
            return
        if by_page:
            tab.expected = True
            return
        mended = how.startswith("reload") and tab.page.url.startswith("chrome-error:")  # which the browser tries again
        explained = (
            tab.expected or mended or (how != "differentDocument" and time.monotonic() - self._acted_s < _EXPLAINED_S)
        )
        tab.expected = False
        self._put(target, "page" if explained else "navigate", {"how": how, "url": told["url"]})

    # -- screens -----------------------------------------------------------------------------------------------------
    async def _take_frame(self, target: _Target, told: Mapping[str, Any]) -> None:
        now = time.monotonic()
        tab, shown_s = target.tab, min(now, now - (time.time() - told["metadata"].get("timestamp", time.time())))
        acknowledged = asyncio.ensure_future(
            _quietly(target.session.send("Page.screencastFrameAck", {"sessionId": told["sessionId"]}))
        )
        tab.drawn_s = now
        new = await self._hold(tab, base64.b64decode(told["data"]), shown_s if now - shown_s < _ANSWER_S else now)
        await acknowledged
        await asyncio.sleep(_SETTLE_S)
        if new and tab.drawn_s == now:  # the newest one: while it was on its way, one may have been left out
            await self._look(tab)

    async def _look(self, tab: _Tab) -> None:
        now = time.monotonic()
        shot = await tab.targets[0].session.send("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": True})
        await self._hold(tab, base64.b64decode(shot["data"]), now)

    async def _hold(self, tab: _Tab, png: bytes, time_s: float) -> bool:
        """Hold a frame, and tell whether it is a new one."""
        url = tab.page.url
        last = tab.frames[-1] if tab.frames else None
        if self._is_excluded(url) or (last and last.shot == png and not last.stale):
            return False
        width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))
        shares, stale = await self._secret_shares(tab)
        boxes = [
            (int(left * width) - 1, int(top * height) - 1, int(wide * width) + 3, int(high * height) + 3)
            for left, top, wide, high in shares
        ]
        tab.frames.append(_Frame(time_s, width, height, png, _clean(url), boxes, stale))
        return True

    async def _secret_shares(self, tab: _Tab) -> tuple[list[Shares], bool]:
        """List where secrets can be read on the tab, and where excluded frames lie. Of a document that has just gone,
        and may still be on the screen, what was found last: the second value tells that."""
        found: list[Shares] = []
        stale = False
        for target in tab.targets:
            for context, frame in list(target.contexts.items()):
                if context not in target.secret:
                    continue
                asked = {"expression": "flywheelRecorder.boxes()", "contextId": context, "returnByValue": True}
                try:
                    told = await target.session.send("Runtime.evaluate", asked)
                    left, top, width, height = await self._frame_place(target, frame)
                    found += [(left + a * width, top + b * height, c * width, d * height)
                              for a, b, c, d in told["result"]["value"]]  # fmt: skip
                except Exception:
                    target.secret.discard(context)
                    found, stale = found + tab.secrets, True
        for frame in tab.page.frames[1:] if self._patterns else ():
            if self._is_excluded(frame.url):
                with contextlib.suppress(Exception):
                    found.append(await self._element_shares(await frame.frame_element(), tab))
        tab.secrets = found
        return found, stale

    async def _element_shares(self, element: Any, tab: _Tab) -> Shares:
        """Return where the inside of a frame's element lies."""
        box, (left, top, right, bottom) = await element.bounding_box(), await element.evaluate(_EDGES)
        width, height = await self._viewport(tab.targets[0])
        wide, high = box["width"] - left - right, box["height"] - top - bottom
        return (box["x"] + left) / width, (box["y"] + top) / height, wide / width, high / height

    async def _viewport(self, target: _Target) -> tuple[float, float]:
        """Return the width and height of a target's window, scroll bars and all, in the units of its boxes."""
        context = next(one for one, frame in reversed(target.contexts.items()) if frame == target.root)
        asked = {"expression": "[innerWidth, innerHeight]", "contextId": context, "returnByValue": True}
        return tuple((await target.session.send("Runtime.evaluate", asked))["result"]["value"])

    async def _frame_place(self, target: _Target, frame: str) -> Shares:
        """Return where a frame lies on its tab; where it has gone meanwhile, where it lay. frame: its id."""
        if target.frame is None and frame == target.root:
            return _WHOLE
        try:
            target.places[frame] = await self._ask_frame_place(target, frame)
        except Exception:
            if frame not in target.places:
                raise
        return target.places[frame]

    async def _ask_frame_place(self, target: _Target, frame: str) -> Shares:
        left, top, wide, high = _WHOLE
        if target.frame is not None:
            left, top, wide, high = await self._element_shares(await target.frame.frame_element(), target.tab)
        if frame == target.root:
            return left, top, wide, high
        owner = await target.session.send("DOM.getFrameOwner", {"frameId": frame})
        box = await target.session.send("DOM.getBoxModel", {"backendNodeId": owner["backendNodeId"]})
        quad, (width, height) = box["model"]["content"], await self._viewport(target)
        right, bottom = (quad[2] - quad[0]) / width * wide, (quad[5] - quad[1]) / height * high
        return left + quad[0] / width * wide, top + quad[1] / height * high, right, bottom

    # -- input -------------------------------------------------------------------------------------------------------
    def _said(self, target: _Target, context: int, payload: str) -> None:
        told = json.loads(payload)
        if told["kind"] == "secret":
            target.secret.add(context)
            return
        if told["kind"] == "inside":
            self._spawn(self._frame_place(target, target.contexts[context]))
            return
        if told["kind"] == "host":
            self._spawn(self._open_shadow(target, context, told["id"]))
            return
        now = time.monotonic()
        delay = time.time() - told["at"] / 1000
        at = now - delay if 0 <= delay < _ANSWER_S else now  # one clock: that of this process
        if told["kind"] in ("press", "key_down", "text", "file") and told.get("key") not in MODIFIERS:
            self._acted_s = at
        self._heard.put_nowait((target, context, told, at))

    async def _open_shadow(self, target: _Target, context: int, number: int) -> None:
        """Give the script the closed shadow root of an element that it asks for, or tell it that there is none."""

        async def ask(expression: str, **more: Any) -> dict[str, Any]:
            asked = {"expression": expression, "contextId": context, **more}
            return (await target.session.send("Runtime.evaluate", asked))["result"]

        element = await ask(f"flywheelRecorder.host({number})")
        if "objectId" not in element:
            return
        node = await target.session.send("DOM.describeNode", {"objectId": element["objectId"]})
        roots = [one for one in node["node"].get("shadowRoots", ()) if one["shadowRootType"] == "closed"]
        if not roots:
            await ask(f"flywheelRecorder.opened({number}, null)")
            return
        place = {"backendNodeId": roots[0]["backendNodeId"], "executionContextId": context}
        root = (await target.session.send("DOM.resolveNode", place))["object"]["objectId"]
        function = f"function() {{ flywheelRecorder.opened({number}, this) }}"
        await target.session.send("Runtime.callFunctionOn", {"objectId": root, "functionDeclaration": function})

    async def _consume(self) -> None:
        last_s = 0.0
        while (heard := await self._heard.get()) is not None:
            target, context, told, at = heard
            last_s = at = max(last_s, at)
            try:
                await asyncio.wait_for(self._hear(target, context, told, at), _ANSWER_S)
            except Exception as error:  # of this input alone, such as of a page that is gone
                self._note(f"an input of kind {told['kind']} ({type(error).__name__})")

    async def _hear(self, target: _Target, context: int, told: dict[str, Any], at: float) -> None:
        kind, tab = told["kind"], target.tab
        if kind in ("key_down", "key_up") and self._obey(_raw_key(kind, at, told)):
            return
        address = told.get("url", "") if kind != "navigate" else ""
        if self.stats.paused or any(map(self._is_excluded, (address, tab.page.url))):
            if kind != "page":
                self._leave_out()
            self._active = tab
            return
        if kind == "note":
            self._note(told["what"])
            return
        if kind == "new":
            if self._active is not None and not self._is_excluded(self._active.page.url):
                self._write(self._active, _key(at, "t", "Control"))
            self._active = tab
        elif tab is not self._active:
            self._switch(tab, at)
        secret = bool(told.get("secret"))
        match kind:
            case "press" | "release":
                left, top, width, height = await self._frame_place(target, context and target.contexts[context])
                x, y = left + told["x"] / told["width"] * width, top + told["y"] / told["height"] * height
                place = {"x": round(x * self._width), "y": round(y * self._height), "held": tuple(told["held"])}
                self._write(tab, RawInput(at, kind, button=told["button"], label=told.get("label", ""), **place))
            case "key_down" | "key_up":
                self._write(tab, _raw_key(kind, at, told), secret)
            case "text" | "file":
                if told.get("enter") or kind == "file":
                    self._write(tab, RawInput(at, "page"))
                text = told["text"] if kind == "text" else ", ".join(told["names"])
                if text or secret:
                    self._write(tab, RawInput(at, "key_down", key="Text", text=text or HIDDEN_TEXT), secret)
                if told.get("enter") or kind == "file":
                    self._write(tab, _key(at, "Enter"))
            case "dialog":
                if told.get("userInput"):
                    self._write(tab, RawInput(at, "key_down", key="Text", text=told["userInput"]))
                self._write(tab, _key(at, "Enter" if told["result"] else "Escape"))
            case "page":
                self._write(tab, RawInput(at, "page"))
            case "navigate":
                await self._navigate(target, told["how"], _clean(told["url"]), at)

    async def _navigate(self, target: _Target, how: str, url: str, at: float) -> None:
        """Write what the person did in the browser's bar."""
        if how.startswith("reload"):
            self._write(target.tab, _key(at, "F5"))
        elif how.startswith("history"):
            forward = await self._went_forward(target, url)
            self._write(target.tab, _key(at, "ArrowRight", "Alt") if forward else RawInput(at, "back"))
        elif not self._is_excluded(url):
            self._write(target.tab, RawInput(at, "navigate", text=url))

    async def _went_forward(self, target: _Target, url: str) -> bool:
        """Tell whether a step in the tab's history that leads to `url` goes forward; where the browser does not say, it
        goes back."""
        for _ in range(3):
            with contextlib.suppress(Exception):  # the tab is between two pages
                history = await target.session.send("Page.getNavigationHistory")
                entries, now = history["entries"], history["currentIndex"]
                if entries[now]["url"] == url:  # it has come there already
                    return now + 1 == len(entries)
                return now + 1 < len(entries) and entries[now + 1]["url"] == url
            await asyncio.sleep(0.1)
        return False

    def _switch(self, tab: _Tab, at: float) -> None:
        """Write the key that shows a tab, on the screen of the one that was seen before."""
        place = self._tabs.index(tab) + 1 if tab in self._tabs else 0
        if self._active is not None and 1 <= place <= 8 and not self._is_excluded(self._active.page.url):
            self._write(self._active, _key(at, str(place), "Control"))
        else:
            self._note("a change of tab")
        self._active = tab

    def _write(self, tab: _Tab, one: RawInput, secret: bool = False) -> None:
        if not tab.frames:
            if one.kind != "page":
                self._note("an input before the first screen")
            return
        if (kept := self._without_secret(one, lambda: secret)) is None:
            return
        if self._begins_action(kept):
            kept = replace(kept, screen=self._bind(tab.before(kept.time_s)))
        self._keep(kept)

    def _note(self, what: str) -> None:
        self.stats.notes.append(what)

    def _is_excluded(self, url: str) -> bool:
        if not self._patterns or not url:
            return False
        names = ((urlsplit(url).hostname or "").casefold(), url.casefold())
        return any(fnmatch(name, pattern) for name in names for pattern in self._patterns)


def _raw_key(kind: str, at: float, told: Mapping[str, Any]) -> RawInput:
    return RawInput(at, kind, key=told["key"], text=told["text"], held=tuple(told["held"]))


def _key(at: float, key: str, *held: str) -> RawInput:
    return RawInput(at, "key_down", key=key, held=held)


def _clean(url: str) -> str:
    """Return an address without the name and password that it may hold."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in parts.netloc else url


async def _quietly(work: Any) -> None:
    """Await something that fails where its page is gone meanwhile."""
    from playwright.async_api import Error

    with contextlib.suppress(Error, KeyError):
        await work


def explain_missing_display(display: str) -> str:
    """Explain that no display is named to show a browser on; "" where one is, or where the system is not Linux.

    display: an X11 display, such as `:0`; "": that of DISPLAY or WAYLAND_DISPLAY. Whether it answers is not tried.
    """
    named = display or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return "there is no display to show the browser on" if sys.platform.startswith("linux") and not named else ""
