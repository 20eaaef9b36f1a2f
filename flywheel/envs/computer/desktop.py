"""Start a desktop (X, VNC, window manager, applications) in an isolated machine, and act on it in pixels."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flywheel.agent import actions as act
from flywheel.agent.actions import Action, Point
from flywheel.envs import keyboard
from flywheel.envs.computer.machine import Machine, MachineSettings
from flywheel.utils.errors import EnvError

# The desktop's browser, a Chromium with a window. Its own sandbox is off, since it cannot be created inside a machine;
# the machine confines a page that breaks out.

BROWSER_APP = "browser"  # its name in a task's `apps`; the next word there is the address to open
BROWSER_PROGRAM = "chromium"
# The binary that Debian's wrapper script starts after looking for things that a machine does not have.
BROWSER_BINARY = "/usr/lib/chromium/chromium"
BROWSER_OPTIONS = (
    "--no-sandbox", "--test-type", "--no-first-run", "--no-default-browser-check", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-extensions",
    "--disable-gpu", "--disable-smooth-scrolling", "--password-store=basic", "--lang=en-US",
    "--hide-crash-restore-bubble",
    "--disable-features=Translate,MediaRouter,OptimizationHints,DownloadBubblePartialView", "--start-maximized",
    "--force-device-scale-factor=1", "--user-data-dir=/tmp/chromium", "--disk-cache-dir=/dev/null",
)  # fmt: skip


def build_browser_command(address: str) -> list[str]:
    """Build the command that opens a browser window at `address`. Downloads go to the folder Downloads of the home."""
    return [BROWSER_BINARY, *BROWSER_OPTIONS, address]


DesktopAct = dict[str, Any]
MAX_TYPED_CHARACTERS = 10_000  # that the computer server types at once
_SCROLL_ACT = {"type": "scroll", "notches": 3}  # of the wheel, for one action
_DRAG_MOVES = 8  # steps of a drag: programs begin to drag only when the pointer has moved a little


class UnsupportedAction(Exception):
    """Signal that an action does nothing here; the message becomes the step's note."""


def translate_action(action: Action, width: int, height: int) -> list[DesktopAct]:
    """Translate an action into desktop acts, in order: the JSON objects that the computer server takes (`POST /step`).

    width, height: of the screen, in pixels. Raises UnsupportedAction for an action that a desktop does not have, a
    point outside the screen, no key or an unknown one, and a text above MAX_TYPED_CHARACTERS.
    """
    if type(action) not in _TRANSLATIONS:
        raise UnsupportedAction(f"a desktop has no {act.ACTION_NAMES[type(action)]}")
    return _TRANSLATIONS[type(action)](action, lambda point: _move(point, width, height))


def _move(point: Point, width: int, height: int) -> DesktopAct:
    if not (0 <= point.x < 1 and 0 <= point.y < 1):
        raise UnsupportedAction("the point is outside the screen")
    return {"type": "move", "x": int(point.x * width), "y": int(point.y * height)}


def _clicks(times: int, button: str = "left") -> list[DesktopAct]:
    return [{"type": kind, "button": button} for _ in range(times) for kind in ("down", "up")]


