"""Find ports for tests that must know a port's number before anything listens there, and watch sockets be closed."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

import pytest

_DRAWN_BY_THE_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def find_free_ports(count: int = 1) -> int:
    """Return the first of `count` free ports in a row.

    They lie below the range that the kernel draws from for port 0 and for outgoing connections: nothing that runs
    beside this test comes upon one of them by chance.
    """
    upper = int(_DRAWN_BY_THE_KERNEL.read_text().split()[0]) if _DRAWN_BY_THE_KERNEL.exists() else 32_768
    draw = random.SystemRandom()
    while True:
        first = draw.randrange(10_000, upper - count)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + count):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


def remember_sockets(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[socket.socket]:
    """Let the function `name` of `owner` add each socket that it returns to a list, and return that list."""
    make, made = getattr(owner, name), []

    def remembered(*arguments: object) -> socket.socket:
        made.append(make(*arguments))
        return made[-1]

    monkeypatch.setattr(owner, name, remembered)
    return made
