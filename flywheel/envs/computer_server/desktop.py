"""Start a desktop on the machine that an agent controls: an X server that speaks VNC, a window manager, applications.

Nothing in it moves by itself: the files in `config` turn off blinking cursors, animations and fading overlays. The VNC
server listens on a unix socket only; `/desktop/vnc` relays a connection to it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from forwarding import relay_connections
from screen import ScreenAccess
from server import ApiRequest, ConnectionTakeover, RequestRefused, Routes, is_command

_CONFIG = Path(__file__).resolve().parent / "config"
_SERVER, _MANAGER = "Xvnc", "openbox"
_WITHIN_S, _LOOK_S, _FOCUS_S, _REST_S = 10.0, 0.002, 2.0, 5.0
_DPI = "96"


class DesktopSession:
    """Run the machine's desktop, one at most; methods answer requests of `desktop_routes`.

    screen: is opened on the desktop. home: folder in which applications start. environment: of all programs that this
    server starts; `start` sets DISPLAY in it, so that later programs find the desktop.
    """

    def __init__(self, screen: ScreenAccess, home: Path, environment: dict[str, str]) -> None:
        self._screen, self._home = screen, home
        self._environment = environment
        self._own = {"XDG_CONFIG_DIRS": str(_CONFIG), "GTK2_RC_FILES": str(_CONFIG / "gtkrc-2.0"), "GTK_A11Y": "none"}
        self._own |= {"GTK_OVERLAY_SCROLLING": "0", "GSETTINGS_BACKEND": "memory", "NO_AT_BRIDGE": "1"}
        self._processes: list[subprocess.Popen] = []
        self._alone = threading.Lock()
        self._vnc = ""
        atexit.register(self._end)

    def start(self, request: ApiRequest) -> dict:
        """Start X server, window manager and applications; returns as `state` once each application has a window.

        request: `width` and `height` in pixels, `apps` (commands), `packages` (folders of Python packages to import
        from). Raises RequestRefused where there is a desktop already, or something does not start in 10 s.
        """
        width, height = (int(request.number(name, 64, 8192, 0)) for name in ("width", "height"))
        apps, packages = _commands(request, "apps"), request.json().get("packages", [])
        with self._alone:
            if self._processes:
                raise RequestRefused("there is a desktop already", 409)
            sys.path += [str(folder) for folder in packages]
            until = time.monotonic() + _WITHIN_S
            display = self._serve(width, height, until)
            os.environ["DISPLAY"] = display
            self._environment.update(self._own, DISPLAY=display)
            self._screen.forget()
            self._run([_MANAGER])
            _wait_until(self._screen.input.managed, until, f"{_MANAGER} does not manage the windows")
            self._launch(apps, until)
        return self.state(request)

    def launch(self, request: ApiRequest) -> dict:
        """Start more applications (`apps`); returns as `state` once each has a window. Raises as `start`."""
        self._launch(_commands(request, "apps"), time.monotonic() + _WITHIN_S)
        return self.state(request)

    def state(self, _: ApiRequest) -> dict:
        """Return `running`, `display`, `width`, `height` and `windows` (`X11Input.windows`).

        Where there is no X server, or it has ended, `running` is false and `windows` empty.
        """
        if not self._processes or self._processes[0].poll() is not None:
            return {"running": False, "windows": []}
        hands = self._screen.input
        width, height = hands.size
        windows = hands.windows()
        return {"running": True, "display": hands.name, "width": width, "height": height, "windows": windows}

    def vnc(self, _: ApiRequest) -> ConnectionTakeover:
        """Connect the client to the desktop's VNC server. Raises RequestRefused where there is none."""
        there = socket.socket(socket.AF_UNIX)
        try:
            there.connect(self._vnc)
        except OSError as error:
            raise RequestRefused(f"there is no desktop to be seen: {error}", 503) from None
        return ConnectionTakeover(lambda here: relay_connections(here, there, until_both_end=False))

    # -- inside -------------------------------------------------------------------------------------------------------
    def _serve(self, width: int, height: int, until: float) -> str:
        """Start the X server on a free display and return the display's name, such as `:0`."""
        runtime = self._environment.get("XDG_RUNTIME_DIR")  # the user's own folder, and in a machine always the same
        folder = Path(runtime, f"flywheel-vnc-{os.getpid()}") if runtime else Path(tempfile.mkdtemp(prefix="flywheel-"))
        folder.mkdir(0o700, exist_ok=not runtime)
        self._vnc = str(folder / "socket")
        told, tells = os.pipe()
        words = [_SERVER, "-displayfd", str(tells), "-geometry", f"{width}x{height}", "-depth", "24", "-dpi", _DPI]
        words += ["-rfbport", "-1", "-rfbunixpath", self._vnc, "-SecurityTypes", "None", "-nolisten", "tcp"]
        words += ["-noreset", "-AlwaysShared", "-AcceptSetDesktopSize=0", "-extension", "GLX"]
        try:
            self._run(words, (tells,))
        finally:
            os.close(tells)
        with os.fdopen(told) as told_file:
            ready = select.select([told_file], [], [], max(0.0, until - time.monotonic()))[0]
            number = told_file.readline().strip() if ready else ""
        if not number:
            self._end()
            raise RequestRefused(f"{_SERVER} does not start", 503)
        return f":{number}"

    def _launch(self, apps: list[list[str]], until: float) -> None:
        def windows() -> list[dict]:
            return self._screen.input.windows()

        for words in apps:
            before = len(windows())
            self._run(words)
            _wait_until(lambda count=before: len(windows()) > count, until, f"{words[0]} shows no window")
            focused_by = min(until, time.monotonic() + _FOCUS_S)  # keys typed before are lost
            _holds_in_time(lambda: any(one["focused"] for one in windows()), focused_by)
            self._screen.rest(min(until, time.monotonic() + _REST_S))  # on a busy machine a terminal's shell is late

    def _run(self, words: list[str], descriptors: tuple[int, ...] = ()) -> None:
        try:
            process = subprocess.Popen(
                words, cwd=self._home, env=self._environment, pass_fds=descriptors, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as error:
            raise RequestRefused(f"{words[0]} does not start: {error.strerror}", 501) from None
        self._processes.append(process)

    def _end(self) -> None:
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()
        self._processes = []
        if self._vnc:
            shutil.rmtree(Path(self._vnc).parent, ignore_errors=True)


def desktop_routes(screen: ScreenAccess, home: Path, environment: dict[str, str]) -> Routes:
    """Return the routes that start a desktop and applications, tell its state, and connect to its VNC server.

    screen, home, environment: as of `DesktopSession`.
    """
    desktop = DesktopSession(screen, home, environment)
    return {
        ("POST", "/desktop/start"): desktop.start,
        ("POST", "/desktop/launch"): desktop.launch,
        ("GET", "/desktop/state"): desktop.state,
        ("POST", "/desktop/vnc"): desktop.vnc,
    }


def _commands(request: ApiRequest, name: str) -> list[list[str]]:
    commands = request.json().get(name, [])
    if not isinstance(commands, list) or not all(map(is_command, commands)):
        raise RequestRefused(f"{name} is not a list of commands, each a list of words")
    return commands


def _wait_until(holds: Callable[[], bool], until: float, otherwise: str) -> None:
    if not _holds_in_time(holds, until):
        raise RequestRefused(f"{otherwise} in {_WITHIN_S:g} s", 503)


def _holds_in_time(holds: Callable[[], bool], until: float) -> bool:
    """Wait until `holds` is true; False where it is not by `until` (`time.monotonic`)."""
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_S)
    return True
