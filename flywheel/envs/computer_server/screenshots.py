"""Take pictures of the screen by mss, when it has come to rest."""

from __future__ import annotations

import contextlib
import struct
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import mss
from mss.exception import ScreenShotError
from server import RequestRefused

_FRAME_S = 1 / 60  # that a program may sleep before it draws what it has done
_AT_ONCE = 32  # rows: memory for all of them would be asked of the system anew each time
_LEVEL = 1  # of zlib: a picture of a desktop is mostly plain, and time is what counts


class ScreenGrabber:
    """Take screenshots of one X display, or of the machine's own where none is named.

    drawn: `X11Input.drawn`; only these rows are compared, and without it whole pictures. It is called before each
    picture and raises RequestRefused where the display is gone, by which the library would end this process.
    """

    def __init__(self, display: str = "", drawn: Callable[[], tuple[int, int] | None] | None = None) -> None:
        # mss's newer back-ends do not find Xvnc's visual: it tells the depth of 24 bits twice.
        options = {"display": display, "backend": "xlib"} if display else {}
        self._drawn = drawn
        self._thread = ThreadPoolExecutor(1)  # one picture at a time: mss works in the thread that it began in
        with _refuse_if_gone():
            self._source, self._all = self._thread.submit(_open_source, options).result()
        self._picture = _PngPicture(self._all["width"], self._all["height"])
        self._stale: tuple[int, int] | None = (0, self._all["height"])  # rows that the picture has not as they are

    def take(self) -> bytes:
        """Take a PNG of the screen as it is now."""
        return self._thread.submit(self._take).result()

    def settled(self, rest: Callable[[float], bool], after_ms: float, within_ms: float) -> bytes:
        """Take a PNG of the screen when nothing moves: after_ms have passed, its programs are at rest, and a frame
        later nothing else was drawn. After within_ms the picture is taken whatever moves.

        rest: waits until the programs are at rest or that time (`time.monotonic`) has come.
        """
        return self._thread.submit(self._settled, rest, after_ms, within_ms).result()

    def _settled(self, rest: Callable[[float], bool], after_ms: float, within_ms: float) -> bytes:
        until = time.monotonic() + within_ms / 1000
        time.sleep(after_ms / 1000)
        while True:
            still = time.monotonic() + _FRAME_S
            rest(until)
            png = self._take()
            time.sleep(max(0.0, still - time.monotonic()))
            if not self._moves() or time.monotonic() > until:
                return png

    def _take(self) -> bytes:
        if self._drawn:
            self._moves()
        self._update()
        return self._picture.png()

    def _moves(self) -> bool:
        """Tell whether the screen is no longer as it was looked at last."""
        if self._drawn is None:
            self._stale = (0, self._all["height"])
            return self._update()
        rows = self._drawn()
        if rows is not None:
            before = self._stale or rows
            self._stale = min(before[0], rows[0]), max(before[1], rows[1])
        return rows is not None

    def _update(self) -> bool:
        """Bring the stale rows into the picture; whether any of them differs."""
        if self._stale is None:
            return False
        top, bottom = max(0, self._stale[0]), min(self._all["height"], self._stale[1])
        self._stale = None if self._drawn else (0, self._all["height"])
        with _refuse_if_gone():
            band = {**self._all, "top": self._all["top"] + top, "height": max(1, bottom - top)}
            return self._picture.update(top, self._source.grab(band).raw)


class _PngPicture:
    """The screen as PNG. Rows that are as they were are not made anew."""

    def __init__(self, width: int, height: int) -> None:
        self._size, self._stride = (width, height), width * 4
        self._before = [bytearray(self._stride)] * height  # rows as mss gives them, BGRX
        self._rows = [bytes(1 + width * 3)] * height  # as PNG has them: a filter's number, 0 for none, and RGB
        self._png = b""

    def update(self, top: int, raw: bytearray) -> bool:
        """Take in rows from `top` on; tells whether any of them differs from what it was."""
        differs = not self._png
        for number in range(len(raw) // self._stride):
            row = raw[number * self._stride : (number + 1) * self._stride]
            if row != self._before[top + number]:
                self._before[top + number], self._rows[top + number] = row, _rgb(row)
                differs = True
        if differs:
            self._png = b""
        return differs

    def png(self) -> bytes:
        if not self._png:
            packer = zlib.compressobj(_LEVEL)
            starts = range(0, len(self._rows), _AT_ONCE)
            data = b"".join(packer.compress(b"".join(self._rows[at : at + _AT_ONCE])) for at in starts) + packer.flush()
            header = struct.pack(">IIBBBBB", *self._size, 8, 2, 0, 0, 0)
            parts = _chunk(b"IHDR", header), _chunk(b"IDAT", data), _chunk(b"IEND", b"")
            self._png = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
        return self._png


@contextlib.contextmanager
def _refuse_if_gone():
    try:
        yield
    except ScreenShotError as error:
        raise RequestRefused(f"no picture of the screen: {error}", 503) from None


def _open_source(options: dict) -> tuple:
    source = mss.MSS(**options)
    return source, source.monitors[0]


def _rgb(row: bytearray) -> bytes:
    out = bytearray(1 + len(row) // 4 * 3)
    out[1::3], out[2::3], out[3::3] = row[2::4], row[1::4], row[0::4]
    return bytes(out)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
