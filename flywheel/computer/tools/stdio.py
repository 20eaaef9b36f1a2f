"""A transport of MCP's SDK over the input and output of a program inside of a machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import anyio
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from flywheel.computer.machine import Machine
from flywheel.computer.tools.line import Line, TooMuch

_CHUNK = 2**16
Heard = MemoryObjectReceiveStream[SessionMessage | Exception]
Said = MemoryObjectSendStream[SessionMessage]


@contextlib.asynccontextmanager
async def stdio(machine: Machine, words: Sequence[str], line: Line) -> AsyncIterator[tuple[Heard, Said]]:
    """The program starts, and ends with it. Raises GuestRefused where it does not start, EnvError and OSError where the
    machine is gone."""
    reader, writer = await machine.stream("/program", {"command": list(words)})
    incoming, heard = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    said, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read, reader, incoming, line)
            tasks.start_soon(_write, outgoing, writer, line)
            yield heard, said
            tasks.cancel_scope.cancel()
    finally:
        for stream in (incoming, heard, said, outgoing):
            stream.close()
        writer.transport.abort()  # and not close it, which would wait until a server has read what it never reads


async def _read(reader: asyncio.StreamReader, incoming: MemoryObjectSendStream, line: Line) -> None:
    """To the end of what is said, or of what may be."""
    with incoming, contextlib.suppress(TooMuch, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for text in _lines(reader, line):
            line.message()
            try:
                message = mcp_types.jsonrpc_message_adapter.validate_json(text, by_name=False)
            except ValueError:  # many programs print other things beside
                line.noise(text)
                continue
            await incoming.send(SessionMessage(message))
    line.over.set()


async def _lines(reader: asyncio.StreamReader, line: Line) -> AsyncIterator[bytes]:
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


async def _write(outgoing: MemoryObjectReceiveStream, writer: asyncio.StreamWriter, line: Line) -> None:
    with outgoing, contextlib.suppress(OSError):
        async for said in outgoing:
            text = said.message.model_dump_json(by_alias=True, exclude_unset=True)
            writer.write(text.encode("utf-8", "replace") + b"\n")
            await writer.drain()
    line.over.set()
