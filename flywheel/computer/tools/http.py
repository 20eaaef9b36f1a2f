"""A transport of MCP's SDK over streamable HTTP to a port inside of a machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpcore2
import httpx2
from mcp.client.streamable_http import streamable_http_client

from flywheel.computer.machine import Machine
from flywheel.computer.tools.line import MOST_BYTES, Line

_CONNECTIONS = 4


@contextlib.asynccontextmanager
async def http(machine: Machine, url: str, line: Line) -> AsyncIterator[tuple[Any, Any]]:
    """It has no deadlines of its own. GuestRefused (nobody listens), EnvError, OSError and what else goes wrong with
    the server come as groups of exceptions, from whatever is done with it."""
    async with (
        httpx2.AsyncClient(
            transport=_Inside(machine, line), timeout=None, trust_env=False, headers={"Accept-Encoding": "identity"}
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MOST_BYTES) as streams,
    ):
        yield streams


class _Inside(httpx2.AsyncBaseTransport):
    """Requests over the machine's streams."""

    def __init__(self, machine: Machine, line: Line) -> None:
        self._line = line
        self._pool = httpcore2.AsyncConnectionPool(max_connections=_CONNECTIONS, network_backend=_Ports(machine, line))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET" and "Last-Event-ID" not in request.headers:
            # A stream for what the server says unasked, which the SDK opens again as often as it is closed.
            return httpx2.Response(405)
        url = request.url
        target = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        answer = await self._pool.handle_async_request(
            httpcore2.Request(
                request.method, target, headers=request.headers.raw, content=request.stream,
                extensions=request.extensions,
            )
        )  # fmt: skip
        told = httpx2.Response(answer.status, headers=answer.headers, stream=_Body(answer))
        if told.headers.get("Content-Encoding", "identity") != "identity":
            await answer.aclose()
            self._line.blame("it packs its answer, which was not asked for")  # and may become any size
        return told

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, answer: httpcore2.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._answer.aiter_stream():
            yield part

    async def aclose(self) -> None:
        await self._answer.aclose()


class _Ports(httpcore2.AsyncNetworkBackend):
    """Connections to ports of the machine, whatever the host."""

    def __init__(self, machine: Machine, line: Line) -> None:
        self._machine, self._line = machine, line

    async def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> _Stream:
        self._line.message()
        return _Stream(*await self._machine.stream("/port", {"port": port}), self._line)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Stream(httpcore2.AsyncNetworkStream):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: Line) -> None:
        self._reader, self._writer, self._line = reader, writer, line

    async def read(self, max_bytes: int, *_: Any, **__: Any) -> bytes:
        data = await self._reader.read(max_bytes)
        self._line.take(data)
        return data

    async def write(self, buffer: bytes, *_: Any, **__: Any) -> None:
        self._writer.write(buffer)
        await self._writer.drain()

    async def aclose(self) -> None:
        self._writer.transport.abort()  # as in `stdio`

    def get_extra_info(self, info: str) -> Any:
        """Nothing is known of it but whether it has ended."""
        return self._reader.at_eof() if info == "is_readable" else None
