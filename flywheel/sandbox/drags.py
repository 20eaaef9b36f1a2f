"""A drag as a person makes it: a press, moves on the way with page time between them, a release.

Libraries look where the pointer is in frames and timers of their own, so a drag that takes no time is missed. Where
the browser makes a drag of HTML of it (`draggable`, a link, a picture, selected text), no move of the mouse reaches
the page any more: the browser hands us what is dragged, and we say where it is and that it is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from flywheel.sandbox.page import Page, unheard

Place = tuple[float, float]
Mouse = Callable[[str, Place], asyncio.Future]  # (the protocol's type of event, where): the browser's answer
Rest = Callable[[float], Awaitable[Mapping[str, Any] | None]]  # passes page time; what is seen, None on another page

_MOVES = 8
_PACE_MS = 20.0  # page time after the press and after each move
_TAKEN_S = 1.0  # for the browser to say what is dragged, once the page let it be


class Grip:
    """A button of the mouse that is held down on a page, and what of the page hangs on it."""

    def __init__(self, page: Page, mouse: Mouse) -> None:
        self.page, self._mouse = page, mouse
        self._inside = False  # a drag of HTML has entered the page

    async def press(self, at: Place) -> None:
        self.page.dragged = None
        await self.page.deliver(self._mouse("mouseMoved", at))
        await self._mouse("mousePressed", at)

    async def move(self, at: Place) -> None:
        if self.page.dragged is None:
            await self.page.deliver(self._mouse("mouseMoved", at))
        else:
            await self._tell("dragOver" if self._inside else "dragEnter", at)

    async def heed(self, seen: Mapping[str, Any]) -> None:
        """What was seen after a move: where the page let a drag of HTML be, the browser is about to say of what."""
        if seen.get("dragging") and self.page.dragged is None:
            with contextlib.suppress(TimeoutError):  # nothing to drag, or a frame that was taken away
                await self.page.until(lambda: self.page.dragged is not None, _TAKEN_S)

    async def release(self, at: Place) -> None:
        if self.page.dragged is None:
            await self._mouse("mouseReleased", at)
            return
        # Browsers tell the place again and again: the page answers for this one, not for the last.
        for kind in ("dragOver", "drop") if self._inside else ("dragEnter", "dragOver", "drop"):
            await self._tell(kind, at)
        self.page.dragged = None

    def let_go(self, at: Place) -> None:
        """Another page is seen: this one, where it is still there, must not be left with the button held."""
        if self.page.gone:
            return
        if self.page.dragged is None:
            self._mouse("mouseReleased", at).add_done_callback(unheard)
        else:
            told = {"type": "dragCancel", "x": at[0], "y": at[1], "data": self.page.dragged}
            self.page.post("Input.dispatchDragEvent", told)
            self.page.dragged = None

    async def _tell(self, kind: str, at: Place) -> None:
        self._inside = True
        event = {"type": kind, "x": at[0], "y": at[1], "data": self.page.dragged, "modifiers": 0}
        await self.page.deliver(self.page.send("Input.dispatchDragEvent", event))


async def drag(grip: Grip, start: Place, end: Place, ms: float, rest: Rest) -> None:
    """Carry out a drag in at most `ms` of page time; it ends where the page gives way to another."""
    pace = min(_PACE_MS, ms / (_MOVES + 1))
    await grip.press(start)
    if await rest(pace) is None:
        return grip.let_go(start)
    for at in _way(start, end):
        await grip.move(at)
        seen = await rest(pace)
        if seen is None:
            return grip.let_go(at)
        await grip.heed(seen)
    await grip.release(end)


def _way(start: Place, end: Place) -> list[Place]:
    """Slow at both ends, as a hand is."""
    shares = [step / _MOVES for step in range(1, _MOVES + 1)]
    eased = [share * share * (3 - 2 * share) for share in shares]
    return [tuple(a + (b - a) * share for a, b in zip(start, end, strict=True)) for share in eased]
