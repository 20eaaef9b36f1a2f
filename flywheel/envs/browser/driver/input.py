"""Carry out an agent's actions on a page by mouse and keyboard, or by fingers on a phone's screen."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point
from flywheel.envs import keyboard
from flywheel.envs.browser.driver.cdp import ignore_answer
from flywheel.envs.browser.driver.context import is_within_prefixes
from flywheel.envs.browser.driver.page import BrowserPage, read_script
from flywheel.envs.keyboard import SHIFT, Key

PixelPoint = tuple[float, float]
SendMouseEvent = Callable[[str, PixelPoint], asyncio.Future]  # (the protocol's type of event, point) -> its answer
SendTouchEvent = Callable[[BrowserPage, str, PixelPoint | None, float], asyncio.Future]  # (page, type, point, time)
# (page time to pass in ms) -> what is observed, None where another page is seen
PassPageTime = Callable[[float], Awaitable[Mapping[str, Any] | None]]

_DRAG_MOVES = 8
_DRAG_PACE_MS = 20.0  # page time after the press and after each move
_DRAG_START_S = 1.0  # for the browser to report what is dragged, once the page allowed it


class MouseGrip:
    """Drag with a button of the mouse held down on a page: press, move, release.

    Where the browser starts an HTML drag (`draggable`, a link, selected text), moves of the mouse no longer reach the
    page: the browser hands us the dragged data, and we send it as drag events, a drop at last. mouse: sends the
    protocol's mouse events. Its coroutines raise EnvError as those of `BrowserPage`.
    """

    def __init__(self, page: BrowserPage, mouse: SendMouseEvent) -> None:
        self.page, self._mouse = page, mouse
        self._inside = False  # an HTML drag has entered the page

    async def press(self, at: PixelPoint) -> None:
        """Move the mouse to a point and press the button. at: pixels of the viewport."""
        self.page.dragged = None
        await self.page.deliver(self._mouse("mouseMoved", at))
        await self._mouse("mousePressed", at)

    async def move(self, at: PixelPoint) -> None:
        """Move the mouse, or what is dragged, to a point. at: pixels of the viewport."""
        if self.page.dragged is None:
            await self.page.deliver(self._mouse("mouseMoved", at))
        else:
            await self._tell("dragOver" if self._inside else "dragEnter", at)

    async def heed(self, seen: Mapping[str, Any]) -> None:
        """Wait for the browser to report what is dragged, where `seen`, observed after a move, shows an HTML drag."""
        if seen.get("dragging") and self.page.dragged is None:
            with contextlib.suppress(TimeoutError):  # nothing to drag, or a frame that was taken away
                await self.page.wait_until(lambda: self.page.dragged is not None, _DRAG_START_S)

    async def release(self, at: PixelPoint) -> None:
        """Release the button at a point, and drop there what is dragged. at: pixels of the viewport."""
        if self.page.dragged is None:
            await self._mouse("mouseReleased", at)
            return
        # Browsers repeat dragOver: the page must answer it for this point before the drop, not for the last one.
        for kind in ("dragOver", "drop") if self._inside else ("dragEnter", "dragOver", "drop"):
            await self._tell(kind, at)
        self.page.dragged = None

    def let_go(self, at: PixelPoint) -> None:
        """Release the button of a page that is no longer shown, so that it does not stay pressed there. at: pixels."""
        if self.page.gone:
            return
        if self.page.dragged is None:
            self._mouse("mouseReleased", at).add_done_callback(ignore_answer)
        else:
            parameters = {"type": "dragCancel", "x": at[0], "y": at[1], "data": self.page.dragged}
            self.page.post("Input.dispatchDragEvent", parameters)
            self.page.dragged = None

    async def _tell(self, kind: str, at: PixelPoint) -> None:
        self._inside = True
        event = {"type": kind, "x": at[0], "y": at[1], "data": self.page.dragged, "modifiers": 0}
        await self.page.deliver(self.page.send("Input.dispatchDragEvent", event))


async def drag_slowly(grip: MouseGrip, start: PixelPoint, end: PixelPoint, ms: float, rest: PassPageTime) -> None:
    """Carry out a drag as a person does: a press, moves with page time between them, a release.

    Libraries read the pointer's place in frames and timers, so they would miss a drag that takes no time. ms: page time
    that it may take, passed by `rest`. The drag ends early where another page is shown. Raises EnvError as
    `BrowserPage`'s coroutines, and what `rest` raises.
    """
    pace = min(_DRAG_PACE_MS, ms / (_DRAG_MOVES + 1))
    await grip.press(start)
    if await rest(pace) is None:
        return grip.let_go(start)
    for at in _ease_path(start, end):
        await grip.move(at)
        seen = await rest(pace)
        if seen is None:
            return grip.let_go(at)
        await grip.heed(seen)
    await grip.release(end)


def _ease_path(start: PixelPoint, end: PixelPoint) -> list[PixelPoint]:
    """Return the points of a drag's moves, closer together at both ends, as a hand moves."""
    shares = [step / _DRAG_MOVES for step in range(1, _DRAG_MOVES + 1)]
    eased = [share * share * (3 - 2 * share) for share in shares]
    return [tuple(a + (b - a) * share for a, b in zip(start, end, strict=True)) for share in eased]


