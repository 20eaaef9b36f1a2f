"""What a server may say until it is asked again, and why the connection to it has ended."""

from __future__ import annotations

import asyncio

MOST_BYTES = 4 * 2**20  # to one request, in one message or in many
MOST_MESSAGES = 1000
MOST_VALUES = 200_000  # of JSON, counted by the signs between them: reading a million of them takes seconds
_SIGNS = (b",", b"[", b"{")
_SHOWN = 80  # characters of what was no message


class TooMuch(Exception):
    """A server says more than it may."""


class Line:
    """One connection. over: it has ended, or must. fault: what the server did that ended it; "" for nothing."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.fault = ""
        self._noise = ""
        self.refill()

    def refill(self) -> None:
        """It is asked something."""
        self._bytes, self._messages, self._values = MOST_BYTES, MOST_MESSAGES, MOST_VALUES

    def take(self, data: bytes) -> None:
        """What it says. Raises TooMuch, and ends the connection, where that is more than it may."""
        self._bytes -= len(data)
        self._values -= sum(map(data.count, _SIGNS))
        if self._bytes < 0:
            self.blame(f"it says more than {MOST_BYTES} bytes at once")
        if self._values < 0:
            self.blame(f"it says more than {MOST_VALUES} values at once")

    def message(self) -> None:
        """As `take`, of a message."""
        self._messages -= 1
        if self._messages < 0:
            self.blame(f"it says more than {MOST_MESSAGES} messages at once")

    def blame(self, why: str) -> None:
        """End the connection. Raises TooMuch."""
        self.fault = self.fault or why
        self.over.set()
        raise TooMuch(why)

    def noise(self, said: bytes) -> None:
        """It said what is no message of MCP."""
        self._noise = " ".join(said[: 4 * _SHOWN].decode("utf-8", "replace").split())[:_SHOWN]

    @property
    def about(self) -> str:
        """What may explain that there is no answer; "" for nothing."""
        return self.fault or (f"it says what is not MCP: {self._noise!r}" if self._noise else "")
