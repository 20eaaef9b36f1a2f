"""Replace PyAutoGUI, which OSWorld's set-ups and agents import, by XTEST.

Names, order and defaults of arguments are PyAutoGUI's. There is no pause between two calls, and no fail-safe.
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


def moveTo(x=None, y=None, duration=0.0, *_):
    if x is not None and not isinstance(x, (int, float)):
        x, y = x
    at = _hands.position()
    _hands.move(int(at[0] if x is None else x), int(at[1] if y is None else y))
    time.sleep(duration)


def moveRel(xOffset=0, yOffset=0, duration=0.0, *_):
    x, y = _hands.position()
    moveTo(x + xOffset, y + yOffset, duration)


def mouseDown(x=None, y=None, button="left", *_):
    moveTo(x, y)
    _hands.button(_button(button), True)


def mouseUp(x=None, y=None, button="left", *_):
    moveTo(x, y)
    _hands.button(_button(button), False)


def click(x=None, y=None, clicks=1, interval=0.0, button="left", duration=0.0, *_):
    moveTo(x, y, duration)
    for number in range(clicks):
        time.sleep(interval if number else 0)
        mouseDown(button=button)
        mouseUp(button=button)


def doubleClick(x=None, y=None, interval=0.0, button="left", *_):
    click(x, y, 2, interval, button)


def tripleClick(x=None, y=None, interval=0.0, button="left", *_):
    click(x, y, 3, interval, button)


def rightClick(x=None, y=None, *_):
    click(x, y, button="right")


def middleClick(x=None, y=None, *_):
    click(x, y, button="middle")


def dragTo(x=None, y=None, duration=0.0, tween=None, button="left", *_):
    if x is not None and not isinstance(x, (int, float)):
        x, y = x
    from_x, from_y = _hands.position()
    x, y = from_x if x is None else x, from_y if y is None else y
    mouseDown(button=button)
    for number in range(1, _DRAG_MOVES + 1):
        moveTo(from_x + (x - from_x) * number // _DRAG_MOVES, from_y + (y - from_y) * number // _DRAG_MOVES)
    time.sleep(duration)
    mouseUp(button=button)


def dragRel(xOffset=0, yOffset=0, duration=0.0, tween=None, button="left", *_):
    x, y = _hands.position()
    dragTo(x + xOffset, y + yOffset, duration, tween, button)


def scroll(clicks, x=None, y=None, *_):
    moveTo(x, y)
    _hands.scroll("up" if clicks > 0 else "down", abs(int(clicks)))


def hscroll(clicks, x=None, y=None, *_):
    moveTo(x, y)
    _hands.scroll("right" if clicks > 0 else "left", abs(int(clicks)))


def keyDown(key, *_):
    _hands.key(_KEYS.get(key.lower(), key), True)


def keyUp(key, *_):
    _hands.key(_KEYS.get(key.lower(), key), False)


def press(keys, presses=1, interval=0.0, *_):
    for _ in range(presses):
        for key in [keys] if isinstance(keys, str) else keys:
            keyDown(key)
            keyUp(key)
            time.sleep(interval)


def hotkey(*keys, interval=0.0, **_):
    for key in keys:
        keyDown(key)
        time.sleep(interval)
    for key in reversed(keys):
        keyUp(key)


def write(message, interval=0.0, *_):
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
