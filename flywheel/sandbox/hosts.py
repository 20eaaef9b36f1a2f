"""A browser of the pool and its pages: which page is whose, and in what state (the session-page map).

A page is reserved before anything is awaited for it, so two sessions never meet on one page and a browser's load is
always exact.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from flywheel.sandbox.lease import Lease

State = Literal["opening", "ready", "tidying", "closing"]


@dataclass(eq=False)
class PageSlot:
    """One tab. opened, used: seconds of the pool's clock. reserved: it is a lease's, or of one that waits for it.

    env, tab: None until `opening` is done, which raises EnvError where it fails.
    """

    number: int
    host: BrowserSlot
    opened: float
    used: float
    state: State = "opening"
    reserved: bool = False
    lease: Lease | None = None
    tab: Any = None
    env: Any = None
    opening: asyncio.Task[None] | None = field(default=None, repr=False)
    mourning: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def free(self) -> bool:
        return not self.reserved and (self.state == "opening" or (self.state == "ready" and self.sound))

    @property
    def sound(self) -> bool:
        """Nothing is known to be wrong with it."""
        return self.host.alive and not self.env.broken and not self.tab.died.is_set()


@dataclass(eq=False)
class BrowserSlot:
    """One browser. opened, used: seconds of the pool's clock. closed: its end has begun.

    retiring: why it takes no more sessions; empty while it does. episodes: resets so far. memory_mb: when it was last
    measured. chromium: None until `starting` is done.
    """

    number: int
    opened: float
    used: float
    starting: asyncio.Task[None] | None = field(default=None, repr=False)
    chromium: Any = None
    pages: list[PageSlot] = field(default_factory=list)
    episodes: int = 0
    retiring: str = ""
    closed: bool = False
    memory_mb: float = 0.0

    @property
    def alive(self) -> bool:
        return self.chromium is not None and self.chromium.alive

    @property
    def pid(self) -> int:
        return self.chromium.pid if self.chromium is not None else 0

    @property
    def load(self) -> int:
        return sum(page.reserved for page in self.pages)

    def free_page(self) -> PageSlot | None:
        """A page that is there or on its way for nobody; the one used last, so that the others can grow idle."""
        free = [page for page in self.pages if page.free]
        return max(free, key=lambda page: (page.state == "ready", page.used), default=None)
