"""Connect the MCP SDK to servers inside of a machine, over HTTP or standard input and output, within limits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import httpcore2
import httpx2
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from flywheel.envs.computer.machine import Machine

# Limits on what a server sends, and why a connection to it has ended.

MAX_ANSWER_BYTES = 4 * 2**20  # to one request, in one message or in many
MAX_ANSWER_MESSAGES = 1000
MAX_ANSWER_VALUES = 200_000  # of JSON, counted by the signs between them: reading a million of them takes seconds
_VALUE_SIGNS = (b",", b"[", b"{")
_MAX_NOISE_CHARACTERS = 80  # characters of what was no message


class AnswerTooLarge(Exception):
    """A server says more than it may."""


class McpConnection:
    """One connection. over: it has ended, or must. fault: what the server did that ended it; "" for nothing."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.fault = ""
        self._noise = ""
        self.refill()

    def refill(self) -> None:
        """Restore the limit, at each request."""
        self._bytes, self._messages, self._values = MAX_ANSWER_BYTES, MAX_ANSWER_MESSAGES, MAX_ANSWER_VALUES

    def take(self, data: bytes) -> None:
        """Count bytes from the server. Raises AnswerTooLarge, and ends the connection, above the limit."""
        self._bytes -= len(data)
        self._values -= sum(map(data.count, _VALUE_SIGNS))
        if self._bytes < 0:
            self.blame(f"it says more than {MAX_ANSWER_BYTES} bytes at once")
        if self._values < 0:
            self.blame(f"it says more than {MAX_ANSWER_VALUES} values at once")

    def message(self) -> None:
        """Count a message from the server. Raises AnswerTooLarge, and ends the connection, above the limit."""
        self._messages -= 1
        if self._messages < 0:
            self.blame(f"it says more than {MAX_ANSWER_MESSAGES} messages at once")

    def blame(self, why: str) -> None:
        """End the connection. Raises AnswerTooLarge."""
        self.fault = self.fault or why
        self.over.set()
        raise AnswerTooLarge(why)

    def noise(self, said: bytes) -> None:
        """Record output that is no message of MCP."""
        self._noise = " ".join(said[: 4 * _MAX_NOISE_CHARACTERS].decode("utf-8", "replace").split())[
            :_MAX_NOISE_CHARACTERS
        ]

    @property
    def about(self) -> str:
        """What may explain that there is no answer; "" for nothing."""
        return self.fault or (f"it says what is not MCP: {self._noise!r}" if self._noise else "")


# Transport of MCP's SDK over streamable HTTP, to a port inside of a machine.

_MAX_CONNECTIONS = 4


@contextlib.asynccontextmanager
async def open_http_transport(machine: Machine, url: str, line: McpConnection) -> AsyncIterator[tuple[Any, Any]]:
    """Open a transport to the server at `url` in the machine; it has no deadlines of its own.

    MachineRefused (nobody listens), EnvError, OSError and other faults of the server come as exception groups, from any
    use of it.
    """
    async with (
        httpx2.AsyncClient(
            transport=_MachineTransport(machine, line),
            timeout=None,
            trust_env=False,
            headers={"Accept-Encoding": "identity"},
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_ANSWER_BYTES) as streams,
    ):
        yield streams


class _MachineTransport(httpx2.AsyncBaseTransport):
    """Requests over the machine's streams."""

    def __init__(self, machine: Machine, line: McpConnection) -> None:
        self._line = line
        self._pool = httpcore2.AsyncConnectionPool(
            max_connections=_MAX_CONNECTIONS, network_backend=_MachineNetwork(machine, line)
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET" and "Last-Event-ID" not in request.headers:
            # The stream of the server's own messages, which the SDK opens again as often as it is closed.
            return httpx2.Response(405)
        url = request.url
        target = httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        answer = await self._pool.handle_async_request(
            httpcore2.Request(
                request.method, target, headers=request.headers.raw, content=request.stream,
                extensions=request.extensions,
            )
        )  # fmt: skip
        response = httpx2.Response(answer.status, headers=answer.headers, stream=_ResponseStream(answer))
        if response.headers.get("Content-Encoding", "identity") != "identity":
            await answer.aclose()
            self._line.blame("it packs its answer, which was not asked for")  # and may become any size
        return response

    async def aclose(self) -> None:
        await self._pool.aclose()


class _ResponseStream(httpx2.AsyncByteStream):
    def __init__(self, answer: httpcore2.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._answer.aiter_stream():
            yield part

    async def aclose(self) -> None:
        await self._answer.aclose()


class _MachineNetwork(httpcore2.AsyncNetworkBackend):
    """Connections to ports of the machine, whatever the host."""

    def __init__(self, machine: Machine, line: McpConnection) -> None:
        self._machine, self._line = machine, line

    async def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> _MachineStream:
        self._line.message()
        return _MachineStream(*await self._machine.stream("/port", {"port": port}), self._line)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _MachineStream(httpcore2.AsyncNetworkStream):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: McpConnection) -> None:
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


# Transport of MCP's SDK over standard input and output of a program inside of a machine.

_CHUNK = 2**16
ReceivedMessages = MemoryObjectReceiveStream[SessionMessage | Exception]
SentMessages = MemoryObjectSendStream[SessionMessage]


@contextlib.asynccontextmanager
async def open_stdio_transport(
    machine: Machine, words: Sequence[str], line: McpConnection
) -> AsyncIterator[tuple[ReceivedMessages, SentMessages]]:
    """Start a program in the machine and open a transport over its input and output; it ends with the block.

    words: the command. Raises MachineRefused where it does not start, EnvError and OSError where the machine is gone.
    """
    reader, writer = await machine.stream("/program", {"command": list(words)})
    incoming, heard = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    said, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read_messages, reader, incoming, line)
            tasks.start_soon(_write_messages, outgoing, writer, line)
            yield heard, said
            tasks.cancel_scope.cancel()
    finally:
        for stream in (incoming, heard, said, outgoing):
            stream.close()
        writer.transport.abort()  # and not close it, which would wait until a server has read what it never reads


async def _read_messages(reader: asyncio.StreamReader, incoming: MemoryObjectSendStream, line: McpConnection) -> None:
    """To the end of what is said, or of what may be."""
    with incoming, contextlib.suppress(AnswerTooLarge, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for text in _split_lines(reader, line):
            line.message()
            try:
                message = mcp_types.jsonrpc_message_adapter.validate_json(text, by_name=False)
            except ValueError:  # many programs print other things beside
                line.noise(text)
                continue
            await incoming.send(SessionMessage(message))
    line.over.set()


async def _split_lines(reader: asyncio.StreamReader, line: McpConnection) -> AsyncIterator[bytes]:
    rest = bytearray()
    while data := await reader.read(_CHUNK):
        line.take(data)
        rest += data
        if b"\n" in data:
            *whole, rest = rest.split(b"\n")
            for text in whole:
                if text.strip():
                    yield bytes(text)
    if rest:
        line.noise(bytes(rest))


async def _write_messages(
    outgoing: MemoryObjectReceiveStream, writer: asyncio.StreamWriter, line: McpConnection
) -> None:
    with outgoing, contextlib.suppress(OSError):
        async for said in outgoing:
            text = said.message.model_dump_json(by_alias=True, exclude_unset=True)
            writer.write(text.encode("utf-8", "replace") + b"\n")
            await writer.drain()
    line.over.set()
