"""Control pointer, keys and windows of an X display by its XTEST extension."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from idle import ProcessWatch
from server import RequestRefused
from Xlib import XK, X
from Xlib.display import Display
from Xlib.error import ConnectionClosedError, DisplayError, XError
from Xlib.ext import damage, res, xtest

X_BUTTONS = {"left": 1, "middle": 2, "right": 3}
_WHEEL = {"up": 4, "down": 5, "left": 6, "right": 7}
KEY_NAMES = json.loads(Path(__file__).with_name("keys.json").read_text("ascii"))  # where they differ from KeyboardEvent
_READ_S = 5.0  # for programs to read what was typed, before a key gets another character
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_OTHER_DEVICES = range(0x1008FE00, 0x10090000)  # symbols that X.org added: multimedia and other special keys
_LOCAL_PID = res.LocalClientPIDMask


class X11Input:
    """Act on one X display, from any thread. Pixels count from the upper left; keys are named as in KeyboardEvent.key.

    name: of the display, such as `:0`. Raises RequestRefused (503) where its server is gone.
    """

    def __init__(self, name: str) -> None:
        try:
            self._display = Display(name)
        except (OSError, DisplayError, XError) as error:
            raise RequestRefused(f"no X server answers at {name}: {error}", 503) from None
        self.name = name
        self._root = self._display.screen().root
        self._alone = threading.RLock()
        self._keyboard = _Keyboard(self._display)
        self._display.damage_query_version()  # without it the extension answers nothing
        self._damage = self._root.damage_create(damage.DamageReportBoundingBox)

    @property
    def size(self) -> tuple[int, int]:
        """Return width and height in pixels."""
        screen = self._display.screen()
        return screen.width_in_pixels, screen.height_in_pixels

    def position(self) -> tuple[int, int]:
        """Return the pointer's position, in pixels."""
        with self._use_display():
            found = self._root.query_pointer()
            return found.root_x, found.root_y

    def move(self, x: int, y: int) -> None:
        """Move the pointer to (x, y), in pixels."""
        with self._use_display():
            xtest.fake_input(self._display, X.MotionNotify, x=x, y=y)
            self._display.sync()

    def button(self, name: str, down: bool) -> None:
        """Press or release a button of the mouse. name: left, middle, right."""
        self._button(X_BUTTONS[name], down)

    def scroll(self, direction: str, notches: int) -> None:
        """Turn the wheel by so many notches. direction: up, down, left, right."""
        for _ in range(notches):
            self._button(_WHEEL[direction], True)
            self._button(_WHEEL[direction], False)

    def key(self, name: str, down: bool) -> None:
        """Press (`down`) or release a key. name: as in KeyboardEvent.key. Raises RequestRefused for an unknown one."""
        with self._use_display():
            keysym = _keysym(name) if len(name) == 1 else XK.string_to_keysym(KEY_NAMES["x11"].get(name, name))
            if not keysym:
                raise RequestRefused(f"no key is called {name!r}")
            code, _ = self._keyboard.map_symbols([keysym], self._read)[0]
            self._press(code, down)
            self._display.sync()

    def text(self, text: str) -> None:
        """Type each character: by its key, or by a spare key that is mapped to it where the layout lacks it.

        A line's end is the key Enter; control characters, such as ESC, are left out.
        """
        with self._use_display():
            shift = self._keyboard.shift
            symbols = [symbol for char in text.replace("\r\n", "\n") if (symbol := _keysym(char))]
            for batch in self._keyboard.batches(symbols):
                for code, shifted in self._keyboard.map_symbols(batch, self._read):
                    if shifted:
                        self._press(shift, True)
                    self._press(code, True)
                    self._press(code, False)
                    if shifted:
                        self._press(shift, False)
                self._display.sync()

    def take_damage(self) -> tuple[int, int] | None:
        """Return the rows (from, up to) in which something was drawn since the last call; None where nothing was."""
        with self._use_display():
            self._display.damage_subtract(self._damage)
            self._display.sync()
            events = [self._display.next_event() for _ in range(self._display.pending_events())]
            areas = [event.area for event in events if event.type == self._display.extension_event.DamageNotify]
            if not areas:
                return None
            return min(area.y for area in areas), max(area.y + area.height for area in areas)

    def programs(self) -> set[int]:
        """Return the process ids of the display's programs, and of the X server, which answers early."""
        with self._use_display():
            answer = self._display.res_query_client_ids([{"client": X.NONE, "mask": _LOCAL_PID}])
            credentials = self._display.display.socket.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
            )
            return {*(one.value[0] for one in answer.ids if one.value), _CREDENTIALS.unpack(credentials)[0]}

    def windows(self) -> list[dict]:
        """List the windows of applications, the lowest first.

        Each has `id`, `title`, `kind` (its class), `x`, `y`, `width`, `height` (pixels) and `focused`.
        """
        with self._use_display():
            names = ("_NET_CLIENT_LIST_STACKING", "_NET_CLIENT_LIST")
            found = next((value for name in names if (value := self._property(self._root, name))), [])
            active = self._property(self._root, "_NET_ACTIVE_WINDOW") or ()
            return [one for number in found if (one := self._window(number, number in active))]

    def managed(self) -> bool:
        """Tell whether a window manager is running on the display."""
        with self._use_display():
            return bool(self._property(self._root, "_NET_SUPPORTING_WM_CHECK"))

    def activate(self, number: int) -> None:
        """Bring a window to the front. number: its id."""
        self._ask("_NET_ACTIVE_WINDOW", number, [2, X.CurrentTime, 0, 0, 0])

    def close_window(self, number: int) -> None:
        """Ask a window to close, as its button does. number: its id."""
        self._ask("_NET_CLOSE_WINDOW", number, [X.CurrentTime, 2, 0, 0, 0])

    def close(self) -> None:
        """Close the connection to the X server."""
        with self._use_display():
            self._display.close()

    # -- inside -------------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _use_display(self) -> Iterator[None]:
        with self._alone:
            try:
                yield
            except (ConnectionClosedError, OSError) as error:
                raise RequestRefused(f"the X server {self.name} is gone: {error}", 503) from None

    def _button(self, number: int, down: bool) -> None:
        with self._use_display():
            xtest.fake_input(self._display, X.ButtonPress if down else X.ButtonRelease, number)
            # It is sent with the next request that has an answer: on a busy machine the second of two clicks would else
            # come too late for a double one.

    def _press(self, code: int, down: bool) -> None:
        xtest.fake_input(self._display, X.KeyPress if down else X.KeyRelease, code)

    def _read(self) -> None:
        """Wait until the display's programs have read all that was typed."""
        self._display.sync()
        ProcessWatch(self.programs()).wait(time.monotonic() + _READ_S)

    def _window(self, number: int, focused: bool) -> dict | None:
        window = self._display.create_resource_object("window", number)
        try:
            about, at = window.get_geometry(), window.translate_coords(self._root, 0, 0)
            title = self._property(window, "_NET_WM_NAME") or self._property(window, "WM_NAME") or b""
            kind = window.get_wm_class() or ("", "")
        except XError:  # it closed meanwhile
            return None
        title = title.decode("utf-8", "replace") if isinstance(title, bytes) else ""
        frame = {"x": -at.x, "y": -at.y, "width": about.width, "height": about.height}
        return {"id": number, "title": title, "kind": kind[1], **frame, "focused": focused}

    def _property(self, window, name: str):
        found = window.get_full_property(self._display.get_atom(name), X.AnyPropertyType)
        return found.value if found else None

    def _ask(self, name: str, number: int, words: list[int]) -> None:
        from Xlib.protocol.event import ClientMessage

        with self._use_display():
            message = ClientMessage(window=number, client_type=self._display.get_atom(name), data=(32, words))
            self._root.send_event(message, X.SubstructureRedirectMask | X.SubstructureNotifyMask)
            self._display.sync()