def _drag(action: act.Drag, move: Callable[[Point], DesktopAct]) -> list[DesktopAct]:
    start, end = action.start_point, action.end_point
    from_, to = move(start), move(end)
    between = [
        {"type": "move", **{axis: from_[axis] + (to[axis] - from_[axis]) * n // _DRAG_MOVES for axis in ("x", "y")}}
        for n in range(1, _DRAG_MOVES)
    ]
    return [from_, {"type": "down"}, *between, to, {"type": "up"}]


def _hotkey(keys: Sequence[str]) -> list[DesktopAct]:
    if not keys:
        raise UnsupportedAction("no key is named")
    named = [find_key_name(key) for key in keys]
    down = [{"type": "key_down", "key": name} for name in named]
    return [*down, *({"type": "key_up", "key": name} for name in reversed(named))]


def find_key_name(name: str) -> str:
    """Return the KeyboardEvent.key name of a key that an action names. Raises UnsupportedAction for an unknown key."""
    found = keyboard.find_key(name)
    if found is None:
        raise UnsupportedAction(f"no key is called {name[:20]!r}")
    return found.key


def _text(content: str) -> list[DesktopAct]:
    if len(content) > MAX_TYPED_CHARACTERS:
        raise UnsupportedAction(f"a text has {MAX_TYPED_CHARACTERS} characters at most: type it in parts")
    return [{"type": "text", "text": content}]


_TRANSLATIONS: dict[type, Callable[[Any, Callable[[Point], DesktopAct]], list[DesktopAct]]] = {
    act.Click: lambda action, move: [move(action.point), *_clicks(1)],
    act.LeftDouble: lambda action, move: [move(action.point), *_clicks(2)],
    act.LeftTriple: lambda action, move: [move(action.point), *_clicks(3)],
    act.RightSingle: lambda action, move: [move(action.point), *_clicks(1, "right")],
    act.Hover: lambda action, move: [move(action.point)],
    act.Drag: _drag,
    act.Scroll: lambda action, move: [move(action.point), {**_SCROLL_ACT, "direction": action.direction}],
    act.Hotkey: lambda action, _: _hotkey(action.keys),
    act.Press: lambda action, _: [{"type": "key_down", "key": find_key_name(action.key)}],
    act.Release: lambda action, _: [{"type": "key_up", "key": find_key_name(action.key)}],
    act.Type: lambda action, _: _text(action.content),
    **dict.fromkeys((act.Wait, act.Finished, act.CallUser), lambda *_: []),
}


_DESKTOP_PROGRAMS = {"Xvnc": "tigervnc-standalone-server", "openbox": "openbox"}  # program -> Debian package
_PYTHON_PACKAGES = ("mss", "Xlib", "six")  # with which the computer server sees the screen
_START_S = 15.0


class Desktop:
    """Control the desktop of one machine, in pixels; made by `Desktop.start`.

    after_ms: milliseconds that a step waits at least before its screenshot. within_ms: that it waits at most for a
    screen that goes on moving. wait_ms: that the action `wait` waits.
    """

    def __init__(self, machine: Machine, width: int, height: int) -> None:
        self.machine = machine
        self.width, self.height = width, height
        self.after_ms, self.within_ms, self.wait_ms = 30.0, 2000.0, 300.0

    @classmethod
    async def start(cls, width: int, height: int, chosen: MachineSettings, readable: Sequence[Path] = ()) -> Desktop:
        """Start a fresh machine with a desktop of `width` x `height` pixels, without applications.

        chosen, readable: as for `Machine.start`. Raises EnvError where it does not start or something that it needs is
        missing, EnvTimeout where it is not ready in time.
        """
        if not chosen.image and (lacking := list_missing_packages()):
            raise EnvError(f"no desktop without {', '.join(lacking)}", fix=f"apt-get install {' '.join(lacking)}")
        places = [_package_path(name) for name in _PYTHON_PACKAGES]
        machine = await Machine.start(chosen, [*places, *readable])
        try:
            packages = sorted({str(place.parent) for place in places})
            await machine.call("/desktop/start", {"width": width, "height": height, "packages": packages}, _START_S)
        except BaseException:
            await machine.close()
            raise
        return cls(machine, width, height)

    async def launch(self, apps: Sequence[Sequence[str]]) -> None:
        """Start applications one after the other, each once the one before shows a window.

        apps: each one's command, as words. Raises EnvError where one does not start, or shows no window, EnvTimeout
        where the machine does not answer.
        """
        if apps:
            await self.machine.call("/desktop/launch", {"apps": [list(words) for words in apps]}, _START_S)

    async def screenshot(self) -> bytes:
        """Take a PNG screenshot once the screen is at rest. Raises as `Machine.request`."""
        return await self.machine.request("GET", f"/screenshot?after_ms={self.after_ms:g}", self._longest_s)

    async def do(self, action: Action) -> tuple[str, bytes]:
        """Carry out an action; returns a note where it did nothing (else "") and a PNG of the screen at rest.

        Raises EnvError where the desktop is gone or its server refuses, EnvTimeout where it does not answer.
        """
        note = ""
        try:
            parts = [translate_action(part, self.width, self.height) for part in act.split_action(action)]
        except UnsupportedAction as cannot:
            parts, note = [[]], str(cannot)
        after_ms = self.wait_ms if isinstance(action, act.Wait) else self.after_ms
        for steps in parts:  # a click may move the focus: the screen rests before something is typed
            body = {"acts": steps, "after_ms": after_ms, "within_ms": self.within_ms}
            shot = await self.machine.request("POST", "/step", self._longest_s, content=json.dumps(body))
        return note, shot

    async def state(self) -> dict:
        """Return `running`, `display`, `width`, `height` and `windows`, which programs in the machine can change.

        Where the X server has ended, `running` is false, and `windows` is empty. Raises as `Machine.request`.
        """
        return json.loads(await self.machine.request("GET", "/desktop/state"))

    async def vnc(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect, through the computer server, to the desktop's VNC server (RFB), whose socket lies in the machine.

        Raises as `Machine.stream`.
        """
        return await self.machine.stream("/desktop/vnc", {})

    async def close(self) -> None:
        """End the machine; may be called twice."""
        await self.machine.close()

    @property
    def _longest_s(self) -> float:
        return (max(self.after_ms, self.wait_ms) + self.within_ms) / 1000 + _START_S


def list_missing_packages(apps: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """List the Debian packages whose programs a desktop needs and PATH lacks. apps: further program -> package."""
    return [package for program, package in {**_DESKTOP_PROGRAMS, **apps}.items() if shutil.which(program) is None]


def _package_path(name: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise EnvError(f"no desktop without the Python package {name}", fix="pip install mss python-xlib")
    path = Path(found.origin)
    return path.parent if path.name == "__init__.py" else path
