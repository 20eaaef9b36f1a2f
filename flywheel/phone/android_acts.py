"""The mobile actions as commands of Android's shell."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Mapping

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point
from flywheel.phone.adb import Phone, Screen
from flywheel.sandbox.inputs import OUTSIDE, outside

KEYBOARD = "com.android.adbkeyboard/.AdbIME"  # https://github.com/senzhk/ADBKeyBoard
_HOME, _BACK, _ENTER = 3, 4, 66  # codes of keys
_SWIPE_MS, _LONG_MS = 400, 900
_SHARE = 0.5  # of the screen, a scroll
_MOST = 2000  # characters
_WAYS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
_NOT_TYPED = re.compile(r"[^ -~\n]")
_NAME = re.compile(r"[A-Za-z][\w]*(\.[\w]+)+")  # of a package


async def take_keyboard(phone: Phone) -> bool:
    """Type by ADBKeyboard, where it is installed: it can write every character."""
    if KEYBOARD not in (await phone.shell("ime list -s -a")).split():
        return False
    await phone.shell(f"ime enable {KEYBOARD}")
    await phone.shell(f"ime set {KEYBOARD}")
    return True


async def do(phone: Phone, action: Action, screen: Screen, apps: Mapping[str, str], keyboard: bool) -> str:
    """Carry out one action; "" or why nothing was done. apps: name -> package. keyboard: ADBKeyboard is on.

    Raises EnvError where the phone is gone.
    """
    if outside(action):
        return OUTSIDE
    match action:
        case act.Click(point):
            await phone.shell(f"input tap {_at(point, screen)}")
        case act.LongPress(point):
            await phone.shell(f"input swipe {_at(point, screen)} {_at(point, screen)} {_LONG_MS}")
        case act.Drag(start, end):
            await phone.shell(f"input swipe {_at(start, screen)} {_at(end, screen)} {_SWIPE_MS}")
        case act.Scroll(point, direction):
            start, end = _ends(point, _WAYS[direction])
            await phone.shell(f"input swipe {_at(start, screen)} {_at(end, screen)} {_SWIPE_MS}")
        case act.Type(content):
            return await _type(phone, content, keyboard)
        case act.OpenApp(name):
            return await _open(phone, name, apps)
        case act.PressHome():
            await _press(phone, _HOME)
        case act.PressBack():
            await _press(phone, _BACK)
        case act.Wait() | act.Finished() | act.CallUser():
            pass
        case _:
            return f"a phone has no {act.NAMES[type(action)]}"
    return ""


def _at(point: Point, screen: Screen) -> str:
    return f"{int(point.x * screen.width)} {int(point.y * screen.height)}"


def _ends(point: Point, way: tuple[int, int]) -> tuple[Point, Point]:
    """A finger goes the other way, around the point and within the screen."""
    half = [step * _SHARE / 2 for step in way]
    x, y = (
        min(max(place, abs(one) + 0.01), 0.99 - abs(one)) if one else place
        for place, one in zip((point.x, point.y), half, strict=True)
    )
    return Point(x + half[0], y + half[1]), Point(x - half[0], y - half[1])


async def _press(phone: Phone, key: int) -> None:
    await phone.shell(f"input keyevent {key}")


async def _type(phone: Phone, content: str, keyboard: bool) -> str:
    if len(content) > _MOST:
        return f"the text is longer than {_MOST} characters"
    submits = content.endswith("\n")
    text = content.rstrip("\n").encode("utf-8", "replace").decode()
    if keyboard and text:
        told = base64.b64encode(text.encode()).decode()
        await phone.shell(f"am broadcast -a ADB_INPUT_B64 --es msg {told}")
    elif _NOT_TYPED.search(text):
        return "not typed: without ADBKeyboard a phone takes the characters of a US keyboard alone"
    else:
        for number, line in enumerate(text.split("\n")):
            if number:
                await _press(phone, _ENTER)
            for piece in re.split(r"(?<=%)(?=s)", line):  # `input` writes a space for %s
                if piece:
                    await phone.shell(f"input text {shlex.quote(piece)}")
    if submits:
        await _press(phone, _ENTER)
    return ""


async def _open(phone: Phone, name: str, apps: Mapping[str, str]) -> str:
    known = {one.casefold(): package for one, package in apps.items()}
    package = known.get(name.strip().casefold()) or (name.strip() if _NAME.fullmatch(name.strip()) else "")
    if not package or package not in (await phone.shell("pm list packages")).replace("package:", "").split():
        return f"there is no application called {name[:100]}"
    await phone.shell(f"monkey -p {package} -c android.intent.category.LAUNCHER 1")
    return ""
