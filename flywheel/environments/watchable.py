"""What of an environment can be watched while it is played, beside the results of its steps, and taken over.

What a person does there is no step of the agent's: nothing of it is recorded or scored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from flywheel.environments.gestures import Gesture

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@runtime_checkable
class Watchable(Protocol):
    """An `Env` of a machine with terminals, files and services, and maybe a screen. All raise EnvError where what is
    asked for is not there."""

    async def screen(self) -> Streams:
        """The desktop, as VNC (RFB) speaks."""

    async def service(self, port: int) -> Streams:
        """A connection to a port of the machine."""

    async def terminal(self) -> Streams:
        """The agent's terminal: what is printed there, and keys for the program that runs (`guest/ptys.py`)."""

    async def shell(self, rows: int, columns: int) -> Streams:
        """A shell of the watcher's own in the same machine, spoken to as `terminal`."""

    async def listed(self, path: str) -> Mapping[str, Any]:
        """A folder, counted from the home: `entries` with `name`, `kind`, `bytes`; how many `more`."""

    async def read(self, path: str, most: int) -> bytes:
        """A file; of one with more than `most` bytes, more than `most` bytes that are not all of it."""

    async def write(self, path: str, content: bytes) -> None:
        """A file, made or written over."""


class Pictures:
    """Pictures (PNG or JPEG) for one watcher: the newest. What a slow one has not taken is left out."""

    def __init__(self) -> None:
        self._newest: bytes | None = None
        self._changed = asyncio.Event()

    def put(self, picture: bytes) -> None:
        self._newest = picture
        self._changed.set()

    async def next(self) -> bytes:
        """The newest, once there is one that was not taken."""
        await self._changed.wait()
        self._changed.clear()
        return self._newest


@runtime_checkable
class Live(Protocol):
    """An `Env` whose picture can be followed, and which a person's mouse and keys can reach."""

    touch: bool  # it has fingers for a mouse

    def watch(self) -> AbstractContextManager[Pictures]:
        """Pictures as they change, until the block ends. Nothing is done for them while nobody watches."""

    async def visit(self, gestures: Sequence[Gesture], ms: float) -> list[str]:
        """Carry out a person's gestures, then let `ms` of the environment's time pass; what is to be told of them.
        Not while a step is under way, and not to be cancelled: the environment would be broken. Raises EnvError."""

    async def leave(self) -> None:
        """The person lets go of all that is held."""
