"""What a terminal was told last, for whoever watches it: a slow watcher misses some of it, and holds up nobody."""

from __future__ import annotations

import threading

_MOST = 2**16  # bytes that are kept
_ANEW = b"\x1bc"  # the terminal begins anew


class Tape:
    def __init__(self) -> None:
        self._kept, self._end = bytearray(), 0  # the last bytes; how many there were in all
        self._changed = threading.Condition()

    def add(self, data: bytes) -> None:
        with self._changed:
            self._kept += data
            del self._kept[:-_MOST]
            self._end += len(data)
            self._changed.notify_all()

    def since(self, place: int, wait_s: float) -> tuple[bytes, int]:
        """What came after so many bytes, and how many there are then; b"" where nothing did in `wait_s` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._end > place, wait_s)
            begin = self._end - len(self._kept)
            told = bytes(self._kept[max(0, place - begin) :])
            return (_ANEW if begin > place else b"") + told, self._end
