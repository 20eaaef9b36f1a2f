"""A tab as watchers see it while it is played: the browser's own screencast, and what the sandbox draws over a page.

The screencast sends what is drawn for others, and has nothing drawn for it; so it changes no picture of the agent's.
Dialogs, pickers and the file chooser are drawn by the sandbox: with one of them open, its picture goes before the
browser's.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from flywheel.environments.watchable import Pictures
from flywheel.sandbox.chooser import FileChooser
from flywheel.sandbox.dialogs import Dialogs
from flywheel.sandbox.find_bar import FindBar
from flywheel.sandbox.page import Page
from flywheel.sandbox.page_stack import PageStack
from flywheel.sandbox.pickers import Pickers

_FORMAT = {"format": "jpeg", "quality": 80}
_CORNER = 8  # pixels: what is no wider is a picture that was asked for to have the page drawn (`frames.py`)


class Tab(Protocol):
    """What is watched."""

    stack: PageStack
    dialogs: Dialogs
    chooser: FileChooser
    pickers: Pickers
    bar: FindBar
    screen: bytes


class Cast:
    """Of one tab. Nothing is asked of the browser while nobody watches."""

    def __init__(self, tab: Tab) -> None:
        self._tab = tab
        self._watchers: set[Pictures] = set()
        self._page: Page | None = None  # which sends its screencast
        self._last, self._sent = b"", False  # the picture of all, and whether it was sent

    @property
    def covered(self) -> bool:
        """The sandbox shows something over the page."""
        tab, page = self._tab, self._seen
        return bool(tab.dialogs.open or tab.chooser.open or tab.pickers.open or (page and tab.bar.open(page)))

    @contextmanager
    def watch(self) -> Iterator[Pictures]:
        watcher = Pictures()
        self._watchers.add(watcher)
        if self._tab.screen:
            watcher.put(self._tab.screen)
        self._follow()
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
            self._follow()

    def shown(self, picture: bytes, moving: bool = False) -> None:
        """A picture (PNG) of all that is seen. moving: more will come at once; until it rests the browser's own, which
        are smaller, will do."""
        if not self._watchers:
            return
        self._follow()
        rests = picture == self._last
        if rests and self._sent:
            return
        self._last, self._sent = picture, rests or not moving or self.covered
        if self._sent:
            self._put(picture)

    def heard(self, page: Page, params: Mapping[str, Any]) -> None:
        """A frame of the screencast."""
        page.post("Page.screencastFrameAck", {"sessionId": params["sessionId"]})
        whole = params["metadata"]["deviceWidth"] > _CORNER
        if whole and page is self._page and page is self._seen and not self.covered:
            self._put(base64.b64decode(params["data"]))

    # -- inside -------------------------------------------------------------------------------------------------------
    @property
    def _seen(self) -> Page | None:
        pages = self._tab.stack.pages
        return pages[-1] if pages else None

    def _put(self, picture: bytes) -> None:
        for watcher in self._watchers:
            watcher.put(picture)

    def _follow(self) -> None:
        """The page that is seen sends its screencast, and no other."""
        page = self._seen if self._watchers else None
        if page is self._page:
            return
        if self._page is not None and not self._page.gone:
            self._page.post("Page.stopScreencast")
        self._page = page
        if page is not None:
            page.post("Page.startScreencast", _FORMAT)
