"""Screens: how the pixels of a page are had. Both ways give the same ones.

`BeginFrames` draws a frame on command, where the build has HeadlessExperimental.beginFrame: it waits for no vertical
sync, and nothing is drawn in between. `Screenshots` asks a browser that draws by itself.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from flywheel.errors import EnvError, EnvTimeout
from flywheel.sandbox.cdp import Connection
from flywheel.settings import Sandbox

log = logging.getLogger(__name__)
_PNG = {"format": "png", "optimizeForSpeed": True}
_CORNER = {"x": 0, "y": 0, "width": 1, "height": 1, "scale": 1}
_INTERVAL = 1000 / 60
_MERCY_S = 2.0  # for a page to come back after its script was stopped
_TRIES, _AGAIN_S = 100, 0.01
_LATER_MS = 0.009  # of each try's frame: one at the time of the last is never drawn; all tries end within a millisecond


class Frames(Protocol):
    on_command: bool  # nothing is drawn but by `draw` and `shot`

    async def shot(self, session: str, ticks: float) -> bytes:
        """PNG of a page's viewport as it is now. ticks: the page's frame time in ms, never less than the last."""

    async def draw(self, session: str, ticks: float) -> None:
        """Draw a frame without looking at it: input that waits for one is delivered, scrolling moves on."""


class BeginFrames:
    """One frame at a time in the whole browser: two at once end it ("overlapping IssueExternalBeginFrame").

    A page that hangs within its frame would stop all others: after half of `timeout_s` its script is stopped, and
    where that does not help, the browser is.
    """

    on_command = True

    def __init__(self, connection: Connection, settings: Sandbox, kill: Callable[[], None]) -> None:
        self._connection, self._patience, self._kill = connection, settings.timeout_s / 2, kill
        self._turn = asyncio.Lock()
        self._under_way: asyncio.Future[dict[str, Any]] | None = None
        self._whose = ""

    async def shot(self, session: str, ticks: float) -> bytes:
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
            params = {"frameTimeTicks": ticks, "interval": _INTERVAL, **what}
            self._whose = session
            self._under_way = answer = self._connection.send("HeadlessExperimental.beginFrame", params, session)
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
            # Waited for, not awaited: who is cancelled meanwhile leaves the frame under way for the next to wait for.
            await self._previous()
            return answer.result()

    async def _previous(self) -> None:
        """The frame under way is over."""
        answer = self._under_way
        if answer is None or answer.done():
            return
        done, _ = await asyncio.wait([answer], timeout=self._patience)
        if not done:
            log.warning("a page hangs in its frame; its script is stopped")
            self._connection.post("Runtime.terminateExecution", session=self._whose)
            done, _ = await asyncio.wait([answer], timeout=_MERCY_S)
        if not done:
            self._kill()
            raise EnvTimeout("a page hung in its frame, and its browser was ended", where="browser")


class Screenshots:
    """Page.captureScreenshot: every build has it. It waits for two vertical syncs."""

    on_command = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def shot(self, session: str, ticks: float) -> bytes:
        answer = await self._connection.send("Page.captureScreenshot", _PNG, session)
        return base64.b64decode(answer["data"])

    async def draw(self, session: str, ticks: float) -> None:
        """The browser draws by itself: a picture of one pixel is there once it has done so."""
        await self._connection.send("Page.captureScreenshot", {"format": "png", "clip": _CORNER}, session)
