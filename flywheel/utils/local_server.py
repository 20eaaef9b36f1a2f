"""Serve ASGI applications on this machine: the worlds, folders of files, `flywheel model serve`, Prefect's server.

A web page that the engineer's own browser has open can send requests to them too, by a name of its own that it gives
an address of this machine. So each answers to its own host and origin alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterator, Sequence

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from flywheel.utils.errors import EnvError, FlywheelError

_START_S = 20.0


class OwnHostOnly:
    """Let `application` be asked by an address of this machine and one of its `ports`, and by its own pages alone.

    What comes by another name, or from another site's page, is refused with 421 or 403. Pages without an origin, such
    as a sandboxed frame's, are let through: they cannot read an answer.
    """

    def __init__(self, application: ASGIApp, ports: Sequence[int]) -> None:
        self._application = application
        ends = [end for port in ports for end in ((f":{port}", "") if port == 80 else (f":{port}",))]
        self._own = {f"{host}{end}".encode() for host in ("127.0.0.1", "localhost", "[::1]") for end in ends}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and (status := self._refusal(dict(scope["headers"]))):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
            return
        await self._application(scope, receive, send)

    def _refusal(self, headers: dict[bytes, bytes]) -> int:
        host, origin = headers.get(b"host", b"").lower(), headers.get(b"origin", b"null").lower()
        if host not in self._own:
            return 421
        return 0 if origin == b"null" or origin.removeprefix(b"http://") in self._own else 403


class LocalServer:
    """Run one uvicorn server in the running loop. application: what it serves; listeners: sockets, bound already.

    Where all are of this machine alone it answers as `OwnHostOnly`. grace_s: seconds that answers still have when it is
    told to stop.
    """

    def __init__(self, application: ASGIApp, listeners: Sequence[socket.socket], grace_s: int = 1) -> None:
        self._listeners = list(listeners)
        addresses = [listener.getsockname()[:2] for listener in listeners]
        # A server for others has a key, and does not know its names.
        if all(ipaddress.ip_address(host).is_loopback for host, _ in addresses):
            application = OwnHostOnly(application, [port for _, port in addresses])
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
        """Start the server and return, once it answers, the task that ends with it.

        where: what is served, for the message. error: kind of error. Raises `error` where the server ended, or does not
        answer within `_START_S`.
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
        """Stop the server and wait for its end."""
        self._server.should_exit = True
        await self._running


class _QuietServer(uvicorn.Server):
    """Leaves the process's signal handlers alone: they belong to the command."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
