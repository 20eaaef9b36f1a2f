"""ASGI applications served by this process: the worlds, folders of files, `flywheel serve`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence

import uvicorn
from starlette.types import ASGIApp

from flywheel.errors import EnvError, FlywheelError

_START_S = 20.0


def free_port() -> socket.socket:
    """A socket at a free port of 127.0.0.1, for a `LocalServer`.

    The protocol is named so that asyncio turns Nagle's algorithm off on what it accepts: with it, each answer of a
    head and a body waits 40 ms for the other side's delayed acknowledgement.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    return listener


class LocalServer:
    """One uvicorn server in the running loop. grace_s: what answers still have when it is told to stop."""

    def __init__(self, application: ASGIApp, listeners: Sequence[socket.socket], grace_s: int = 1) -> None:
        self._listeners = list(listeners)
        self._server = _QuietServer(
            uvicorn.Config(
                application,
                interface="asgi3",
                log_level="warning",
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=grace_s,
            )
        )

    async def start(self, where: str = "", error: type[FlywheelError] = EnvError) -> asyncio.Task[None]:
        """Returns once it answers: the task that ends with the server.

        Raises `error`, naming `where`, if it ended, or has not begun to answer after `_START_S`.
        """
        self._running = asyncio.create_task(self._server.serve(sockets=self._listeners))
        try:
            async with asyncio.timeout(_START_S):
                while not self._server.started:
                    if self._running.done():
                        raise error("the server did not start", where=where) from self._running.exception()
                    await asyncio.sleep(0.01)
        except TimeoutError:
            self._running.cancel()
            raise error(f"the server did not answer within {_START_S:g} s", where=where) from None
        return self._running

    async def stop(self) -> None:
        self._server.should_exit = True
        await self._running


class _QuietServer(uvicorn.Server):
    """Leaves the process's signal handlers alone: they belong to the command."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
