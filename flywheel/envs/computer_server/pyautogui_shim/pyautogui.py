"""Stand in for the package PyAutoGUI, which OSWorld's set-ups and agents import: its functions, by X11's XTEST.

Names, order and defaults of arguments are PyAutoGUI's; `tween`, `logScreenshot` and `_pause` change nothing. There is
no pause between two calls, and no fail-safe.
"""

from __future__ import annotations

import os
import time
from collections import namedtuple

from x11 import KEY_NAMES, X11Input

FAILSAFE, PAUSE = False, 0
Point, Size = namedtuple("Point", "x y"), namedtuple("Size", "width height")
_hands = X11Input(os.environ["DISPLAY"])
_KEYS = {**KEY_NAMES["from_pyautogui"], **{f"f{number}": f"F{number}" for number in range(1, 25)}}
_DRAG_MOVES = 8  # steps of a drag: programs begin to drag only when the pointer has moved a little


def size():
    return Size(*_hands.size)


def position():
    return Point(*_hands.position())


def moveTo(x=None, y=None, duration=0.0, tween=None, logScreenshot=False, _pause=True):
    if x is not None and not isinstance(x, (int, float)):
        x, y = x
    at = _hands.position()
    _hands.move(int(at[0] if x is None else x), int(at[1] if y is None else y))
    time.sleep(duration)


def moveRel(xOffset=None, yOffset=None, duration=0.0, tween=None, logScreenshot=False, _pause=True):
    x, y = _hands.position()
    moveTo(x + (xOffset or 0), y + (yOffset or 0), duration)


def mouseDown(x=None, y=None, button="primary", duration=0.0, tween=None, logScreenshot=None, _pause=True):
    moveTo(x, y, duration)
    _hands.button(_button(button), True)


def mouseUp(x=None, y=None, button="primary", duration=0.0, tween=None, logScreenshot=None, _pause=True):
    moveTo(x, y, duration)
    _hands.button(_button(button), False)


def click(
    x=None, y=None, clicks=1, interval=0.0, button="primary", duration=0.0, tween=None, logScreenshot=None, _pause=True
):
    moveTo(x, y, duration)
    for number in range(clicks):
        time.sleep(interval if number else 0)
        mouseDown(button=button)
        mouseUp(button=button)


def doubleClick(x=None, y=None, interval=0.0, button="left", duration=0.0, tween=None, logScreenshot=None, _pause=True):
    click(x, y, 2, interval, button, duration)


def tripleClick(x=None, y=None, interval=0.0, button="left", duration=0.0, tween=None, logScreenshot=None, _pause=True):
    click(x, y, 3, interval, button, duration)


def rightClick(x=None, y=None, interval=0.0, duration=0.0, tween=None, logScreenshot=None, _pause=True):
    click(x, y, 1, interval, "right", duration)


def middleClick(x=None, y=None, interval=0.0, duration=0.0, tween=None, logScreenshot=None, _pause=True):
    click(x, y, 1, interval, "middle", duration)


def dragTo(
    x=None, y=None, duration=0.0, tween=None, button="primary", logScreenshot=None, _pause=True, mouseDownUp=True
):
    if x is not None and not isinstance(x, (int, float)):
        x, y = x
    from_x, from_y = _hands.position()
    x, y = from_x if x is None else x, from_y if y is None else y
    if mouseDownUp:
        mouseDown(button=button)
    for number in range(1, _DRAG_MOVES + 1):
        moveTo(from_x + (x - from_x) * number // _DRAG_MOVES, from_y + (y - from_y) * number // _DRAG_MOVES)
    time.sleep(duration)
    if mouseDownUp:
        mouseUp(button=button)


def dragRel(
    xOffset=0, yOffset=0, duration=0.0, tween=None, button="primary", logScreenshot=None, _pause=True, mouseDownUp=True
):
    x, y = _hands.position()
    dragTo(x + (xOffset or 0), y + (yOffset or 0), duration, tween, button, mouseDownUp=mouseDownUp)


def scroll(clicks, x=None, y=None, logScreenshot=None, _pause=True):
    moveTo(x, y)
    _hands.scroll("up" if clicks > 0 else "down", abs(int(clicks)))


def hscroll(clicks, x=None, y=None, logScreenshot=None, _pause=True):
    moveTo(x, y)
    _hands.scroll("right" if clicks > 0 else "left", abs(int(clicks)))


def keyDown(key, logScreenshot=None, _pause=True):
    _hands.key(_KEYS.get(key.lower(), key), True)


def keyUp(key, logScreenshot=None, _pause=True):
    _hands.key(_KEYS.get(key.lower(), key), False)


def press(keys, presses=1, interval=0.0, logScreenshot=None, _pause=True):
    for _ in range(presses):
        for key in [keys] if isinstance(keys, str) else keys:
            keyDown(key)
            keyUp(key)
            time.sleep(interval)


def hotkey(*args, interval=0.0, **_):
    keys = args[0] if args and not isinstance(args[0], str) else args
    for key in keys:
        keyDown(key)
        time.sleep(interval)
    for key in reversed(keys):
        keyUp(key)


def write(message, interval=0.0, logScreenshot=None, _pause=True):
    if not isinstance(message, str):
        press(message, interval=interval)
    elif not interval:
        _hands.text(message)
    else:
        for character in message:
            _hands.text(character)
            time.sleep(interval)


def _button(name):
    return {"primary": "left", "secondary": "right", 1: "left", 2: "middle", 3: "right"}.get(name, name)


move, drag, typewrite, sleep = moveRel, dragRel, write, time.sleep