OUTSIDE_NOTE = "the point is outside the viewport"
_SCROLL_DIRECTIONS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
_SCROLL_SHARE = 0.5  # of the viewport, for a scroll
_MAX_TEXT = 2000
_BUTTONS = {"none": 0, "left": 1, "right": 2}
_SCROLL_FRAMES = 2  # after which a page has handled a wheel event and moved


class InputDriver:
    """Carry out actions by mouse and keyboard. width, height: the viewport in pixels.

    The commands of one action are written without waiting in between, since the browser delivers them in order; their
    answers are awaited together. Its coroutines raise EnvError as those of `BrowserPage`.
    """

    def __init__(self, width: int, height: int) -> None:
        self._width, self._height = width, height
        self._held: dict[str, Key] = {}  # keys held down, by code
        self.at = (0.0, 0.0)  # where the mouse is
        self.clipboard = ""  # what was copied last

    @property
    def held(self) -> list[str]:
        """Return the names of the keys that are held down, in the order in which they were pressed."""
        return [key.key if key.key != " " else "Space" for key in self._held.values()]

    @property
    def modifiers(self) -> int:
        """Return the bits of the modifiers that are held down."""
        bits = 0
        for key in self._held.values():
            bits |= key.modifier
        return bits

    async def do(
        self,
        action: Action,
        page: BrowserPage,
        allowed: tuple[str, ...],
        base: str,
        ms: float = 0,
        rest: PassPageTime | None = None,
    ) -> str:
        """Carry out one action on `page`; returns "" or why it did nothing.

        allowed: prefixes of addresses to which it may navigate. base: the URL to which an address is relative. ms: page
        time that a drag may take. rest: passes page time; None: `page.observe`. Raises what `rest` raises.
        """
        if is_outside_screen(action):
            return OUTSIDE_NOTE
        match action:
            case act.Click(point):
                await self.click(page, self.pixel(point))
            case act.LeftDouble(point):
                await self._click_times(page, self.pixel(point), 2)
            case act.LeftTriple(point):
                await self._click_times(page, self.pixel(point), 3)
            case act.RightSingle(point):
                await self.click(page, self.pixel(point), "right")
            case act.Hover(point):
                self.at = self.pixel(point)
                await page.deliver(self._mouse(page, "mouseMoved", self.at))
            case act.Drag(start, end):
                await self._drag(page, self.pixel(start), self.pixel(end), ms, rest or page.observe)
            case act.Scroll(point, direction):
                await self._scroll(page, self.pixel(point), _SCROLL_DIRECTIONS[direction])
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
                return f"a browser page has no {act.ACTION_NAMES[type(action)]}"
        return ""

    # -- mouse ----------------------------------------------------------------------------------------------------
    def move(self, page: BrowserPage, at: PixelPoint) -> None:
        """Move the mouse without waiting: the page gets the move with the next event, or in its next frame."""
        self.at = at
        self._mouse(page, "mouseMoved", at).add_done_callback(ignore_answer)

    def _mouse(
        self, page: BrowserPage, kind: str, at: PixelPoint, button: str = "none", clicks: int = 0, **more: float
    ) -> asyncio.Future:
        held = _BUTTONS[button] if kind != "mouseReleased" else 0
        event = {"type": kind, "x": at[0], "y": at[1], "modifiers": self.modifiers}
        event |= {"button": button, "buttons": held, "clickCount": clicks, **more}
        return page.send("Input.dispatchMouseEvent", event)

    async def click(self, page: BrowserPage, at: PixelPoint, button: str = "left", clicks: int = 1) -> None:
        """Click a point of the page once. at: pixels of the viewport. clicks: 2, 3: as the end of a multiple click."""
        if clicks == 1:
            self.move(page, at)
        pressed = self._mouse(page, "mousePressed", at, button, clicks)
        released = self._mouse(page, "mouseReleased", at, button, clicks)
        await asyncio.gather(pressed, released)

    async def _click_times(self, page: BrowserPage, at: PixelPoint, times: int) -> None:
        """Click several times. What one click began finishes before the next, so that the result does not vary."""
        await self.click(page, at)
        for clicks in range(2, times + 1):
            await page.observe(0)
            await page.screenshot()  # an empty document loses clicks, and a frame alone may still be empty
            await self.click(page, at, clicks=clicks)

    async def _drag(self, page: BrowserPage, start: PixelPoint, end: PixelPoint, ms: float, rest: PassPageTime) -> None:
        await drag_slowly(self.grip(page), start, end, ms, rest)
        self.at = end

    def grip(self, page: BrowserPage) -> MouseGrip:
        """Return a grip for a drag on `page` with the left button."""
        pressed = False

        def mouse(kind: str, at: PixelPoint) -> asyncio.Future:
            nonlocal pressed
            self.at, moves = at, kind == "mouseMoved"
            pressed |= kind == "mousePressed"
            return self._mouse(page, kind, at, "left" if pressed else "none", 0 if moves else 1)

        return MouseGrip(page, mouse)

    async def _scroll(self, page: BrowserPage, at: PixelPoint, way: tuple[int, int]) -> None:
        await self.wheel(page, at, way[0] * self._width * _SCROLL_SHARE, way[1] * self._height * _SCROLL_SHARE)

    async def wheel(self, page: BrowserPage, at: PixelPoint, right: float, down: float) -> None:
        """Scroll by the wheel at a point, in pixels of the viewport. right, down: pixels to scroll."""
        self.move(page, at)
        await page.deliver(self._mouse(page, "mouseWheel", at, deltaX=right, deltaY=down))
        # The browser scrolls by events of its own, which it sends after the answer. A move of the mouse queues behind
        # them: once the page has it, it has those too.
        await page.deliver(self._mouse(page, "mouseMoved", at))
        for _ in range(_SCROLL_FRAMES):
            await page.draw()

    # -- keyboard -------------------------------------------------------------------------------------------------
    def _down(self, page: BrowserPage, key: Key, extra: int = 0) -> asyncio.Future:
        repeat = key.code in self._held
        self._held.setdefault(key.code, key)
        modifiers = self.modifiers | extra
        text = "" if modifiers & ~SHIFT else key.text
        typed = {"type": "keyDown", "text": text, "unmodifiedText": text} if text else {"type": "rawKeyDown"}
        event = {**key_event_fields(key), "modifiers": modifiers, "autoRepeat": repeat, **typed}
        return page.send("Input.dispatchKeyEvent", event)

    def _up(self, page: BrowserPage, key: Key, extra: int = 0) -> asyncio.Future:
        self._held.pop(key.code, None)
        event = {"type": "keyUp", **key_event_fields(key), "modifiers": self.modifiers | extra}
        return page.send("Input.dispatchKeyEvent", event)

    async def _hotkey(self, page: BrowserPage, names: tuple[str, ...]) -> str:
        keys = [keyboard.find_key(name) for name in names]
        if not keys or None in keys:
            return f"no such key: {' '.join(names)}"
        extra = SHIFT if any(key.shifted for key in keys) else 0  # `+` counts as a key of its own here
        if any(key.modifier == SHIFT for key in keys) or self.modifiers & SHIFT:
            keys = [_shifted_key(key) for key in keys]
        before = set(self._held)  # what an earlier step pressed stays down
        sent = [self._down(page, key, extra) for key in keys]
        sent += [self._up(page, key, extra) for key in reversed(keys) if key.code not in before]
        await asyncio.gather(*sent)
        return ""

    async def _type(self, page: BrowserPage, content: str) -> str:
        if len(content) > _MAX_TEXT:
            return f"the text is longer than {_MAX_TEXT} characters"
        # A model's text may hold lone surrogates, which no message can carry.
        text = content.rstrip("\n").encode("utf-8", "replace").decode()
        sent = []
        for key, characters in itertools.groupby(text, keyboard.KEYS.get):
            if key is None:  # no key of this keyboard: typed as by an input method
                sent.append(page.send("Input.insertText", {"text": "".join(characters)}))
            else:
                for _ in characters:
                    sent += self._stroke(page, key)
        if content.endswith("\n"):
            sent += self._stroke(page, keyboard.KEYS["Enter"])
        if sent:
            await asyncio.gather(*sent)
        return ""

    def _stroke(self, page: BrowserPage, key: Key) -> list[asyncio.Future]:
        extra = SHIFT if key.shifted else 0
        held = key.code in self._held
        sent = [self._down(page, key, extra)]
        return sent if held else [*sent, self._up(page, key, extra)]

    async def press(self, page: BrowserPage, name: str) -> str:
        """Press a key and hold it down; a key that is held already repeats. Returns "" or why nothing was done."""
        key = keyboard.find_key(name)
        if key is None:
            return f"no such key: {name}"
        await self._down(page, _shifted_key(key) if self.modifiers & SHIFT else key)
        return ""

    async def release(self, page: BrowserPage, name: str) -> str:
        """Release a key that is held down. Returns "" or why nothing was done."""
        key = keyboard.find_key(name)
        if key is None:
            return f"no such key: {name}"
        if key.code not in self._held:
            return f"the key is not held down: {name}"
        await self._up(page, self._held[key.code])
        return ""

    # -- addresses and points -------------------------------------------------------------------------------------
    async def _navigate(self, page: BrowserPage, content: str, allowed: tuple[str, ...], base: str) -> str:
        try:
            target = urljoin(base, content.strip())
        except ValueError:
            return "that is not an address"
        if not is_within_prefixes(target, allowed):
            return "the address is outside this world"
        failed = await page.navigate(target)
        return f"the address did not load: {failed}" if failed and failed != "net::ERR_ABORTED" else ""

    def pixel(self, point: Point) -> PixelPoint:
        """Return the place, in pixels of the viewport, of a point whose coordinates are fractions."""
        return point.x * self._width, point.y * self._height


