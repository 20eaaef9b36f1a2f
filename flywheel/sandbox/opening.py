"""How a session begins: one logs in, the first page loads, and what prepares it runs."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol

from flywheel.errors import EnvError
from flywheel.sandbox.cdp import CommandError
from flywheel.sandbox.context import BrowserContext
from flywheel.sandbox.entry import Entry
from flywheel.sandbox.notes import Notes
from flywheel.sandbox.page import Page
from flywheel.sandbox.page_stack import PageStack


class Session(Protocol):
    """What is opened."""

    stack: PageStack
    notes: Notes

    @property
    def page(self) -> Page: ...

    @property
    def context(self) -> BrowserContext: ...

    async def look(self, ms: float) -> dict[str, Any]: ...


async def begin(session: Session, url: str, seed: int, prepare: str, entry: Entry | None) -> dict[str, Any]:
    """What is seen at `url`. prepare: JavaScript run after the load. entry: how one logs in before.

    Raises EnvError where a page does not load or a script fails.
    """
    await session.page.begin(seed, 0.0)
    if entry:
        await _enter(session, entry, url)
    seen = await _load(session, url)
    for script in (entry.done if entry else "", prepare):
        if script:
            seen = await _prepared(session, script)
    await session.page.send("Page.resetNavigationHistory")
    return seen


async def _enter(session: Session, entry: Entry, home: str) -> None:
    """Log in, before the first page."""
    session.stack.headers = entry.headers
    if entry.cookies:
        await session.context.set_cookies(entry.cookies)
    await asyncio.gather(*session.page.send_headers(entry.headers))
    if entry.script:
        await _load(session, entry.address or home)
        await _prepared(session, entry.script)


async def _load(session: Session, url: str) -> dict[str, Any]:
    failed = await session.page.navigate(url)
    if failed:
        why = f" ({session.notes.faults[-1]})" if session.notes.faults else ""
        raise EnvError(f"the page does not load: {failed}{why}", where=url)
    seen = await session.look(0)
    status = await session.page.evaluate("performance.getEntriesByType('navigation')[0]?.responseStatus ?? 0")
    if status >= 400:
        raise EnvError(f"the page does not load: it answered status {status}", where=url)
    return seen


async def _prepared(session: Session, script: str) -> dict[str, Any]:
    """Run what prepares a page, and follow where it leads."""
    with contextlib.suppress(CommandError):  # it led to another page
        await session.page.evaluate(f"__flywheel__.prepare(async () => {{ {script} }})")
    return await session.look(0)
