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


async def drag(page: Page, mouse: Mouse, start: Place, end: Place, ms: float, rest: Rest) -> None:
    """Carry out a drag in at most `ms` of page time; it ends where the page gives way to another."""
    pace = min(_PACE_MS, ms / (_MOVES + 1))
    page.dragged = None
    await page.deliver(mouse("mouseMoved", start))
    await mouse("mousePressed", start)
    if await rest(pace) is None:
        return _let_go(page, mouse, start)
    inside = False  # a drag of HTML has entered the page
    for at in _way(start, end):
        if page.dragged is None:
            await page.deliver(mouse("mouseMoved", at))
        else:
            await _dispatch(page, "dragOver" if inside else "dragEnter", at)
            inside = True
        seen = await rest(pace)
        if seen is None:
            return _let_go(page, mouse, at)
        if seen.get("dragging") and page.dragged is None:
            with contextlib.suppress(TimeoutError):  # nothing to drag, or a frame that was taken away
                await page.until(lambda: page.dragged is not None, _TAKEN_S)
    if page.dragged is None:
        await mouse("mouseReleased", end)
        return
    # Browsers tell the place again and again: the page answers for this one, not for the last.
    for kind in ("dragOver", "drop") if inside else ("dragEnter", "dragOver", "drop"):
        await _dispatch(page, kind, end)
    page.dragged = None


def _let_go(page: Page, mouse: Mouse, at: Place) -> None:
    """Another page is seen: this one, where it is still there, must not be left with the button held."""
    if page.gone:
        return
    if page.dragged is None:
        mouse("mouseReleased", at).add_done_callback(unheard)
    else:
        page.post("Input.dispatchDragEvent", {"type": "dragCancel", "x": at[0], "y": at[1], "data": page.dragged})
        page.dragged = None


def _way(start: Place, end: Place) -> list[Place]:
    """Slow at both ends, as a hand is."""
    shares = [step / _MOVES for step in range(1, _MOVES + 1)]
    eased = [share * share * (3 - 2 * share) for share in shares]
    return [tuple(a + (b - a) * share for a, b in zip(start, end, strict=True)) for share in eased]


async def _dispatch(page: Page, kind: str, at: Place) -> None:
    event = {"type": kind, "x": at[0], "y": at[1], "data": page.dragged, "modifiers": 0}
    await page.deliver(page.send("Input.dispatchDragEvent", event))
