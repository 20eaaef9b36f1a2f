"""What a checkpoint keeps of a session: the state of its page, clock, chance and storage, as JSON values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from flywheel.sandbox.chooser import FileChooser
from flywheel.sandbox.context import BrowserContext
from flywheel.sandbox.dialogs import Dialogs
from flywheel.sandbox.find_bar import FindBar
from flywheel.sandbox.inputs import InputDriver
from flywheel.sandbox.page import Page
from flywheel.sandbox.page_stack import PageStack
from flywheel.sandbox.pickers import Pickers


class Session(Protocol):
    """Whose state it is. clipboard: what was copied last."""

    stack: PageStack
    dialogs: Dialogs
    chooser: FileChooser
    pickers: Pickers
    bar: FindBar
    hands: InputDriver
    clipboard: str
    zoom: float

    @property
    def page(self) -> Page: ...

    @property
    def context(self) -> BrowserContext: ...

    async def set_zoom(self, zoom: float) -> None: ...


async def save(session: Session) -> dict[str, Any]:
    """`restorable` says whether `load` can use it."""
    if session.dialogs.open or session.bar.open(session.page):
        return {"restorable": False}
    kept = await session.page.evaluate("__flywheel__.save()")
    cookies = await session.context.cookies()
    kept["restorable"] &= len(session.stack.pages) == 1 and not (kept["databases"] or session.hands.held)
    kept["restorable"] &= not (session.chooser.open or session.pickers.open)
    own = {"mouse": session.hands.at, "clipboard": session.clipboard, "zoom": session.zoom}
    return kept | {"cookies": cookies} | own


async def load(session: Session, kept: Mapping[str, Any]) -> bool:
    """Bring back what `save` gave, in a session just opened at the same address; False where that cannot be."""
    session.clipboard = kept["clipboard"]
    await session.set_zoom(kept["zoom"])
    await session.context.set_cookies(kept["cookies"])
    if kept["mouse"] != [0, 0]:
        session.hands.move(session.page, tuple(kept["mouse"]))
        await session.page.draw()
    return await session.page.evaluate(f"__flywheel__.load({json.dumps(kept)})")
