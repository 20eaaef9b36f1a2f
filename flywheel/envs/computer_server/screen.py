"""Route mouse, keyboard and screenshots of this machine over HTTP; a screenshot can wait until the screen is still."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from server import ApiAnswer, ApiRequest, RequestRefused, Routes

if TYPE_CHECKING:
    from pyautogui_input import PyAutoGuiInput
    from screenshots import ScreenGrabber
    from x11 import X11Input

    InputDevice = X11Input | PyAutoGuiInput


class ScreenAccess:
    """Hold the input device and the screenshot taker of a screen, opened at the first use.

    The screen is the display that DISPLAY names, or on Windows and macOS this machine's.
    """

    def __init__(self) -> None:
        self._alone = threading.Lock()
        self._input: InputDevice | None = None
        self._grabber: ScreenGrabber | None = None

    @property
    def input(self) -> InputDevice:
        """Return the input device. Raises RequestRefused where there is no display."""
        self._find()
        return self._input

    @property
    def grabber(self) -> ScreenGrabber:
        """Return the screenshot taker. Raises RequestRefused where there is no display."""
        self._find()
        return self._grabber

    def forget(self) -> None:
        """Drop input device and screenshot taker; the next use opens the display that DISPLAY names then."""
        with self._alone:
            used, self._input, self._grabber = self._input, None, None
        if hasattr(used, "close"):
            with contextlib.suppress(RequestRefused):  # its X server is gone
                used.close()

    def rest(self, until: float) -> bool:
        """Wait until the display's programs are at rest (`idle.py`); False where they are not by `until`.

        until: a time of `time.monotonic`. Where the programs of the screen are not known, it is true at once.
        """
        if not hasattr(self.input, "programs"):
            return True
        from idle import ProcessWatch

        watched = ProcessWatch(self.input.programs())
        while watched.wait(until) and time.monotonic() < until:
            before, watched = watched, ProcessWatch(self.input.programs())
            if watched.pids == before.pids:  # else a program has started meanwhile, such as a new terminal's shell
                return True
        return False

    def _find(self) -> None:
        with self._alone:
            if self._grabber is not None:
                return
            try:
                self._input, self._grabber = _open_native() if sys.platform in ("win32", "darwin") else _open_x11()
            except ImportError as error:
                raise RequestRefused(
                    f"the guest's Python lacks {error.name}: pip install mss python-xlib", 501
                ) from None


def _open_x11() -> tuple[InputDevice, ScreenGrabber]:
    name = os.environ.get("DISPLAY", "")
    if not name:
        raise RequestRefused("there is no desktop: start one (POST /desktop/start), or set DISPLAY", 503)
    from screenshots import ScreenGrabber
    from x11 import X11Input

    hands = X11Input(name)
    return hands, ScreenGrabber(name, hands.take_damage)


def _open_native() -> tuple[InputDevice, ScreenGrabber]:
    from pyautogui_input import PyAutoGuiInput
    from screenshots import ScreenGrabber

    return PyAutoGuiInput(), ScreenGrabber()


# Routes: a single act; a step (acts, then a screenshot once the screen is at rest); a screenshot.

MOUSE_BUTTONS = ("left", "middle", "right")
SCROLL_DIRECTIONS = ("up", "down", "left", "right")
MAX_TYPED_CHARACTERS = 10_000  # characters of one act
_MAX_ACTS, _MAX_NOTCHES = 1000, 100
_AFTER_MS, _WITHIN_MS, _LONGEST_MS = 0.0, 2000.0, 60_000.0


def screen_routes(screen: ScreenAccess) -> Routes:
    """Return the routes `/act` (one act of mouse or keys), `/step` (acts, then a screenshot) and `/screenshot`."""

    def act(request: ApiRequest) -> dict:
        _perform_act(screen.input, request.json())
        screen.input.position()  # answered once the display has taken it
        return {"ok": True}

    def step(request: ApiRequest) -> ApiAnswer:
        acts = request.json().get("acts", [])
        if not isinstance(acts, list) or len(acts) > _MAX_ACTS:
            raise RequestRefused(f"acts is not a list of {_MAX_ACTS} at most")
        for one in acts:
            _perform_act(screen.input, one)
        if acts:
            screen.input.position()  # answered once the display has taken all of them
        after_ms = request.number("after_ms", 0, _LONGEST_MS, _AFTER_MS)
        return _take_picture(screen, after_ms, request.number("within_ms", 0, _LONGEST_MS, _WITHIN_MS))

    def screenshot(request: ApiRequest) -> ApiAnswer:
        try:
            after_ms = float(request.query["after_ms"])
        except KeyError:
            return ApiAnswer(screen.grabber.take(), "image/png")
        except ValueError:
            raise RequestRefused("after_ms is not a number") from None
        if not 0 <= after_ms <= _LONGEST_MS:
            raise RequestRefused(f"after_ms is not a number from 0 to {_LONGEST_MS:g}")
        return _take_picture(screen, after_ms, _WITHIN_MS)

    return {("POST", "/act"): act, ("POST", "/step"): step, ("GET", "/screenshot"): screenshot}


def _take_picture(screen: ScreenAccess, after_ms: float, within_ms: float) -> ApiAnswer:
    return ApiAnswer(screen.grabber.settled(screen.rest, after_ms, within_ms), "image/png")


def _perform_act(hands: InputDevice, act: Any) -> None:
    """Carry out an act. Raises RequestRefused for an unknown act, or a wrong field."""
    if not isinstance(act, dict) or act.get("type") not in _ACTS:
        raise RequestRefused(f"an act has a type: {', '.join(_ACTS)}")
    _ACTS[act["type"]](hands, act)


def _button(down: bool) -> Callable[[InputDevice, Mapping], None]:
    return lambda hands, act: hands.button(_one_of(act, "button", MOUSE_BUTTONS), down)


def _key(down: bool) -> Callable[[InputDevice, Mapping], None]:
    return lambda hands, act: hands.key(_text_field(act, "key", 32), down)


def _move(hands: InputDevice, act: Mapping) -> None:
    width, height = hands.size
    hands.move(_whole_number(act, "x", 0, width - 1), _whole_number(act, "y", 0, height - 1))


def _scroll(hands: InputDevice, act: Mapping) -> None:
    hands.scroll(_one_of(act, "direction", SCROLL_DIRECTIONS), _whole_number(act, "notches", 1, _MAX_NOTCHES))


_ACTS: dict[str, Callable[[InputDevice, Mapping], None]] = {
    "move": _move,
    "down": _button(True),
    "up": _button(False),
    "key_down": _key(True),
    "key_up": _key(False),
    "text": lambda hands, act: hands.text(_text_field(act, "text", MAX_TYPED_CHARACTERS)),
    "scroll": _scroll,
}


def _one_of(act: Mapping, name: str, known: tuple[str, ...]) -> str:
    value = act.get(name, known[0])
    if value not in known:
        raise RequestRefused(f"{name} is none of {', '.join(known)}")
    return value


def _whole_number(act: Mapping, name: str, least: int, most: int) -> int:
    value = act.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise RequestRefused(f"{name} is not a whole number from {least} to {most}")
    return value


def _text_field(act: Mapping, name: str, most: int) -> str:
    value = act.get(name)
    if not isinstance(value, str) or len(value) > most:
        raise RequestRefused(f"{name} is not a text of {most} characters at most")
    return value
