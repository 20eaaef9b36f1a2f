"""Pictures of the screen, taken when it has come to rest, by mss."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import mss
from mss.exception import ScreenShotError
from server import Refused

_AT_ONCE = 32  # rows: memory for all of them would be asked of the system anew each time
_LEVEL = 1  # of zlib: a picture of a desktop is mostly plain, and time is what counts


class Screens:
    """Of one X display, or of the machine's own where none is named.

    drawn: whether anything was drawn since it was asked last; where there is none, pictures are compared. It raises
    Refused where the display is gone: the library that X pictures are taken with ends this process in that case, so it
    is asked before each picture.
    """

    def __init__(self, display: str = "", drawn: Callable[[], bool] | None = None) -> None:
        # mss's newer back-ends do not find Xvnc's visual: it tells the depth of 24 bits twice.
        options = {"display": display, "backend": "xlib"} if display else {}
        self._drawn, self._encoder = drawn, _Encoder()
        self._thread = ThreadPoolExecutor(1)  # one picture at a time: mss works in the thread that it began in
        with _told():
            self._source = self._thread.submit(mss.MSS, **options).result()

    def take(self) -> bytes:
        """A PNG of the screen as it is now."""
        return self._thread.submit(lambda: self._encoder.png(self._grab())).result()

    def settled(self, rest: Callable[[float], bool], after_ms: float, within_ms: float) -> bytes:
        """A PNG of the screen when nothing moves: after_ms have passed, its programs are at rest, and nothing was drawn
        while the picture was made. After within_ms the picture is taken whatever moves.

        rest: waits until the programs are at rest or that time (`time.monotonic`) has come.
        """
        return self._thread.submit(self._settled, rest, after_ms, within_ms).result()

    def _settled(self, rest: Callable[[float], bool], after_ms: float, within_ms: float) -> bytes:
        until = time.monotonic() + within_ms / 1000
        time.sleep(after_ms / 1000)
        rest(until)
        while True:
            shot = self._grab()
            png = self._encoder.png(shot)  # takes long enough for whatever moves to be seen
            if not self._differs(shot) or time.monotonic() > until:
                return png
            rest(until)

    def _grab(self):
        if self._drawn:
            self._drawn()
        with _told():
            return self._source.grab(self._source.monitors[0])

    def _differs(self, shot) -> bool:
        return self._drawn() if self._drawn else self._grab().raw != shot.raw


class _Encoder:
    """To PNG. Most rows are as they were in the picture before, and are not made anew."""

    def __init__(self) -> None:
        self._before: list[bytearray] = []  # rows as mss gives them, BGRX
        self._rows: list[bytes] = []  # as PNG has them: a filter's number, 0 for none, and RGB

    def png(self, shot) -> bytes:
        (width, height), stride = shot.size, shot.size[0] * 4
        if len(self._rows) != height or len(self._before[0]) != stride:
            self._before, self._rows = [bytearray(stride)] * height, [bytes(1 + width * 3)] * height
        raw = shot.raw
        for number, before in enumerate(self._before):
            row = raw[number * stride : (number + 1) * stride]
            if row != before:
                self._before[number], self._rows[number] = row, _rgb(row)
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        packer = zlib.compressobj(_LEVEL)
        parts = [packer.compress(b"".join(self._rows[at : at + _AT_ONCE])) for at in range(0, height, _AT_ONCE)]
        data = b"".join(parts) + packer.flush()
        return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


class _told:
    """A display that is gone is an answer."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind, error, _) -> None:
        if isinstance(error, ScreenShotError):
            raise Refused(f"no picture of the screen: {error}", 503) from None


def _rgb(row: bytearray) -> bytes:
    out = bytearray(1 + len(row) // 4 * 3)
    out[1::3], out[2::3], out[3::3] = row[2::4], row[1::4], row[0::4]
    return bytes(out)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
