"""The bar that finds text in the page that is seen (ctrl-f), drawn by a page of its own over the page's screen.

It takes the keys while it has the focus, and the mouse where it is; all else goes to the page, which lives on below it.
What is found is selected in the page and scrolled to, by the engine's own `window.find`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flywheel.agent.actions import Action, Hotkey, Point, Press, Release, Type
from flywheel.sandbox.cover import Cover, Session
from flywheel.sandbox.page import Page

_HTML = (Path(__file__).parent / "find_bar.html").read_text(encoding="utf-8")


class FindBar:
    """One for a tab. `open`: it is seen. elements: the places of its parts."""

    def __init__(self, cover: Cover) -> None:
        self._cover = cover
        self._page: Page | None = None  # that is searched
        self._arrivals = 0  # of its documents, when the bar opened
        self._focused = False
        self._text = ""
        self.elements: list[dict[str, Any]] = []

    def open(self, page: Page) -> bool:
        """Whether it is over this page. It goes with the document that it was opened for."""
        if self._page is not None and (self._page is not page or page.arrivals != self._arrivals):
            self._page = None
        return self._page is not None

    async def press(self, page: Page, go: int, size: tuple[int, int]) -> None:
        """ctrl-f (0), or the keys that go forward (1) and backward (-1)."""
        if not self.open(page):
            await self._cover.show(_HTML, b"", size, f"begin({json.dumps(self._text)})")
            self._page, self._arrivals = page, page.arrivals
        elif not go:
            await self._cover.page.evaluate("select()")
        self._focused = self._focused or not go or not self._text
        if go and self._text:
            await self._find(go)
        await self._look()

    async def take(self, action: Action, session: Session) -> str | None:
        """Carry out an action on the bar; None where it is meant for the page."""
        points = [value for value in vars(action).values() if isinstance(value, Point)]
        if points:
            bar = next(one for one in self.elements if one["name"] == "find bar")
            if not (bar["x"] <= points[0].x < bar["x"] + bar["w"] and 0 <= points[0].y < bar["y"] + bar["h"]):
                self._focused = False
                await self._cover.page.evaluate("leave()")
                return None
            self._focused = True
        elif not (self._focused and isinstance(action, Hotkey | Press | Release | Type)):
            return None
        note = await self._cover.do(action, session)
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

    async def onto(self, screen: bytes) -> bytes:
        """A screen of the page, with the bar over it."""
        await self._cover.put_under(screen)
        return await self._cover.shot()

    def forget(self) -> None:
        self._page, self._text, self.elements = None, "", []
        self._cover.close()

    async def _find(self, go: int) -> None:
        found = await self._page.evaluate(f"__flywheel__.find({json.dumps(self._text)}, {go})")
        await self._cover.page.evaluate(f"tell({found})")

    async def _look(self) -> None:
        self.elements = (await self._cover.page.observe(0))["elements"]
