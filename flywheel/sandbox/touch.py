"""Actions carried out by fingers on a phone's screen, and by what a phone has beside it: applications, home and back.

The first address that a session may go to is the phone's launcher: it is the home screen, and it leads to an
application by `open/NAME`. Where the last page in the history is none of the application that is seen, back leads home.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from flywheel.agent import actions as act
from flywheel.agent.actions import Action
from flywheel.sandbox import drags
from flywheel.sandbox.inputs import OUTSIDE, InputDriver, outside
from flywheel.sandbox.page import Page, unheard
from flywheel.sandbox.sessions import within

_MOVES = 8  # of a finger, in a swipe
_PACE_MS = 16.0  # page time between them
_STILL_S = 0.3  # that a finger rests before it is lifted: what it moved does not fly on
_APART_S = 2.0  # between the beginnings of two gestures
_HOLD_MS = 600.0  # of page time: a long press
_SHARE = 0.6  # of the screen, a scroll: more than half, so that what snaps goes on
_SLOP = 15.0  # pixels that a finger moves before the page does
_FRAMES = 2  # in which a page has taken a touch, and moved
# Whoever listens for a long press hears of it. A field that it falls on is marked, as by Android's "Select all".
_LONG = """((x, y) => {
  const at = document.elementFromPoint(x, y);
  if (!at) return;
  const event = new PointerEvent("contextmenu", { bubbles: true, cancelable: true, composed: true,
    clientX: x, clientY: y, pointerType: "touch" });
  const field = at.closest("input, textarea");
  if (at.dispatchEvent(event) && field && "selectionStart" in field) { field.focus(); field.select(); }
})(%s, %s)"""
Place = tuple[float, float]


class TouchDriver(InputDriver):
    """Fingers and the screen's keyboard. What the browser shows over a page, as a dialog, is tapped by the mouse
    and left by back."""

    _last = 0.0  # when the last gesture began, in seconds as the browser is told

    async def do(
        self,
        action: Action,
        page: Page,
        allowed: tuple[str, ...],
        base: str,
        ms: float = 0,
        rest: drags.Rest | None = None,
    ) -> str:
        if not allowed:
            action = act.Hotkey(("esc",)) if isinstance(action, act.PressBack) else action
            return await super().do(action, page, allowed, base, ms, rest)
        match action:
            case act.LongPress(point):
                if outside(action):
                    return OUTSIDE
                await self._long(page, self.pixel(point), rest or page.observe)
            case act.OpenApp(name):
                return await self._open(page, f"{allowed[0]}open/{quote(name.strip()[:100], safe='')}", name)
            case act.PressHome():
                await page.navigate(allowed[0])
            case act.PressBack():
                return await self._back(page, allowed)
            case act.Click() | act.Drag() | act.Scroll() | act.Type() | act.Wait() | act.Finished() | act.CallUser():
                return await super().do(action, page, allowed, base, ms, rest)
            case _:
                return f"a phone has no {act.NAMES[type(action)]}"
        return ""

    # -- fingers --------------------------------------------------------------------------------------------------
    def _moment(self) -> float:
        """When a gesture begins: long enough after the last one, so that two taps are never a double tap."""
        self._last = max(time.time(), self._last + _APART_S)
        return self._last

    def _touch(self, page: Page, kind: str, at: Place | None, moment: float) -> asyncio.Future:
        points = [] if at is None else [{"x": at[0], "y": at[1]}]
        sent = page.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points, "timestamp": moment})
        sent.add_done_callback(unheard)
        return sent

    async def click(self, page: Page, at: Place, button: str = "left", clicks: int = 1) -> None:
        moment = self._moment()
        self._touch(page, "touchStart", at, moment)
        await page.deliver(self._touch(page, "touchEnd", None, moment + 0.05))
        await self._taken(page)

    async def _drag(self, page: Page, start: Place, end: Place, ms: float, rest: drags.Rest) -> None:
        await self._swipe(page, start, end)

    def grip(self, page: Page) -> Finger:
        """A finger on the screen."""
        return Finger(page, self._touch, self._moment())

    async def _scroll(self, page: Page, at: Place, way: tuple[int, int]) -> None:
        """A finger goes the other way, a good half of the screen, around the point."""
        sides = (self._width, self._height)
        reach = [step * (side * _SHARE + _SLOP) / 2 for step, side in zip(way, sides, strict=True)]
        middle = [
            min(max(place, abs(half) + 1), side - abs(half) - 1)
            for place, half, side in zip(at, reach, sides, strict=True)
        ]
        ends = [tuple(place + sign * half for place, half in zip(middle, reach, strict=True)) for sign in (1, -1)]
        await self._swipe(page, *ends)

    async def _swipe(self, page: Page, start: Place, end: Place) -> None:
        moment = self._moment()
        await page.deliver(self._touch(page, "touchStart", start, moment))
        for number in range(1, _MOVES + 1):
            share = number / _MOVES
            at = tuple(a + (b - a) * share for a, b in zip(start, end, strict=True))
            moment += _PACE_MS / 1000
            await page.deliver(self._touch(page, "touchMove", at, moment))
        await page.deliver(self._touch(page, "touchMove", end, moment + _STILL_S))
        await page.deliver(self._touch(page, "touchEnd", None, moment + 2 * _STILL_S))
        await self._taken(page)

    async def _long(self, page: Page, at: Place, rest: drags.Rest) -> None:
        """The browser's own would take half a second of real time; this one takes page time."""
        moment = self._moment()
        await page.deliver(self._touch(page, "touchStart", at, moment))
        if await rest(_HOLD_MS) is not None:
            await page.evaluate(_LONG % (json.dumps(at[0]), json.dumps(at[1])))
        await page.deliver(self._touch(page, "touchCancel", None, moment + 1))

    async def _taken(self, page: Page) -> None:
        for _ in range(_FRAMES):
            await page.draw()

    # -- the phone ------------------------------------------------------------------------------------------------
    async def _open(self, page: Page, address: str, name: str) -> str:
        failed = await page.navigate(address)
        return f"there is no application called {name[:100]}" if failed else ""

    async def _back(self, page: Page, allowed: tuple[str, ...]) -> str:
        """Closes a list that hangs open; else back in the application that is seen, then to the home screen."""
        if await page.evaluate("document.querySelector('select:open') !== null"):
            await self._hotkey(page, ("esc",))
            return ""
        history = await page.send("Page.getNavigationHistory")
        entries, now = [one["url"] for one in history["entries"]], history["currentIndex"]
        here = next((one for one in allowed if within(entries[now], (one,))), allowed[0])
        if now and within(entries[now - 1], (here,)) and entries[now] != allowed[0]:
            await page.travel(-1)
        elif here == allowed[0] and urlsplit(entries[now]).path == urlsplit(allowed[0]).path:
            return "this is the home screen: there is nothing to go back to"
        else:
            await page.navigate(allowed[0])
        return ""


class Finger:
    """One that stays on the screen, and is moved by a person: `drags.Grip` for phones. began: when, in seconds."""

    def __init__(
        self, page: Page, touch: Callable[[Page, str, Place | None, float], asyncio.Future], began: float
    ) -> None:
        self.page, self._touch, self._ahead = page, touch, began - time.time()

    async def press(self, at: Place) -> None:
        await self._told("touchStart", at)

    async def move(self, at: Place) -> None:
        await self._told("touchMove", at)

    async def heed(self, seen: Mapping[str, Any]) -> None:
        """Nothing hangs on a finger."""

    async def release(self, at: Place) -> None:
        await self._told("touchEnd", None)

    def let_go(self, at: Place) -> None:
        if not self.page.gone:
            self._touch(self.page, "touchCancel", None, time.time() + self._ahead)

    async def _told(self, kind: str, at: Place | None) -> None:
        await self.page.deliver(self._touch(self.page, kind, at, time.time() + self._ahead))
