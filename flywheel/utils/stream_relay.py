"""Relay bytes between a port and a socket file; also runs as a program of its own.

As a program it makes a server reachable whose network has no way out: it listens at the socket file, starts the server
and ends with it: `stream_relay.py SOCKET PORT COMMAND ...`. It needs nothing but Python.
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
    """Relay bytes between an accepted connection and a new one, both ways, until the new one ends.

    connect: opens the new connection. reader, writer: of the accepted one; closed at the end, and at once where
    `connect` raises OSError, which is not raised on. What the accepted side still sends after the end is dropped.
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
        os._exit(code if code >= 0 else 128 - code)  # at once: nothing reads what is still relayed


if __name__ == "__main__":
    asyncio.run(_serve_socket_file(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
