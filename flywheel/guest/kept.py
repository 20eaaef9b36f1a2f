"""What is kept of an output: its beginning and its end."""

from __future__ import annotations

from collections.abc import Callable

_TOLD = 8192  # bytes at most in which an output's end is told


class Kept:
    """Bytes, half of the limit from either end."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._first, self._last, self._left_out = bytearray(), bytearray(), 0

    def add(self, data: bytes, mark: bytes = b"") -> bytes:
        """More of it. mark: the word of the sequence (OSC) by which its end is told; what is told in it, b"" before."""
        before = len(self._last)
        self._last += data
        told = b""
        if mark and (at := self._last.find(b"\x1b]%s " % mark, max(0, before - _TOLD))) >= 0:
            end = self._last.find(b"\x07", at)
            if end >= 0:
                told = bytes(self._last[at + len(mark) + 3 : end])
                del self._last[at:]
        if len(self._last) > 2 * (self._half + _TOLD):
            self._cut(self._half + _TOLD)  # what may be a part of the mark stays
        return told

    def taken(self, shown: Callable[[bytes], str]) -> str:
        """What was kept since the last time, with a line about what its middle lacks. shown: bytes as a text."""
        if len(self._last) > self._half and len(self._first) + len(self._last) > 2 * self._half:
            self._cut(self._half)
        first, last, left_out = bytes(self._first), bytes(self._last), self._left_out
        self._first, self._last, self._left_out = bytearray(), bytearray(), 0
        if not left_out:
            return shown(first + last)
        return f"{shown(first)}\n[... {left_out} bytes left out ...]\n{shown(last)}"

    def _cut(self, keep: int) -> None:
        """All but the last `keep` bytes are its beginning, or left out."""
        over = len(self._last) - keep
        room = min(over, self._half - len(self._first))
        self._first += self._last[:room]
        self._left_out += over - room
        del self._last[:over]
