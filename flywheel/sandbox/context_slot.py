"""The browser context of a tab's session: made ready before the session begins, disposed of when it is over.

Each session has a context that nothing was in before, with its first page, empty, in a process of its own. To start
one takes time, so it is done between two sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from flywheel.sandbox.cdp import CommandError, Connection
from flywheel.sandbox.context import BrowserContext
from flywheel.sandbox.cover import Contexts, Targets
from flywheel.sandbox.notes import Notes
from flywheel.sandbox.page import unheard
from flywheel.sandbox.page_stack import PageStack
from flywheel.sandbox.profiles import Profile

_CLOSE_S = 5.0


class Host(Contexts, Protocol):
    """The browser."""

    alive: bool
    profile: Profile


class Owner(Targets, Protocol):
    """The tab: whose pages they are, and what is told of them."""

    stack: PageStack
    notes: Notes

    def renew(self) -> None:
        """A context is about to be made: its session has nothing of the last one."""

    def forget(self) -> None:
        """The context is about to go, and all pages with it."""


class ContextSlot:
    """context: None between two sessions. size: of its pages, in pixels. download_mb: limit of one file."""

    def __init__(
        self, host: Host, connection: Connection, owner: Owner, size: tuple[int, int], download_mb: float
    ) -> None:
        self._host, self._connection, self._owner = host, connection, owner
        self._limit = download_mb * 2**20
        self.size = size
        self.context: BrowserContext | None = None
        self._blank = False  # the page is there and no session has begun in it
        self._preparing: asyncio.Task[None] | None = None

    async def prepare(self, size: tuple[int, int]) -> None:
        """Have an empty page of this size, which the next session begins in."""
        if self._preparing is not None:
            await asyncio.gather(self._preparing, return_exceptions=True)
        pages = self._owner.stack.pages
        if not (self._blank and pages and not pages[-1].gone and size == self.size):
            self.size = size
            await self._renew()

    def begin(self) -> None:
        """A session begins in it."""
        self._blank = False

    def rest(self) -> None:
        """The session is over: nothing of it is kept, and the next one's page is made ready. Where that page is still
        being made, none has begun since."""
        if self._preparing is not None and not self._preparing.done():
            return
        self._dispose()
        self._preparing = asyncio.ensure_future(self._renew())
        self._preparing.add_done_callback(unheard)

    async def close(self) -> None:
        """Give everything back, by force where a page hangs; may be called twice.

        Raises EnvTimeout where the browser does not let go of a page: it is then as good as dead itself.
        """
        if self._preparing is not None:
            self._preparing.cancel()
        for page in self._owner.stack.pages:  # its script may hang, and the thread that speaks to the browser does not
            page.post("Page.crash")
        context = self._forget()
        if context and self._host.alive:
            with contextlib.suppress(CommandError):
                await self._connection.call(
                    "Target.disposeBrowserContext", {"browserContextId": context}, timeout_s=_CLOSE_S
                )

    def disconnect(self) -> None:
        """What its pages reached, they reach no more; may be called twice."""
        if self.context is not None:
            self.context.proxy.close()

    async def _renew(self) -> None:
        self._dispose()
        self._owner.renew()
        notes = self._owner.notes
        self.context = await BrowserContext.open(
            self._connection, self._host.profile.path, self._limit, notes.add, notes.fault
        )
        self._host.adopt(self.context.id, self._owner)
        await self._owner.stack.begin(self.context.id, self.size)
        self._blank = True

    def _dispose(self) -> None:
        context = self._forget()
        if context:
            self._connection.post("Target.disposeBrowserContext", {"browserContextId": context})

    def _forget(self) -> str:
        """The id of the context that is to be disposed of; "" for none."""
        self._blank = False
        self._owner.forget()
        context, self.context = self.context, None
        if context is None:
            return ""
        context.forget()
        self._host.adopt(context.id, None)
        return context.id
