"""Actions carried out on a page by mouse and keyboard: the one place that knows both sides."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable
from urllib.parse import urljoin

from playwright.async_api import Page

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point

_KEYS = {
    "left": "ArrowLeft", "right": "ArrowRight", "up": "ArrowUp", "down": "ArrowDown", "enter": "Enter",
    "return": "Enter", "esc": "Escape", "escape": "Escape", "tab": "Tab", "space": "Space", "backspace": "Backspace",
    "delete": "Delete", "del": "Delete", "home": "Home", "end": "End", "pageup": "PageUp", "pagedown": "PageDown",
    "ctrl": "Control", "control": "Control", "shift": "Shift", "alt": "Alt", "meta": "Meta", "cmd": "Meta",
    "win": "Meta", "insert": "Insert", "arrowleft": "ArrowLeft", "arrowright": "ArrowRight", "arrowup": "ArrowUp",
    "arrowdown": "ArrowDown",
    **{f"f{n}": f"F{n}" for n in range(1, 13)},
}  # fmt: skip
_SCROLL = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
_SCROLL_SHARE = 0.5  # of the viewport, a scroll
_MAX_TEXT = 2000


def key_name(key: str) -> str | None:
    """`left` -> `ArrowLeft`, `a` -> `a`; None for a key there is not."""
    key = key.lower()
    return _KEYS.get(key) or (key if len(key) == 1 and key.isprintable() and key.isascii() else None)


class Hands:
    """Mouse and keyboard of one page. width, height: the viewport in pixels. settle: waits for what was begun."""

    def __init__(self, page: Page, width: int, height: int, settle: Callable[[], Awaitable[object]]) -> None:
        self._page, self._width, self._height, self._settle = page, width, height, settle
        self._held: set[str] = set()

    async def release_all(self) -> None:
        for key in sorted(self._held):
            await self._page.keyboard.up(key)
        self._held.clear()

    async def do(self, action: Action, base: str) -> str:
        """Carry out one action; "" or why it did nothing. base: the address a navigation may not leave."""
        points = [value for value in vars(action).values() if isinstance(value, Point)]
        if not all(0 <= point.x < 1 and 0 <= point.y < 1 for point in points):
            return "the point is outside the viewport"
        match action:
            case act.Click(point):
                await self._page.mouse.click(*self._pixel(point))
            case act.LeftDouble(point):
                await self._double(self._pixel(point))
            case act.RightSingle(point):
                await self._page.mouse.click(*self._pixel(point), button="right")
            case act.Drag(start, end):
                await self._drag(self._pixel(start), self._pixel(end))
            case act.Scroll(point, direction):
                x, y = _SCROLL[direction]
                await self._page.mouse.move(*self._pixel(point))
                await self._page.mouse.wheel(x * self._width * _SCROLL_SHARE, y * self._height * _SCROLL_SHARE)
            case act.Hotkey(keys):
                return await self._hotkey(keys)
            case act.Type(content):
                return await self._type(content)
            case act.Press(key) | act.Release(key):
                return await self._hold(key, down=isinstance(action, act.Press))
            case act.Navigate(content):
                return await self._navigate(content, base)
            case act.NavigateBack():
                if await self._page.go_back(wait_until="commit") is None:
                    return "there is no page to go back to"
            case act.Wait() | act.Finished() | act.CallUser():
                pass
            case _:
                return f"a browser page has no {act.NAMES[type(action)]}"
        return ""

    async def _navigate(self, content: str, base: str) -> str:
        try:
            target = urljoin(base, content.strip())
        except ValueError:
            return "that is not an address"
        if not target.startswith(base):
            return "the address is outside this world"
        await self._page.goto(target, wait_until="commit")
        return ""

    def _pixel(self, point: Point) -> tuple[float, float]:
        return point.x * self._width, point.y * self._height

    async def _double(self, at: tuple[float, float]) -> None:
        """Two clicks. What the first one began finishes before the second, which would else be a matter of luck."""
        mouse = self._page.mouse
        await mouse.click(*at)
        await self._settle()
        await mouse.down(click_count=2)
        await mouse.up(click_count=2)

    async def _drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        mouse = self._page.mouse
        await mouse.move(*start)
        await mouse.down()
        await mouse.move((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        await mouse.move(*end)
        await mouse.up()

    async def _hotkey(self, keys: tuple[str, ...]) -> str:
        names = [key_name(key) for key in keys]
        if not names or None in names:
            return f"no such key: {' '.join(keys)}"
        for name in names:
            await self._page.keyboard.down(name)
        for name in reversed(names):
            await self._page.keyboard.up(name)
        return ""

    async def _type(self, content: str) -> str:
        if len(content) > _MAX_TEXT:
            return f"the text is longer than {_MAX_TEXT} characters"
        # A model's text may hold lone surrogates, which no message can carry.
        text = content.rstrip("\n").encode("utf-8", "replace").decode()
        if text:
            await self._page.keyboard.insert_text(text)
        if content.endswith("\n"):
            await self._page.keyboard.press("Enter")
        return ""

    async def _hold(self, key: str, *, down: bool) -> str:
        name = key_name(key)
        if name is None:
            return f"no such key: {key}"
        if down:
            self._held.add(name)
            await self._page.keyboard.down(name)
        else:
            self._held.discard(name)
            await self._page.keyboard.up(name)
        return ""


def pack(actions: list[Action]) -> str:
    """Actions as JSON, for a checkpoint that replays them."""
    return json.dumps([[type(action).__name__, dataclasses.asdict(action)] for action in actions])


def unpack(text: str) -> list[Action]:
    result = []
    for name, fields in json.loads(text):
        values = {key: Point(**value) if isinstance(value, dict) else value for key, value in fields.items()}
        if "keys" in values:
            values["keys"] = tuple(values["keys"])
        result.append(getattr(act, name)(**values))
    return result
