"""Small pages of HTML and a tab to open them in: for tests of the browser itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from hostile import Page, Site, reply

from flywheel.agent.actions import Action, Click, Point
from flywheel.config import SandboxSettings
from flywheel.envs.browser.driver import chromium
from flywheel.envs.browser.driver.chromium import Chromium
from flywheel.envs.browser.driver.tab import BrowserTab

SIZE = 200  # pixels, both ways: a point of (0.1, 0.1) is at (20, 20)
SETTINGS = SandboxSettings(width=SIZE, height=SIZE, timeout_s=30)


def html(body: str, headers: Mapping[str, str] | None = None) -> Page:
    """A page that is just this. Time, chance and sizes are the browser's; the body has no margin."""
    text = f"<!doctype html><body style='margin:0;font:16px sans-serif;background:#eef'>{body}"
    return Page(send=lambda request: reply(request, 200, text, headers))


@asynccontextmanager
async def browser(settings: SandboxSettings = SETTINGS) -> AsyncIterator[Chromium]:
    started = await Chromium.start(chromium.find_chromium(settings), settings)
    try:
        yield started
    finally:
        await started.close()


class Stage:
    """A browser, and a site of pages by name."""

    def __init__(self, chromium: Chromium, site: Site) -> None:
        self.chromium, self.site = chromium, site
        self._tab: BrowserTab | None = None

    async def open(self, page: Page | str, **options: Any) -> BrowserTab:
        """A fresh session at a page; `page` is its HTML, or the name of one that is there."""
        name = page
        if not isinstance(page, str) or page.lstrip().startswith("<"):
            name = f"page{len(self.site.pages)}"
            self.site.pages[name] = html(page) if isinstance(page, str) else page
        if self._tab is None:
            self._tab = await self.chromium.open_tab(SIZE, SIZE)
        await self._tab.open(f"{self.site.url}/p/{name}", **{"seed": 7, "allowed": (f"{self.site.url}/p/",), **options})
        return self._tab


async def act(tab: BrowserTab, action: Action, ms: float = 0) -> str:
    """Carry out an action, pass `ms` of page time, and give all notes."""
    note = await tab.do(action)
    await tab.observe(ms)
    await tab.settle_downloads()
    return "; ".join(filter(None, [note, *tab.notes.take()]))


def at(x: float, y: float) -> Click:
    """A click at a place in pixels."""
    return Click(Point(x / SIZE, y / SIZE))
