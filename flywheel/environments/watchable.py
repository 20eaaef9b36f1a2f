"""What of an environment can be watched while it is played, beside the pictures of its steps."""

from __future__ import annotations

import asyncio
from typing import Protocol, runtime_checkable

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@runtime_checkable
class Watchable(Protocol):
    """An `Env` of a machine with a screen or services of its own."""

    async def screen(self) -> Streams:
        """The desktop, as VNC (RFB) speaks, to be watched and taken over. Raises EnvError where it has none."""

    async def service(self, port: int) -> Streams:
        """A connection to a port of the machine. Raises EnvError where nobody listens."""
