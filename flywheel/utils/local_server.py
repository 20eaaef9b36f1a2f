"""Serve ASGI applications on this machine: pages of tasks, folders of files, `flywheel model serve`, Prefect's server.

Any web page in the engineer's browser can send requests to these servers, also under a host name of its own that
resolves to this machine (DNS rebinding). So each server checks the headers Host and Origin.
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
    """Wrap the ASGI `application` so that other sites' pages cannot use it (DNS rebinding, cross-site requests).

    ports: those it is served at. Requests whose Host is no loopback name with one of them are refused with 421, with
    another site's Origin with 403, and WebSockets closed with 1008. A missing or null origin, such as a sandboxed
    frame's, is accepted: such a page cannot read the response.
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
    """Run one uvicorn server for the ASGI `application` in the running event loop, from `start` to `stop`.

    listeners: bound sockets, which it closes. If all have loopback addresses, `OwnHostOnly` checks the requests.
    grace_s: seconds that running requests get when the server stops.
    """

    def __init__(self, application: ASGIApp, listeners: Sequence[socket.socket], grace_s: int = 1) -> None:
        self._listeners = list(listeners)
        addresses = [listener.getsockname()[:2] for listener in listeners]
        # A server for other machines has an API key, and does not know its host names.
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
        """Start the server; once it answers, return the task that ends with it.

        where: name of the server, for the message. error: class of the error. Raises `error` where the server ends, or
        does not answer within 20 seconds.
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
        """Stop the server and wait for its end: running requests get `grace_s`.

        Call it only after `start`. Raises the error that ended the server, if one did.
        """
        self._server.should_exit = True
        await self._running


class _QuietServer(uvicorn.Server):
    """Run uvicorn without its signal handlers: the command has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