def is_outside_screen(action: Action) -> bool:
    """Tell whether a point of `action` lies outside the screen; False for an action without points."""
    points = [value for value in vars(action).values() if isinstance(value, Point)]
    return not all(0 <= point.x < 1 and 0 <= point.y < 1 for point in points)


def key_event_fields(key: Key) -> dict[str, Any]:
    """Return the fields that describe a key in key events of the DevTools protocol."""
    location = 1 if key.modifier else 0
    return {"key": key.key, "code": key.code, "windowsVirtualKeyCode": key.number, "location": location}


def _shifted_key(key: Key) -> Key:
    """Return the key as typed with Shift; itself where Shift changes nothing."""
    for other in keyboard.KEYS.values():
        if other.shifted and other.code == key.code:
            return other
    return key


_SWIPE_MOVES = 8  # of the finger in a swipe
_SWIPE_PACE_MS = 16.0  # between the timestamps of two moves
_SWIPE_REST_S = 0.3  # that a finger rests before it is lifted, so that nothing scrolls on
_GESTURE_INTERVAL_S = 2.0  # between the beginnings of two gestures
_LONG_PRESS_MS = 600.0  # page time of a long press
_SWIPE_SHARE = 0.6  # of the screen, for a scroll: above half, so that lists that snap move on
_TOUCH_SLOP = 15.0  # pixels that a finger moves before the page does
_TOUCH_FRAMES = 2  # after which a page has handled a touch and moved
_LONG_PRESS_SCRIPT = read_script("long_press.js")


