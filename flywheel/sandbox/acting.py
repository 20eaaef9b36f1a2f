"""One action on what is seen: on what the browser shows over the page, by the browser's own keys, or on the page."""

from __future__ import annotations

import json
from typing import Any, Protocol

from flywheel.agent.actions import Action, Hotkey, NavigateBack, Press
from flywheel.sandbox import browser_keys
from flywheel.sandbox.chooser import FileChooser
from flywheel.sandbox.drags import Rest
from flywheel.sandbox.find_bar import FindBar
from flywheel.sandbox.inputs import InputDriver
from flywheel.sandbox.page import Page, PageGone
from flywheel.sandbox.page_stack import PageStack
from flywheel.sandbox.pickers import Pickers


class Session(browser_keys.Session, Protocol):
    """What is acted on. home: the address that it began at. clipboard: what was copied last."""

    stack: PageStack
    chooser: FileChooser
    pickers: Pickers
    bar: FindBar
    hands: InputDriver
    clipboard: str
    home: str

    @property
    def size(self) -> tuple[int, int]: ...

    async def observe(self, ms: float) -> dict[str, Any]: ...


async def do(session: Session, action: Action, ms: float) -> str:
    """Carry it out where no dialog is open; "" or why nothing was done. ms: page time that a drag may take."""
    if session.chooser.open:
        return await session.chooser.do(action)
    page = session.page
    taken = await session.pickers.take(action, session.hands, page, session.size)
    if taken is not None:
        return taken
    if isinstance(action, NavigateBack):
        return await _back(session)
    try:
        if isinstance(action, Hotkey | Press) and session.clipboard:  # it may paste
            held = json.dumps(session.clipboard)
            await page.evaluate(f"window.__flywheel__&&(__flywheel__.core.clipboard={held})")
        key = browser_keys.find(action, session.hands.modifiers)
        if key is None and session.bar.open(page):
            taken = await session.bar.take(action, session)
            if taken is not None:
                return taken
        if key is not None and key.reserved:
            return await browser_keys.press(key, session)
        home, rest = page.url or session.home, _rest(session, page)
        note = await session.hands.do(action, page, session.stack.allowed, home, ms, rest)
        if key is not None and page is session.page and await page.leaves_key():
            note = await browser_keys.press(key, session)
        return note
    except PageGone:
        if page in session.stack.pages or not session.stack.pages:
            raise
        return ""  # it closed itself, before it was told of the action's end


def _rest(session: Session, page: Page) -> Rest:
    """Pass page time within an action on `page`; None where another page is seen from then on."""

    async def rest(ms: float) -> dict[str, Any] | None:
        seen = await session.observe(ms)
        return seen if session.stack.pages and page is session.stack.pages[-1] else None

    return rest


async def _back(session: Session) -> str:
    if await session.page.travel(-1):
        return ""
    return "there is no page to go back to" if len(session.stack.pages) == 1 else await session.close_page()
