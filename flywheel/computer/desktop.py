"""A desktop in a place of its own: X, VNC, a window manager and real applications, seen and acted upon from outside."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from flywheel.agent.actions import Action, Wait
from flywheel.computer.desktop_acts import Cannot, acts
from flywheel.computer.machine import Machine, MachineSettings
from flywheel.errors import EnvError

_PROGRAMS = {"Xvnc": "tigervnc-standalone-server", "openbox": "openbox"}  # and Debian's packages that have them
_PACKAGES = ("mss", "Xlib", "six")  # of Python, that the guest takes for its screen
_START_S = 15.0


class Desktop:
    """Made by `Desktop.start`, on a machine of its own.

    In milliseconds, after_ms: what a step waits at least before its picture; within_ms: what it waits at most for a
    screen that goes on moving; wait_ms: what the action `wait` waits.
    """

    def __init__(self, machine: Machine, width: int, height: int) -> None:
        self.machine = machine
        self.width, self.height = width, height
        self.after_ms, self.within_ms, self.wait_ms = 30.0, 2000.0, 300.0

    @classmethod
    async def start(cls, width: int, height: int, chosen: MachineSettings, readable: Sequence[Path] = ()) -> Desktop:
        """A fresh one, with no application. readable: as `Machine.start`. Raises EnvError where it does not start."""
        if not chosen.image and (lacking := missing()):
            raise EnvError(f"no desktop without {', '.join(lacking)}", fix=f"apt-get install {' '.join(lacking)}")
        places = [_place(name) for name in _PACKAGES]
        machine = await Machine.start(chosen, [*places, *readable])
        try:
            packages = sorted({str(place.parent) for place in places})
            await machine.call("/desktop/start", {"width": width, "height": height, "packages": packages}, _START_S)
        except BaseException:
            await machine.close()
            raise
        return cls(machine, width, height)

    async def launch(self, apps: Sequence[Sequence[str]]) -> None:
        """Start applications, one after the other: each when the one before has a window.

        Raises EnvError where one does not start, or shows no window.
        """
        if apps:
            await self.machine.call("/desktop/launch", {"apps": [list(words) for words in apps]}, _START_S)

    async def screenshot(self) -> bytes:
        """A PNG of the screen when it has come to rest."""
        return await self.machine.request("GET", f"/screenshot?after_ms={self.after_ms:g}", self._longest_s)

    async def do(self, action: Action) -> tuple[str, bytes]:
        """Carry out an action: a note where it did nothing, else "", and the screen when it has come to rest.

        Raises EnvError where the desktop is gone, EnvTimeout where it does not answer.
        """
        note = ""
        try:
            steps = acts(action, self.width, self.height)
        except Cannot as cannot:
            steps, note = [], str(cannot)
        after_ms = self.wait_ms if isinstance(action, Wait) else self.after_ms
        body = {"acts": steps, "after_ms": after_ms, "within_ms": self.within_ms}
        return note, await self.machine.request("POST", "/step", self._longest_s, content=json.dumps(body))

    async def state(self) -> dict:
        """Size and windows, as the guest tells them: what runs there can change it."""
        return json.loads(await self.machine.request("GET", "/desktop/state"))

    async def vnc(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to its VNC server (RFB), to watch it and to take it over. The server's socket lies inside, where
        no path of this machine could be put in its place, and the guest connects to it."""
        return await self.machine.stream("/desktop/vnc", {})

    async def close(self) -> None:
        await self.machine.close()

    @property
    def _longest_s(self) -> float:
        return (max(self.after_ms, self.wait_ms) + self.within_ms) / 1000 + _START_S


def missing(apps: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Debian's packages that are not there: a desktop's own, and those of applications (program -> package)."""
    return [package for program, package in {**_PROGRAMS, **apps}.items() if shutil.which(program) is None]


def _place(name: str) -> Path:
    """The folder, or the file, of a Python package."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise EnvError(f"no desktop without the Python package {name}", fix="pip install mss python-xlib")
    path = Path(found.origin)
    return path.parent if path.name == "__init__.py" else path
