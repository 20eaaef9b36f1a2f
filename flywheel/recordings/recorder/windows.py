"""Tell which window of an X display has the focus, and where the windows lie that are not to be recorded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from Xlib import X
from Xlib.display import Display
from Xlib.error import XError

_FRESH_S = 0.05  # as long is an answer of the display used again
_DEPTH = 3  # of windows within those of a window manager, down to one with a class
Box = tuple[int, int, int, int]  # left, top, width, height in pixels of the screen


@dataclass(frozen=True)
class Window:
    """Hold a window. number: of X11. kind: its class. process: the number of its program's process; 0: not told."""

    number: int
    title: str
    kind: str
    box: Box
    process: int = 0


class WindowWatch:
    """Look at the windows of an X display. Not thread-safe. excluded: patterns (`fnmatch`) of classes or titles of
    windows that are not recorded, in any case."""

    def __init__(self, display: Display, excluded: Sequence[str]) -> None:
        self._display, self._root = display, display.screen().root
        self._excluded = [pattern.casefold() for pattern in excluded]
        self._active: tuple[float, Window | None] = (0.0, None)

    def active(self) -> Window | None:
        """Return the window with the focus; None where there is none, or no window manager that tells."""
        now = time.monotonic()
        if now - self._active[0] > _FRESH_S:
            found = self._property(self._root, "_NET_ACTIVE_WINDOW")
            self._active = (now, self._window(found[0]) if found and found[0] else None)
        return self._active[1]

    def is_excluded(self, window: Window | None) -> bool:
        """Tell whether a window is not to be recorded; False for None."""
        names = (window.kind.casefold(), window.title.casefold()) if window else ()
        return any(fnmatch(name, pattern) for name in names for pattern in self._excluded)

    def holder(self, number: int) -> Window | None:
        """Return the window with a class that window `number` lies in, or that lies in it; None where none does."""
        try:
            window = self._display.create_resource_object("window", number)
            inner = [window]
            for _ in range(_DEPTH):  # a window manager's frame
                inner = [one for outer in inner for one in (outer, *outer.query_tree().children)]
                if found := next((one for one in inner if one.get_wm_class()), None):
                    return self._window(found.id)
            while window.id != self._root.id and not window.get_wm_class():
                window = window.query_tree().parent
            return None if window.id == self._root.id else self._window(window.id)
        except XError:
            return None

    def excluded_boxes(self) -> list[Box]:
        """List where excluded windows lie on the screen, covered or not, with their menus.

        From then on this connection gets an event when the title of any other window changes.
        """
        return self._boxes(self._root, _DEPTH) if self._excluded else []

    def _boxes(self, within, depth: int) -> list[Box]:
        found = []
        try:
            for one in within.query_tree().children:
                if (window := self._window(one.id)) is None:
                    continue
                if window.kind or window.title:
                    one.change_attributes(event_mask=X.PropertyChangeMask)
                if self.is_excluded(window):
                    found.append(window.box)
                elif depth and not window.kind:
                    found += self._boxes(one, depth - 1)
        except XError:  # it closed meanwhile
            pass
        return found

    def _window(self, number: int) -> Window | None:
        window = self._display.create_resource_object("window", number)
        try:
            if window.get_attributes().map_state != X.IsViewable:
                return None
            about, at = window.get_geometry(), window.translate_coords(self._root, 0, 0)
            title = self._property(window, "_NET_WM_NAME") or self._property(window, "WM_NAME") or b""
            kind = window.get_wm_class() or ("", "")
        except XError:  # it closed meanwhile
            return None
        text = title.decode("utf-8", "replace") if isinstance(title, bytes) else str(title)
        process = self._property(window, "_NET_WM_PID")
        box = (-at.x, -at.y, about.width, about.height)
        return Window(number, text, kind[1], box, int(process[0]) if process else 0)

    def _property(self, window, name: str):
        found = window.get_full_property(self._display.get_atom(name), X.AnyPropertyType)
        return found.value if found else None