class TouchDriver(InputDriver):
    """Carry out actions by the touch screen and keyboard of a phone, with its applications, home and back.

    The first address that a session may go to is the phone's launcher: it is the home screen, and it opens an
    application by `open/NAME`. What the browser shows over a page is tapped and swiped too, and closed by back.
    """

    _last = 0.0  # when the last gesture began: its timestamp in seconds

    async def do(
        self,
        action: Action,
        page: BrowserPage,
        allowed: tuple[str, ...],
        base: str,
        ms: float = 0,
        rest: PassPageTime | None = None,
    ) -> str:
        if not allowed:
            action = act.Hotkey(("esc",)) if isinstance(action, act.PressBack) else action
            return await super().do(action, page, allowed, base, ms, rest)
        match action:
            case act.LongPress(point):
                if is_outside_screen(action):
                    return OUTSIDE_NOTE
                await self._long(page, self.pixel(point), rest or page.observe)
            case act.OpenApp(name):
                failed = await page.navigate(f"{allowed[0]}open/{quote(name.strip()[:100], safe='')}")
                return f"there is no application called {name[:100]}" if failed else ""
            case act.PressHome():
                await page.navigate(allowed[0])
            case act.PressBack():
                return await self._back(page, allowed)
            case act.Click() | act.Drag() | act.Scroll() | act.Type() | act.Wait() | act.Finished() | act.CallUser():
                return await super().do(action, page, allowed, base, ms, rest)
            case _:
                return f"a phone has no {act.ACTION_NAMES[type(action)]}"
        return ""

    # -- fingers --------------------------------------------------------------------------------------------------
    def _moment(self) -> float:
        """Return a gesture's timestamp in seconds, so long after the last one that two taps are no double tap."""
        self._last = max(time.time(), self._last + _GESTURE_INTERVAL_S)
        return self._last

    def _touch(self, page: BrowserPage, kind: str, at: PixelPoint | None, moment: float) -> asyncio.Future:
        points = [] if at is None else [{"x": at[0], "y": at[1]}]
        sent = page.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points, "timestamp": moment})
        sent.add_done_callback(ignore_answer)
        return sent

    async def click(self, page: BrowserPage, at: PixelPoint, button: str = "left", clicks: int = 1) -> None:
        """Tap a point of the page. at: pixels of the viewport. button, clicks: ignored."""
        moment = self._moment()
        self._touch(page, "touchStart", at, moment)
        await page.deliver(self._touch(page, "touchEnd", None, moment + 0.05))
        await self._taken(page)

    async def _drag(self, page: BrowserPage, start: PixelPoint, end: PixelPoint, ms: float, rest: PassPageTime) -> None:
        await self._swipe(page, start, end)

    def grip(self, page: BrowserPage) -> FingerGrip:
        """Return a grip for a drag on `page` with a finger."""
        return FingerGrip(page, self._touch, self._moment())

    async def _scroll(self, page: BrowserPage, at: PixelPoint, way: tuple[int, int]) -> None:
        """Scroll by a swipe in the opposite direction, over 60 % of the screen, centred on the point."""
        sides = (self._width, self._height)
        reach = [step * (side * _SWIPE_SHARE + _TOUCH_SLOP) / 2 for step, side in zip(way, sides, strict=True)]
        places = zip(at, reach, sides, strict=True)
        middle = [min(max(place, abs(half) + 1), side - abs(half) - 1) for place, half, side in places]
        ends = [tuple(place + sign * half for place, half in zip(middle, reach, strict=True)) for sign in (1, -1)]
        await self._swipe(page, *ends)

    async def _swipe(self, page: BrowserPage, start: PixelPoint, end: PixelPoint) -> None:
        moment = self._moment()
        await page.deliver(self._touch(page, "touchStart", start, moment))
        for number in range(1, _SWIPE_MOVES + 1):
            share = number / _SWIPE_MOVES
            at = tuple(a + (b - a) * share for a, b in zip(start, end, strict=True))
            moment += _SWIPE_PACE_MS / 1000
            await page.deliver(self._touch(page, "touchMove", at, moment))
        await page.deliver(self._touch(page, "touchMove", end, moment + _SWIPE_REST_S))
        await page.deliver(self._touch(page, "touchEnd", None, moment + 2 * _SWIPE_REST_S))
        await self._taken(page)

    async def _long(self, page: BrowserPage, at: PixelPoint, rest: PassPageTime) -> None:
        """Make a long press in page time: the browser's own would take half a second of real time."""
        moment = self._moment()
        await page.deliver(self._touch(page, "touchStart", at, moment))
        if await rest(_LONG_PRESS_MS) is not None:
            await page.evaluate(f"({_LONG_PRESS_SCRIPT})({json.dumps(at[0])}, {json.dumps(at[1])})")
        await page.deliver(self._touch(page, "touchCancel", None, moment + 1))

    async def _taken(self, page: BrowserPage) -> None:
        for _ in range(_TOUCH_FRAMES):
            await page.draw()

    # -- the phone ------------------------------------------------------------------------------------------------

    async def _back(self, page: BrowserPage, allowed: tuple[str, ...]) -> str:
        """Close an open list; else go back within the application, and from its first page to the home screen."""
        if await page.evaluate("document.querySelector('select:open') !== null"):
            await self._hotkey(page, ("esc",))
            return ""
        history = await page.send("Page.getNavigationHistory")
        entries, now = [entry["url"] for entry in history["entries"]], history["currentIndex"]
        here = next((one for one in allowed if is_within_prefixes(entries[now], (one,))), allowed[0])
        if now and is_within_prefixes(entries[now - 1], (here,)) and entries[now] != allowed[0]:
            await page.travel(-1)
        elif here == allowed[0] and urlsplit(entries[now]).path == urlsplit(allowed[0]).path:
            return "this is the home screen: there is nothing to go back to"
        else:
            await page.navigate(allowed[0])
        return ""


