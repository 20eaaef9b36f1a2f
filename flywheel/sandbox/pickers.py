"""The pickers of native form controls: selects, colours, dates and times, and what a field's data list suggests.

The browser would draw each in a window of its own, which no screenshot on command shows and no mouse here reaches. It
is closed as soon as it opens, and one of the sandbox's own stands over the page (`overlay.py`, `scripts/pickers`): the
screen shows it, mouse and keys go to it, and the page hears of the choice alone, as with the browser's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point
from flywheel.sandbox import scripts
from flywheel.sandbox.cdp import CommandError, Connection
from flywheel.sandbox.controls import COMPLAINT, PICKER, SUGGESTIONS, Control
from flywheel.sandbox.frames import Frames
from flywheel.sandbox.inputs import InputDriver
from flywheel.sandbox.overlay import Overlay
from flywheel.sandbox.page import Page, PageGone
from flywheel.settings import Sandbox

_KEYS = act.Hotkey | act.Press | act.Release | act.Type
_SUGGESTIONS, _COMPLAINT, _PICKER = 1, 2, 3  # what the page tells of its controls (`picking` in native_controls.js)
_WHAT = {_SUGGESTIONS: SUGGESTIONS, _COMPLAINT: COMPLAINT}
_PATIENT = act.Wait | act.Finished | act.CallUser  # nobody touches anything
_STEERS = ("up", "down", "enter", "return", "esc", "escape")  # keys that a field leaves to its suggestions
_ASKS = ("up", "down", "backspace")  # keys that ask for them


class Pickers:
    """Of one session: at most one picker is open, over the page that is seen."""

    def __init__(self, connection: Connection, frames: Frames, settings: Sandbox) -> None:
        self.overlay = Overlay(connection, frames, settings, scripts.PICKERS)
        self._page: Page | None = None  # whose control it is
        self._control: Control | None = None
        self._model: dict[str, Any] = {}
        self._left = 0  # the control whose picker the last action closed: pressed again, it stays closed
        self._changed = False  # a colour: its change is told when the picker closes
        self._asks = False  # the last action is one after which a field suggests

    @property
    def open(self) -> bool:
        return self._control is not None

    # -- actions ------------------------------------------------------------------------------------------------------
    async def take(self, action: Action, hands: InputDriver, page: Page, size: tuple[int, int]) -> str | None:
        """Carry out an action that is meant for the open picker; None: it is the page's."""
        self._left, self._asks = 0, False
        if self._control is None or page is not self._page or not await self._meant(action, size):
            self._asks = _asks(action)
            stays = _PATIENT if self._model.get("kind") == "bubble" else _PATIENT | _KEYS
            if self._control is not None and not isinstance(action, stays):
                self._left = self._control.node
                await self._close()
            return None
        if isinstance(action, act.Scroll):
            way = {"up": -1, "down": 1}.get(action.direction, 0)
            await self.overlay.call("pickers.scroll", action.point.x * size[0], action.point.y * size[1], way)
            return ""
        note = await hands.do(action, self.overlay.page, (), "")
        await self._obey(action, hands)
        return note

    async def _meant(self, action: Action, size: tuple[int, int]) -> bool:
        """Whether an action is for the picker: by mouse upon it, or by keys, of which a field keeps what it types."""
        if self._model["kind"] == "bubble":
            return False
        points = [value for value in vars(action).values() if isinstance(value, Point)]
        if points:
            box = await self.overlay.call("pickers.box")
            x, y = points[0].x * size[0], points[0].y * size[1]
            return box["x"] <= x < box["x"] + box["w"] and box["y"] <= y < box["y"] + box["h"]
        if self._model["kind"] != "suggestions":
            return isinstance(action, _KEYS)
        return _key(action) in _STEERS

    async def _obey(self, action: Action, hands: InputDriver) -> None:
        """What was chosen is told to the page."""
        told, control, page = await self.overlay.call("pickers.take"), self._control, self._page
        kind = self._model["kind"]
        try:
            if told["value"] is not None and kind == "list":
                await self._close()
                await control.pick(told["value"])
            elif told["value"] is not None and await control.ask("choose", told["value"]):
                await control.ask("tell", "input")
                self._changed = True
                if kind != "color":
                    await self._settle()
        except CommandError:
            await self._close()  # the page took the control away
        if told["over"]:
            await self._close()
        if told["on"]:
            await hands.do(action, page, (), "")  # Tab goes on from the control

    async def _settle(self) -> None:
        if self._changed:
            self._changed = False
            await self._control.ask("tell", "change")

    async def _close(self) -> None:
        if self._control is not None:
            with contextlib.suppress(CommandError, PageGone):
                await self._settle()
            self._control = self._page = None
            if self.overlay.page is not None:
                await self.overlay.call("pickers.hide")

    # -- looking ------------------------------------------------------------------------------------------------------
    async def look(self, page: Page, seen: Mapping[str, Any], context: str, size: tuple[int, int]) -> None:
        """The page has moved on: a picker that it opened is taken over, one that is open follows its control."""
        picking = seen.get("picking", 0)
        found = await Control.find(page, PICKER) if picking == _PICKER else None
        if self._control is not None and (page is not self._page or found is not None):
            await self._close()
        if self._control is not None:
            await self._follow(seen, picking)
        if self._control is None and (picking == _COMPLAINT or (picking == _SUGGESTIONS and self._asks)):
            found = await Control.find(page, _WHAT[picking])
        if found is not None:
            with contextlib.suppress(CommandError):  # its document was left meanwhile, and the picker with it
                if picking == _PICKER:
                    await found.shut()
                if found.node != self._left or picking == _COMPLAINT:
                    await self._show(page, found, seen, context, size)
        self._asks = False

    async def _show(
        self, page: Page, control: Control, seen: Mapping[str, Any], context: str, size: tuple[int, int]
    ) -> None:
        model, anchor = await control.describe(), await control.place()
        if model is None or anchor is None or (model["kind"] == "suggestions" and not model["rows"]):
            return
        await self.overlay.open(context, *size)
        self._page, self._control, self._changed = page, control, False
        await self._draw(model, anchor, seen)
        await self.overlay.page.draw()  # a document that is not drawn yet takes no input

    async def _follow(self, seen: Mapping[str, Any], picking: int) -> None:
        try:
            model, anchor = await self._control.describe(), await self._control.place()
        except CommandError:
            model = anchor = None
        kind = model["kind"] if model is not None else ""
        over = (kind == "bubble" and picking != _COMPLAINT) or (
            kind == "suggestions" and (picking != _SUGGESTIONS or not model["rows"])
        )
        if model is None or anchor is None or over:
            await self._close()
        else:
            await self._draw(model, anchor, seen)

    async def _draw(self, model: dict[str, Any], anchor: dict[str, float], seen: Mapping[str, Any]) -> None:
        now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=seen.get("date", 0))
        self._model = model | {"today": f"{now:%Y-%m-%d}", "now": f"{now:%H:%M}"}
        await self.overlay.call("pickers.show", self._model, anchor)

    async def onto(self, shot: bytes) -> bytes:
        """A page's picture with the open picker."""
        if self._control is None:
            return shot
        return await self.overlay.laid_over(shot, await self.overlay.call("pickers.box"))

    def forget(self) -> None:
        """The session is over."""
        self.overlay.forget()
        self._page = self._control = None
        self._left, self._changed, self._asks = 0, False, False


def _key(action: Action) -> str:
    """The one key that an action presses; "" for others."""
    keys = action.keys if isinstance(action, act.Hotkey) else (getattr(action, "key", ""),)
    return keys[0].lower() if len(keys) == 1 else ""


def _asks(action: Action) -> bool:
    """Whether a field that has suggestions shows them after an action."""
    return isinstance(action, act.Click | act.LeftDouble | act.Type) or _key(action) in _ASKS