class _Keyboard:
    """Map symbols to keys. Spare keys, which the layout does not use, are lent to the characters that it lacks."""

    def __init__(self, display: Display) -> None:
        self._display = display
        first, last = display.display.info.min_keycode, display.display.info.max_keycode
        rows = display.get_keyboard_mapping(first, last - first + 1)
        self._keys: dict[int, tuple[int, bool]] = {}  # symbol -> key, and whether Shift is pressed with it
        for code, row in enumerate(rows, first):
            for column, symbol in enumerate(row[:2]):
                if symbol:
                    self._keys.setdefault(symbol, (code, column == 1))
        modifiers = {code for row in display.get_modifier_mapping() for code in row}
        # Spare keys have no symbol, or only those of other devices (volume, playing, screens).
        spare = [code for code, row in enumerate(rows, first) if all(one in _OTHER_DEVICES for one in row if one)]
        self._spare = [code for code in spare if code not in modifiers]
        self._lent: dict[int, int] = {}  # symbol -> spare key
        self.shift = display.keysym_to_keycode(XK.XK_Shift_L)

    def batches(self, symbols: list[int]) -> Iterator[list[int]]:
        """Split symbols, in order, into batches, each of which needs no more spare keys than there are."""
        batch: list[int] = []
        lacking: set[int] = set()
        for symbol in symbols:
            if symbol not in self._keys and symbol not in lacking:
                if len(lacking) == len(self._spare):
                    yield batch
                    batch, lacking = [], set()
                lacking.add(symbol)
            batch.append(symbol)
        if batch:
            yield batch

    def map_symbols(self, symbols: list[int], read) -> list[tuple[int, bool]]:
        """Return each symbol's key, and whether Shift is pressed with it; spare keys are mapped where they are needed.

        read: waits until programs have read all that was typed; called before a key that may have been pressed is
        mapped anew.
        """
        wanted = [one for one in dict.fromkeys(symbols) if one not in self._keys and one not in self._lent]
        if len(wanted) > len(self._spare) - len(self._lent):
            read()
            self._lent.clear()
            wanted = [one for one in dict.fromkeys(symbols) if one not in self._keys]
        if wanted:
            free = [code for code in self._spare if code not in set(self._lent.values())][: len(wanted)]
            lent = dict(zip(wanted, free))  # noqa: B905 - Python 3.9 has no strict
            self._change({code: symbol for symbol, code in lent.items()})
            self._lent.update(lent)
        return [self._keys.get(symbol) or (self._lent[symbol], False) for symbol in symbols]

    def _change(self, symbols: dict[int, int]) -> None:
        """Map keys to symbols, adjacent keys in one request: each request sends an event to every client."""
        codes = sorted(symbols)
        while codes:
            count = next((n for n in range(1, len(codes)) if codes[n] != codes[0] + n), len(codes))
            rows = [(symbols[code], symbols[code]) for code in codes[:count]]
            self._display.change_keyboard_mapping(codes[0], rows)
            codes = codes[count:]
        self._display.sync()


def _keysym(char: str) -> int:
    """Return the symbol of a character; 0 for one that cannot be typed."""
    number = ord(char)
    if char in "\n\r":
        return XK.XK_Return
    if char == "\t":
        return XK.XK_Tab
    if number < 32 or 127 <= number < 160 or 0xD800 <= number < 0xE000:
        return 0
    return number if number < 256 else 0x01000000 + number
