"""Speak the Chrome DevTools Protocol over the two pipes of `--remote-debugging-pipe`; capture the pixels of pages.

Sessions are flattened: one connection carries the browser's own commands and those of every page, distinguished by
`sessionId`. A command is written at once and answered by a future, so that several may be under way (pipelined). When
the pipe closes, all of them fail: a killed browser is noticed within milliseconds.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from flywheel.config import SandboxSettings
from flywheel.utils.errors import EnvError, EnvTimeout

CdpListener = Callable[[str, Mapping[str, Any]], None]
_MAX_MESSAGE_BYTES = 256 * 2**20  # far above any answer of a healthy page
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


class CdpCommandError(EnvError):
    """Report that the browser refused a command of the DevTools protocol."""


class CdpConnection(asyncio.Protocol):
    """Send commands to one browser through its pipes, and receive events. closed: a future, done when it is gone."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._next = 0
        self._waiting: dict[int, tuple[asyncio.Future[dict[str, Any]], str, str]] = {}
        self._listeners: dict[str, CdpListener] = {}
        self._buffer = bytearray()
        self._writer: asyncio.WriteTransport | None = None
        self._reader: asyncio.ReadTransport | None = None

    @classmethod
    async def open(cls, reads: int, writes: int) -> CdpConnection:
        """Open a connection over two file descriptors, which it then owns. reads: for answers. writes: for commands."""
        loop = asyncio.get_running_loop()
        connection = cls()
        connection._reader, _ = await loop.connect_read_pipe(lambda: connection, os.fdopen(reads, "rb", 0))
        # The same protocol object serves both pipes: asyncio notices on the written pipe that its reader is gone.
        connection._writer, _ = await loop.connect_write_pipe(lambda: connection, os.fdopen(writes, "wb", 0))
        return connection

    def send(
        self, method: str, params: Mapping[str, Any] | None = None, session: str = ""
    ) -> asyncio.Future[dict[str, Any]]:
        """Write a command and return the future of its result, which raises CdpCommandError where it is refused.

        session: of the page that it is for; "": the browser itself. The future raises EnvError where the browser is
        gone.
        """
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        if self.closed.done():
            answer.set_exception(_browser_gone(method))
            return answer
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        self._waiting[self._next] = (answer, method, session)
        self._writer.write(_encode(message).encode() + b"\0")
        return answer

    def post(self, method: str, params: Mapping[str, Any] | None = None, session: str = "") -> None:
        """Write a command whose answer nobody waits for; a refusal is ignored."""
        self.send(method, params, session).add_done_callback(ignore_answer)

    async def call(
        self, method: str, params: Mapping[str, Any] | None = None, session: str = "", *, timeout_s: float
    ) -> dict[str, Any]:
        """Send a command and wait for the answer.

        Raises EnvTimeout after `timeout_s` seconds, CdpCommandError and EnvError as `send`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self.send(method, params, session)
        except TimeoutError:
            raise EnvTimeout(f"the browser did not answer {method} within {timeout_s:g} s", where="browser") from None

    def listen(self, session: str, listener: CdpListener) -> None:
        """Send the events of a session ("": the browser's own) to `listener(method, params)`."""
        self._listeners[session] = listener

    def end_session(self, session: str, error: EnvError) -> None:
        """End a session: its events are ignored, and its unanswered commands fail with `error`."""
        self._listeners.pop(session, None)
        for number in [number for number, waiting in self._waiting.items() if waiting[2] == session]:
            answer = self._waiting.pop(number)[0]
            if not answer.done():
                answer.set_exception(error)

    def close(self) -> None:
        """Close the pipes; the browser then ends by itself."""
        for transport in (self._writer, self._reader):
            if transport is not None:
                transport.close()
        self._gone()

    # -- what arrives ---------------------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        """Take bytes from the browser; a message of more than _MAX_MESSAGE_BYTES closes the connection."""
        searched = len(self._buffer)
        self._buffer += data
        start = 0
        while (end := self._buffer.find(b"\0", max(start, searched))) >= 0:
            self._take(self._buffer[start:end])
            start = end + 1
        if start:
            del self._buffer[:start]
        if len(self._buffer) > _MAX_MESSAGE_BYTES:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all unanswered commands: the browser is gone."""
        self._gone()

    def _take(self, text: bytearray) -> None:
        message = json.loads(text)
        number = message.get("id")
        if number is None:
            listener = self._listeners.get(message.get("sessionId", ""))
            if listener is not None:
                listener(message["method"], message.get("params", {}))
            return
        answer, method, _ = self._waiting.pop(number, (None, "", ""))
        if answer is None or answer.done():
            return
        if "error" in message:
            error = message["error"]
            answer.set_exception(CdpCommandError(str(error.get("message", error)), where=method))
        else:
            answer.set_result(message["result"])

    def _gone(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
        waiting, self._waiting = self._waiting, {}
        for answer, method, _ in waiting.values():
            if not answer.done():
                answer.set_exception(_browser_gone(method))


def _browser_gone(method: str) -> EnvError:
    return EnvError("the browser is gone", where=method)


def ignore_answer(answer: asyncio.Future) -> None:
    """Retrieve the error of an answer that nobody waits for, so that asyncio does not log it."""
    if not answer.cancelled():
        answer.exception()


class TargetListener(Protocol):
    """Receive the targets (pages) of a browser context: a tab does, and the cover that is shown over its pages."""

    def attached(self, session: str, info: Mapping[str, Any]) -> None: ...

    def detached(self, session: str) -> None: ...


class TargetRouter:
    """Report new and ended pages to the owner of their browser context; close pages without an owner.

    owners: by the context's id.
    """

    def __init__(self, connection: CdpConnection) -> None:
        self._connection = connection
        self.owners: dict[str, TargetListener] = {}
        connection.listen("", self._hear)

    def _hear(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "Target.attachedToTarget":
            info, session = params["targetInfo"], params["sessionId"]
            owner = self.owners.get(info.get("browserContextId", ""))
            if owner is not None and info["type"] == "page":
                owner.attached(session, info)
                return
            if info["type"] == "page":  # a page that some builds begin with, or of a closed tab
                self._connection.post("Target.closeTarget", {"targetId": info["targetId"]})
            self._connection.post("Runtime.runIfWaitingForDebugger", session=session)
        elif method == "Target.detachedFromTarget":
            for owner in list(self.owners.values()):
                owner.detached(params["sessionId"])


# Pixels of a page: `BeginFrameCapture` draws frames on command, where the build has HeadlessExperimental.beginFrame: it
# waits for no vertical sync, and nothing is drawn in between. `ScreenshotCapture` is for browsers that draw unasked.

log = logging.getLogger(__name__)
_PNG = {"format": "png", "optimizeForSpeed": True}
_CORNER = {"x": 0, "y": 0, "width": 1, "height": 1, "scale": 1}
_INTERVAL = 1000 / 60
_MERCY_S = 2.0  # seconds that a page may take to answer after its script was stopped
_TRIES, _AGAIN_S = 100, 0.01
_LATER_MS = 0.009  # from try to try: a frame not later than the last is never drawn; all tries take below 1 ms


class BeginFrameCapture:
    """Capture pixels by HeadlessExperimental.beginFrame: frames on command, one at a time in the whole browser.

    Two at once crash it ("overlapping IssueExternalBeginFrame"). kill: kills the browser. A page that hangs within its
    frame would block all others: after half of `timeout_s` its script is stopped; where
    that does not help, the page is crashed, and where that does not help either, the browser is killed. The same
    happens to a page over which the browser opened a window of its own unknown to `pickers.py`: nobody draws that. Its
    coroutines raise EnvTimeout for such a page, EnvError where the browser draws nothing or is gone.
    """

    on_command = True  # only `draw` and `screenshot` draw anything

    def __init__(self, connection: CdpConnection, settings: SandboxSettings, kill: Callable[[], None]) -> None:
        self._connection, self._patience, self._kill = connection, settings.timeout_s / 2, kill
        self._turn = asyncio.Lock()
        self._under_way: asyncio.Future[dict[str, Any]] | None = None
        self._whose = ""
        self._ended: set[str] = set()  # sessions of pages that hung and were crashed

    def drawing(self, session: str) -> bool:
        """Tell whether a frame of the page of `session` is under way."""
        return session == self._whose and self._under_way is not None and not self._under_way.done()

    async def screenshot(self, session: str, ticks: float) -> bytes:
        """Capture a PNG of a page's viewport. ticks: the frame's time in ms, later than the page's last one."""
        for attempt in range(_TRIES):
            answer = await self._frame(session, ticks + attempt * _LATER_MS, {"screenshot": _PNG})
            if "screenshotData" in answer:
                return base64.b64decode(answer["screenshotData"])
            await asyncio.sleep(_AGAIN_S)  # a new document has nothing to draw yet
        raise EnvError("the browser draws nothing", where="HeadlessExperimental.beginFrame")

    async def draw(self, session: str, ticks: float) -> None:
        """Draw a frame without a picture, which delivers input that waits for a frame, and continues scrolling.

        ticks: as in `screenshot`.
        """
        await self._frame(session, ticks, {})

    async def _frame(self, session: str, ticks: float, what: Mapping[str, Any]) -> dict[str, Any]:
        async with self._turn:
            await self._previous()
            self._sound(session)
            params = {"frameTimeTicks": ticks, "interval": _INTERVAL, **what}
            self._whose = session
            self._under_way = answer = self._connection.send("HeadlessExperimental.beginFrame", params, session)
            answer.add_done_callback(ignore_answer)
            # The answer itself is not awaited: a cancelled caller must leave the frame for the next one to wait for.
            await self._previous()
            self._sound(session)
            return answer.result()

    def _sound(self, session: str) -> None:
        if session in self._ended:
            raise EnvTimeout("the page hung in its frame, and was ended", where="HeadlessExperimental.beginFrame")

    async def _previous(self) -> None:
        """Wait for the frame under way, and stop its script, its page or the browser where it hangs."""
        answer = self._under_way
        if answer is None or answer.done():
            return
        whose, patience = self._whose, self._patience
        for stopping in ("Runtime.terminateExecution", "Page.crash", ""):
            done, _ = await asyncio.wait([answer], timeout=patience)
            if done:
                return
            if stopping:
                log.warning("a page hangs in its frame; it is sent %s", stopping)
                self._connection.post(stopping, session=whose)
            if stopping == "Page.crash":
                self._ended.add(whose)
            patience = _MERCY_S
        self._kill()
        raise EnvTimeout("a page hung in its frame, and its browser was ended", where="browser")


class ScreenshotCapture:
    """Capture pixels by Page.captureScreenshot, which every build has, and which waits for two vertical syncs.

    Its coroutines raise EnvError where page or browser is gone.
    """

    on_command = False

    def __init__(self, connection: CdpConnection) -> None:
        self._connection = connection
        self._under_way: set[str] = set()

    def drawing(self, session: str) -> bool:
        """Tell whether a screenshot of the page of `session` is under way."""
        return session in self._under_way

    async def screenshot(self, session: str, ticks: float) -> bytes:
        """Capture a PNG of a page's viewport. ticks: ignored."""
        return base64.b64decode((await self._capture(session, _PNG))["data"])

    async def draw(self, session: str, ticks: float) -> None:
        """Wait until the browser has drawn by itself, by a screenshot of one pixel. ticks: ignored."""
        await self._capture(session, {"format": "png", "clip": _CORNER})

    async def _capture(self, session: str, what: Mapping[str, Any]) -> dict[str, Any]:
        self._under_way.add(session)
        try:
            return await self._connection.send("Page.captureScreenshot", what, session)
        finally:
            self._under_way.discard(session)


FrameCapture = BeginFrameCapture | ScreenshotCapture


@dataclass(frozen=True)
class BrowserLink:
    """Hold the parts of a browser that its tabs and pages share. profile: its folder. touch: its pages are phones."""

    connection: CdpConnection
    frames: FrameCapture
    targets: TargetRouter
    settings: SandboxSettings
    profile: Path
    touch: bool

    async def open_blank_page(self, context: str, size: tuple[int, int]) -> None:
        """Open an empty page in a browser context, whose owner (`TargetRouter.owners`) is told of it.

        context: its id. size: width, height in pixels. Raises EnvError where the browser is gone.
        """
        target = {"url": "about:blank", "width": size[0], "height": size[1], "browserContextId": context}
        if self.frames.on_command:
            target["enableBeginFrameControl"] = True
        await self.connection.send("Target.createTarget", target)


def crop_png(screen: bytes, size: tuple[int, int]) -> bytes:
    """Crop a PNG to `size`, (width, height) in pixels.

    A zoomed page may end in the middle of a pixel, which some builds then draw beyond the viewport.
    """
    if tuple(int.from_bytes(screen[at : at + 4]) for at in (16, 20)) == size:
        return screen
    cut = io.BytesIO()
    Image.open(io.BytesIO(screen)).crop((0, 0, *size)).save(cut, "png")
    return cut.getvalue()


def encode_png(picture: Image.Image) -> bytes:
    """Encode a picture as a PNG, for speed rather than for size."""
    kept = io.BytesIO()
    picture.save(kept, "PNG", compress_level=1)
    return kept.getvalue()
