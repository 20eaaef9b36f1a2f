"""Actions carried out on a page by mouse and keyboard: the one place that knows both sides."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urljoin

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point
from flywheel.sandbox import drags, keyboard
from flywheel.sandbox.keyboard import SHIFT, Key
from flywheel.sandbox.page import Page, unheard
from flywheel.sandbox.sessions import within

OUTSIDE = "the point is outside the viewport"
_SCROLL = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
_SCROLL_SHARE = 0.5  # of the viewport, a scroll
_MAX_TEXT = 2000
_BUTTONS = {"none": 0, "left": 1, "right": 2}
_SCROLL_FRAMES = 2  # in which a page has taken a turn of the wheel and moved


class InputDriver:
    """Mouse and keyboard of a session. width, height: the viewport in pixels.

    Commands are written one after the other and only the last answer is waited for: the browser delivers them in order.
    """

    def __init__(self, width: int, height: int) -> None:
        self._width, self._height = width, height
        self._held: dict[str, Key] = {}  # by code
        self.at = (0.0, 0.0)  # where the mouse is

    @property
    def held(self) -> list[str]:
        """Names of the keys that are held down, in the order in which they were pressed."""
        return [key.key if key.key != " " else "Space" for key in self._held.values()]

    @property
    def modifiers(self) -> int:
        """Bits of the modifiers that are held down."""
        return self._modifiers()

    async def do(
        self,
        action: Action,
        page: Page,
        allowed: tuple[str, ...],
        base: str,
        ms: float = 0,
        rest: drags.Rest | None = None,
    ) -> str:
        """Carry out one action; "" or why it did nothing. base: what a relative address is relative to.

        ms: page time that it may take, which `rest` passes (or else the page alone).
        """
        if outside(action):
            return OUTSIDE
        match action:
            case act.Click(point):
                await self.click(page, self.pixel(point))
            case act.LeftDouble(point):
                await self._double(page, self.pixel(point))
            case act.RightSingle(point):
                await self.click(page, self.pixel(point), "right")
            case act.Hover(point):
                await self._hover(page, self.pixel(point))
            case act.Drag(start, end):
                await self._drag(page, self.pixel(start), self.pixel(end), ms, rest or page.observe)
            case act.Scroll(point, direction):
                await self._scroll(page, self.pixel(point), _SCROLL[direction])
            case act.Hotkey(keys):
                return await self._hotkey(page, keys)
            case act.Type(content):
                return await self._type(page, content)
            case act.Press(key):
                return await self.press(page, key)
            case act.Release(key):
                return await self.release(page, key)
            case act.Navigate(content):
                return await self._navigate(page, content, allowed, base)
            case act.Wait() | act.Finished() | act.CallUser():
                pass
            case _:
                return f"a browser page has no {act.NAMES[type(action)]}"
        return ""

    # -- mouse ----------------------------------------------------------------------------------------------------
    def move(self, page: Page, at: tuple[float, float], button: str = "none") -> None:
        """Not waited for: a page hears of it with what comes next, or in its next frame."""
        self.at = at
        self._mouse(page, "mouseMoved", at, button, 0).add_done_callback(unheard)

    def _mouse(self, page: Page, kind: str, at: tuple[float, float], button: str, clicks: int) -> asyncio.Future:
        held = _BUTTONS[button] if kind != "mouseReleased" else 0
        return page.send(
            "Input.dispatchMouseEvent",
            {
                "type": kind,
                "x": at[0],
                "y": at[1],
                "button": button,
                "buttons": held,
                "clickCount": clicks,
                "modifiers": self._modifiers(),
            },
        )

    async def click(self, page: Page, at: tuple[float, float], button: str = "left", clicks: int = 1) -> None:
        if clicks == 1:
            self.move(page, at)
        pressed = self._mouse(page, "mousePressed", at, button, clicks)
        released = self._mouse(page, "mouseReleased", at, button, clicks)
        await asyncio.gather(pressed, released)

    async def _double(self, page: Page, at: tuple[float, float]) -> None:
        """Two clicks. What the first one began finishes before the second, which would else be a matter of luck."""
        await self.click(page, at)
        await page.observe(0)
        await page.shot()  # a document that shows nothing yet loses clicks, and a frame alone may still be empty
        await self.click(page, at, clicks=2)

    async def _hover(self, page: Page, at: tuple[float, float]) -> None:
        self.at = at
        await page.deliver(self._mouse(page, "mouseMoved", at, "none", 0))

    async def _drag(
        self, page: Page, start: tuple[float, float], end: tuple[float, float], ms: float, rest: drags.Rest
    ) -> None:
        await drags.drag(self.grip(page), start, end, ms, rest)
        self.at = end

    def grip(self, page: Page) -> drags.Grip:
        """The left button, to be held down."""
        pressed = False

        def mouse(kind: str, at: tuple[float, float]) -> asyncio.Future:
            nonlocal pressed
            self.at, moves = at, kind == "mouseMoved"
            pressed |= kind == "mousePressed"
            return self._mouse(page, kind, at, "left" if pressed else "none", 0 if moves else 1)

        return drags.Grip(page, mouse)

    async def _scroll(self, page: Page, at: tuple[float, float], way: tuple[int, int]) -> None:
        await self.wheel(page, at, way[0] * self._width * _SCROLL_SHARE, way[1] * self._height * _SCROLL_SHARE)

    async def wheel(self, page: Page, at: tuple[float, float], right: float, down: float) -> None:
        """Turn the wheel by so many pixels."""
        self.move(page, at)
        turned = page.send(
            "Input.dispatchMouseEvent",
            {
                "type": "mouseWheel",
                "x": at[0],
                "y": at[1],
                "modifiers": self._modifiers(),
                "deltaX": right,
                "deltaY": down,
            },
        )
        await page.deliver(turned)
        # The browser scrolls by events of its own, which it sends after the answer. A move goes the same way behind
        # them: once the page has it, it has those too.
        await page.deliver(self._mouse(page, "mouseMoved", at, "none", 0))
        for _ in range(_SCROLL_FRAMES):
            await page.draw()

    # -- keyboard -------------------------------------------------------------------------------------------------
    def _modifiers(self) -> int:
        bits = 0
        for key in self._held.values():
            bits |= key.modifier
        return bits

    def _down(self, page: Page, key: Key, extra: int = 0) -> asyncio.Future:
        repeat = key.code in self._held
        self._held.setdefault(key.code, key)
        modifiers = self._modifiers() | extra
        text = "" if modifiers & ~SHIFT else key.text
        return page.send(
            "Input.dispatchKeyEvent",
            {
                "type": "keyDown" if text else "rawKeyDown",
                **_facts(key),
                "modifiers": modifiers,
                "autoRepeat": repeat,
                **({"text": text, "unmodifiedText": text} if text else {}),
            },
        )

    def _up(self, page: Page, key: Key, extra: int = 0) -> asyncio.Future:
        self._held.pop(key.code, None)
        return page.send(
            "Input.dispatchKeyEvent", {"type": "keyUp", **_facts(key), "modifiers": self._modifiers() | extra}
        )

    async def _hotkey(self, page: Page, names: tuple[str, ...]) -> str:
        keys = [keyboard.find(name) for name in names]
        if not keys or None in keys:
            return f"no such key: {' '.join(names)}"
        extra = SHIFT if any(key.shifted for key in keys) else 0  # `+` is a key of its own here
        if any(key.modifier == SHIFT for key in keys) or self._modifiers() & SHIFT:
            keys = [_with_shift(key) for key in keys]
        before = set(self._held)  # what an earlier step pressed stays down
        sent = [self._down(page, key, extra) for key in keys]
        sent += [self._up(page, key, extra) for key in reversed(keys) if key.code not in before]
        await asyncio.gather(*sent)
        return ""

    async def _type(self, page: Page, content: str) -> str:
        if len(content) > _MAX_TEXT:
            return f"the text is longer than {_MAX_TEXT} characters"
        # A model's text may hold lone surrogates, which no message can carry.
        text = content.rstrip("\n").encode("utf-8", "replace").decode()
        sent, other = [], ""
        for character in text:
            key = keyboard.KEYS.get(character)
            if key is None:  # no key of this keyboard: it comes as from an input method
                other += character
                continue
            if other:
                sent.append(page.send("Input.insertText", {"text": other}))
                other = ""
            sent += self._stroke(page, key)
        if other:
            sent.append(page.send("Input.insertText", {"text": other}))
        if content.endswith("\n"):
            sent += self._stroke(page, keyboard.KEYS["Enter"])
        if sent:
            await asyncio.gather(*sent)
        return ""

    def _stroke(self, page: Page, key: Key) -> list[asyncio.Future]:
        extra = SHIFT if key.shifted else 0
        held = key.code in self._held
        sent = [self._down(page, key, extra)]
        return sent if held else [*sent, self._up(page, key, extra)]

    async def press(self, page: Page, name: str) -> str:
        """Down; again without a release in between: the key repeats."""
        key = keyboard.find(name)
        if key is None:
            return f"no such key: {name}"
        await self._down(page, _with_shift(key) if self._modifiers() & SHIFT else key)
        return ""

    async def release(self, page: Page, name: str) -> str:
        key = keyboard.find(name)
        if key is None:
            return f"no such key: {name}"
        if key.code not in self._held:
            return f"the key is not held down: {name}"
        await self._up(page, self._held[key.code])
        return ""

    # -- elsewhere ------------------------------------------------------------------------------------------------
    async def _navigate(self, page: Page, content: str, allowed: tuple[str, ...], base: str) -> str:
        try:
            target = urljoin(base, content.strip())
        except ValueError:
            return "that is not an address"
        if not within(target, allowed):
            return "the address is outside this world"
        failed = await page.navigate(target)
        return f"the address did not load: {failed}" if failed and failed != "net::ERR_ABORTED" else ""

    def pixel(self, point: Point) -> tuple[float, float]:
        return point.x * self._width, point.y * self._height


def outside(action: Action) -> bool:
    """Whether a point of an action lies beyond the screen."""
    points = [value for value in vars(action).values() if isinstance(value, Point)]
    return not all(0 <= point.x < 1 and 0 <= point.y < 1 for point in points)


def _facts(key: Key) -> dict[str, Any]:
    location = 1 if key.modifier else 0
    return {"key": key.key, "code": key.code, "windowsVirtualKeyCode": key.number, "location": location}


def _with_shift(key: Key) -> Key:
    """What the same key types with Shift."""
    for other in keyboard.KEYS.values():
        if other.shifted and other.code == key.code:
            return other
    return key