class FingerGrip:
    """Drag with a finger on a phone's screen, as `MouseGrip` does with the mouse. began: the gesture's timestamp in s.

    Its coroutines raise EnvError as those of `BrowserPage`.
    """

    def __init__(self, page: BrowserPage, touch: SendTouchEvent, began: float) -> None:
        self.page, self._touch, self._ahead = page, touch, began - time.time()

    async def press(self, at: PixelPoint) -> None:
        """Put the finger down at a point. at: pixels of the viewport."""
        await self._told("touchStart", at)

    async def move(self, at: PixelPoint) -> None:
        """Move the finger to a point. at: pixels of the viewport."""
        await self._told("touchMove", at)

    async def heed(self, seen: Mapping[str, Any]) -> None:
        """Do nothing, whatever was `seen`: a finger drags no HTML."""

    async def release(self, at: PixelPoint) -> None:
        """Lift the finger where it is; `at` is ignored."""
        await self._told("touchEnd", None)

    def let_go(self, at: PixelPoint) -> None:
        """Cancel the touch once another page is shown; `at` is ignored."""
        if not self.page.gone:
            self._touch(self.page, "touchCancel", None, time.time() + self._ahead)

    async def _told(self, kind: str, at: PixelPoint | None) -> None:
        await self.page.deliver(self._touch(self.page, kind, at, time.time() + self._ahead))
