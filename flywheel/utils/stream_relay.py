"""Relay bytes between a port and a Unix socket file; can also run as a program.

As a program, `stream_relay.py SOCKET PORT COMMAND ...`, it makes a server reachable that runs in an isolated network:
it listens at the socket file, starts the server by COMMAND, relays to its PORT, and ends when the server ends. It needs
only Python's standard library.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from functools import partial

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_CHUNK = 2**16


async def relay_connection(
    connect: Callable[[], Awaitable[Streams]], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Relay bytes between an accepted connection and a new one, in both directions, until the new one ends.

    connect: opens the new connection; if it raises OSError, the accepted one is closed and nothing is raised. reader,
    writer: of the accepted connection. Both connections are closed at the end; what the accepted one sends later is
    dropped.
    """
    try:
        theirs, ours = await connect()
    except OSError:
        writer.close()
        return
    there, back = asyncio.create_task(_copy_stream(reader, ours)), asyncio.create_task(_copy_stream(theirs, writer))
    try:
        await back
    finally:
        for task in (there, back):
            task.cancel()
        for end in (writer, ours):
            end.close()
        await asyncio.gather(there, back, return_exceptions=True)


async def _copy_stream(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK):
            target.write(data)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()


async def _serve_socket_file(door: str, port: int, command: list[str]) -> None:
    connect = partial(asyncio.open_connection, "127.0.0.1", port)
    async with await asyncio.start_unix_server(partial(relay_connection, connect), door):
        server = await asyncio.create_subprocess_exec(*command)
        code = await server.wait()
        os._exit(code if code >= 0 else 128 - code)  # at once: bytes that are still relayed have no reader


if __name__ == "__main__":
    asyncio.run(_serve_socket_file(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
