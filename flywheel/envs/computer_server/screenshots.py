"""Take screenshots by mss, on the machine that an agent controls: at once, or when the screen has come to rest."""

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

_FRAME_S = 1 / 60  # seconds that a program may sleep before it draws its result
_AT_ONCE = 32  # rows: memory for all of them would be allocated from the system each time
_LEVEL = 1  # of zlib, the fastest: pictures of desktops are mostly plain, and speed matters


class ScreenGrabber:
    """Take screenshots of the X display `display`; "": of this machine's own screen.

    drawn: `X11Input.take_damage`; only the rows that it returns are taken anew, and without it whole pictures. It is
    called before each picture, since it raises RequestRefused where the display is gone: mss would end this process.
    """

    def __init__(self, display: str = "", drawn: Callable[[], tuple[int, int] | None] | None = None) -> None:
        # mss's newer back-ends do not find Xvnc's visual: Xvnc lists the depth of 24 bits twice.
        options = {"display": display, "backend": "xlib"} if display else {}
        self._drawn = drawn
        self._thread = ThreadPoolExecutor(1)  # one thread: mss works only in the thread that opened it
        with _refuse_if_gone():
            self._source, self._all = self._thread.submit(_open_source, options).result()
        self._picture = _PngPicture(self._all["width"], self._all["height"])
        self._stale: tuple[int, int] | None = (0, self._all["height"])  # rows of the picture that are out of date

    def take(self) -> bytes:
        """Take a PNG of the screen as it is now."""
        return self._thread.submit(self._take).result()

    def settled(self, rest: Callable[[float], bool], after_ms: float, within_ms: float) -> bytes:
        """Take a PNG once `after_ms` have passed, programs are at rest, and nothing is drawn for a frame (1/60 s).

        rest: waits until programs are at rest, or until its argument, a time of `time.monotonic`. After `within_ms` the
        picture is taken even if something moves.
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
        """Return whether the screen has changed since the last look; the changed rows become stale."""
        if self._drawn is None:
            self._stale = (0, self._all["height"])
            return self._update()
        rows = self._drawn()
        if rows is not None:
            before = self._stale or rows
            self._stale = min(before[0], rows[0]), max(before[1], rows[1])
        return rows is not None

    def _update(self) -> bool:
        """Copy the stale rows of the screen into the picture; returns whether any of them differs."""
        if self._stale is None:
            return False
        top, bottom = max(0, self._stale[0]), min(self._all["height"], self._stale[1])
        self._stale = None if self._drawn else (0, self._all["height"])
        with _refuse_if_gone():
            band = {**self._all, "top": self._all["top"] + top, "height": max(1, bottom - top)}
            return self._picture.update(top, self._source.grab(band).raw)


class _PngPicture:
    """Encode the screen as PNG. Rows that have not changed are not encoded again."""

    def __init__(self, width: int, height: int) -> None:
        self._size, self._stride = (width, height), width * 4
        self._before = [bytearray(self._stride)] * height  # rows as mss gives them, BGRX
        self._rows = [bytes(1 + width * 3)] * height  # as PNG has them: a filter's number, 0 for none, and RGB
        self._png = b""

    def update(self, top: int, raw: bytearray) -> bool:
        """Replace the rows from `top` on by `raw` (BGRX); returns whether any of them differs."""
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
