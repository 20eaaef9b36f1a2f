"""Capture the pixels of a page, drawn on command or by the browser itself.

`BeginFrameCapture` draws a frame on command, where the build has HeadlessExperimental.beginFrame: it waits for no
vertical sync, and nothing is drawn in between. `ScreenshotCapture` asks a browser that draws by itself.
"""

from __future__ import annotations

import asyncio
import base64
import io
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from PIL import Image

from flywheel.config import SandboxSettings
from flywheel.envs.browser.driver.cdp import CdpConnection
from flywheel.utils.errors import EnvError, EnvTimeout

log = logging.getLogger(__name__)
_PNG = {"format": "png", "optimizeForSpeed": True}
_CORNER = {"x": 0, "y": 0, "width": 1, "height": 1, "scale": 1}
_INTERVAL = 1000 / 60
_MERCY_S = 2.0  # for a page to come back after its script was stopped
_TRIES, _AGAIN_S = 100, 0.01
_LATER_MS = 0.009  # of each try's frame: one at the time of the last is never drawn; all tries end within a millisecond


class FrameCapture(Protocol):
    on_command: bool  # nothing is drawn but by `draw` and `shot`

    def drawing(self, session: str) -> bool:
        """Tell whether a frame of that page is under way."""

    async def screenshot(self, session: str, ticks: float) -> bytes:
        """Capture a PNG of a page's viewport. ticks: the page's frame time in ms, never less than the last."""

    async def draw(self, session: str, ticks: float) -> None:
        """Draw a frame without looking at it: input that waits for one is delivered, scrolling moves on."""


class BeginFrameCapture:
    """One frame at a time in the whole browser: two at once end it ("overlapping IssueExternalBeginFrame").

    A page that hangs within its frame would stop all others: after half of `timeout_s` its script is stopped; where
    that does not help, the page is ended, and only a browser that holds on even then is ended whole. A frame also waits
    for ever where the browser has opened a window of its own over the page, which nobody draws: `pickers.py` closes
    those that it knows, and of any other it is the page that ends.
    """

    on_command = True

    def __init__(self, connection: CdpConnection, settings: SandboxSettings, kill: Callable[[], None]) -> None:
        self._connection, self._patience, self._kill = connection, settings.timeout_s / 2, kill
        self._turn = asyncio.Lock()
        self._under_way: asyncio.Future[dict[str, Any]] | None = None
        self._whose = ""
        self._ended: set[str] = set()  # pages that hung

    def drawing(self, session: str) -> bool:
        return session == self._whose and self._under_way is not None and not self._under_way.done()

    async def screenshot(self, session: str, ticks: float) -> bytes:
        for attempt in range(_TRIES):
            answer = await self._frame(session, ticks + attempt * _LATER_MS, {"screenshot": _PNG})
            if "screenshotData" in answer:
                return base64.b64decode(answer["screenshotData"])
            await asyncio.sleep(_AGAIN_S)  # a new document has handed in nothing to draw yet
        raise EnvError("the browser draws nothing", where="HeadlessExperimental.beginFrame")

    async def draw(self, session: str, ticks: float) -> None:
        await self._frame(session, ticks, {})

    async def _frame(self, session: str, ticks: float, what: Mapping[str, Any]) -> dict[str, Any]:
        async with self._turn:
            await self._previous()
            self._sound(session)
            params = {"frameTimeTicks": ticks, "interval": _INTERVAL, **what}
            self._whose = session
            self._under_way = answer = self._connection.send("HeadlessExperimental.beginFrame", params, session)
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
            # Waited for, not awaited: who is cancelled meanwhile leaves the frame under way for the next to wait for.
            await self._previous()
            self._sound(session)
            return answer.result()

    def _sound(self, session: str) -> None:
        if session in self._ended:
            raise EnvTimeout("the page hung in its frame, and was ended", where="HeadlessExperimental.beginFrame")

    async def _previous(self) -> None:
        """The frame under way is over."""
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
    """Page.captureScreenshot: every build has it. It waits for two vertical syncs."""

    on_command = False

    def __init__(self, connection: CdpConnection) -> None:
        self._connection = connection
        self._under_way: set[str] = set()

    def drawing(self, session: str) -> bool:
        return session in self._under_way

    async def screenshot(self, session: str, ticks: float) -> bytes:
        return base64.b64decode((await self._capture(session, _PNG))["data"])

    async def draw(self, session: str, ticks: float) -> None:
        """Wait until the browser has drawn by itself, by a screenshot of one pixel."""
        await self._capture(session, {"format": "png", "clip": _CORNER})

    async def _capture(self, session: str, what: Mapping[str, Any]) -> dict[str, Any]:
        self._under_way.add(session)
        try:
            return await self._connection.send("Page.captureScreenshot", what, session)
        finally:
            self._under_way.discard(session)


def crop_png(screen: bytes, size: tuple[int, int]) -> bytes:
    """Crop a PNG to (width, height): a zoomed page may end in the middle of a pixel, which some builds then
    draw beyond the viewport."""
    if tuple(int.from_bytes(screen[at : at + 4]) for at in (16, 20)) == size:
        return screen
    cut = io.BytesIO()
    Image.open(io.BytesIO(screen)).crop((0, 0, *size)).save(cut, "png")
    return cut.getvalue()
