"""A person's mouse, fingers and keys on a tab (`environments/gestures.py`).

What the browser or the sandbox shows over a page takes the agent's actions alone, so there a gesture becomes the
nearest of them.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from flywheel.agent import actions as act
from flywheel.agent.actions import Action
from flywheel.environments.gestures import Gesture
from flywheel.sandbox.drags import Grip, Place
from flywheel.sandbox.tab import Tab
from flywheel.sandbox.touch import Finger


class Visitor:
    """At one tab. touch: it is a phone's."""

    def __init__(self, tab: Tab, touch: bool) -> None:
        self._tab, self._touch = tab, touch
        self._grip: Grip | Finger | None = None
        self._at: Place = (0.0, 0.0)
        self._keys: dict[str, None] = {}  # names of those that are held down, in their order

    async def do(self, gestures: Sequence[Gesture], ms: float) -> list[str]:
        """Carry them out, let `ms` of page time pass, and show what is seen then; the notes for the person.

        Raises EnvError where the page is gone.
        """
        tab, notes = self._tab, []
        for gesture in gestures:
            note = await self._one(gesture)
            notes += [note] if note else []
        seen = await tab.observe(ms)
        if self._holds():
            await self._grip.heed(seen)
        tab.cast.shown(await tab.screenshot(), moving=True)
        return notes + tab.notes.take()

    async def leave(self) -> None:
        """Let go of what is held."""
        self._let_go()
        for name in list(self._keys):
            await self._release(name)

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _one(self, one: Gesture) -> str:
        tab = self._tab
        mouse = not self._touch and not tab.cast.covered
        match one.does:
            case "click" if mouse:
                return await self._raw(tab.hands.click(tab.page, self._pixel(one), one.button, one.count))
            case "click":
                right = one.button == "right" and not self._touch
                return await tab.do((act.RightSingle if right else act.Click)(one.at))
            case "long":
                return await tab.do((act.LongPress if self._touch else act.RightSingle)(one.at))
            case "grab":
                return await self._take(one)
            case "move" if self._grip is not None:
                return await self._pull(one)
            case "move":
                return "" if self._touch else await tab.do(act.Hover(one.at))
            case "drop":
                return await self._drop(one)
            case "wheel" if mouse:
                return await self._raw(tab.hands.wheel(tab.page, self._pixel(one), one.right, one.down))
            case "wheel":
                return await tab.do(act.Scroll(one.at, _way(one)))
            case "press":
                return await self._press(one.key)
            case "release":
                return await self._release(one.key)
            case "text":
                return await tab.do(act.Type(one.text))
            case "back":
                return await tab.do(act.PressBack() if self._touch else act.NavigateBack())
            case "home" if self._touch:
                return await tab.do(act.PressHome())
        return "there is no such thing here"

    async def _raw(self, work: Coroutine[Any, Any, Any]) -> str:
        """Straight to the page; a dialog that it opens holds it up."""
        return await self._tab.dialogs.through(work) or ""

    # -- a button or a finger that is held down ----------------------------------------------------------------------
    async def _take(self, one: Gesture) -> str:
        self._let_go()
        if self._tab.cast.covered:
            return ""
        self._at, self._grip = self._pixel(one), self._tab.hands.grip(self._tab.page)
        return await self._raw(self._grip.press(self._at))

    async def _pull(self, one: Gesture) -> str:
        if not self._holds():
            return ""
        self._at = self._pixel(one)
        return await self._raw(self._grip.move(self._at))

    async def _drop(self, one: Gesture) -> str:
        if not self._holds():
            return ""
        grip, self._grip = self._grip, None
        return await self._raw(grip.release(self._pixel(one)))

    def _holds(self) -> bool:
        """The page that was grabbed is the one that is seen; else it is let go."""
        pages = self._tab.stack.pages
        if self._grip is not None and (self._tab.cast.covered or self._grip.page not in pages[-1:]):
            self._let_go()
        return self._grip is not None

    def _let_go(self) -> None:
        grip, self._grip = self._grip, None
        if grip is not None:
            grip.let_go(self._at)

    # -- keys ---------------------------------------------------------------------------------------------------------
    async def _press(self, name: str) -> str:
        note = await self._key("press", name)
        if not note:
            self._keys[name] = None
        return note

    async def _release(self, name: str) -> str:
        """One that was pressed here: the agent may hold others."""
        if name not in self._keys:
            return ""
        del self._keys[name]
        return await self._key("release", name)

    async def _key(self, what: str, name: str) -> str:
        tab = self._tab
        if self._touch and not tab.cast.covered:  # a keyboard that is joined to the phone: the agent has none
            return await self._raw(getattr(tab.hands, what)(tab.page, name))
        return await tab.do(_KEYS[what](name))

    def _pixel(self, one: Gesture) -> Place:
        return self._tab.hands.pixel(one.at)


_KEYS: Mapping[str, type[Action]] = {"press": act.Press, "release": act.Release}


def _way(one: Gesture) -> str:
    if abs(one.right) > abs(one.down):
        return "right" if one.right > 0 else "left"
    return "down" if one.down > 0 else "up"
