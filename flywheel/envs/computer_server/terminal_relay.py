"""Relay terminals to a person who watches a machine: the agent's own, and a separate shell for the person.

Output is sent as it is. A watcher sends messages, each of a kind (one byte), a length (four bytes, big-endian) and so
many bytes: keys; a size (rows and columns, two bytes each); or how many bytes of output were shown (four bytes). While
`_AHEAD` bytes are sent and not shown, no more are sent: a program that prints without end waits for its reader.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import socket
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

from server import ApiRequest, ConnectionTakeover, RequestRefused, Routes
from shell import Shell, build_terminal_command, type_into_terminal

_KEYS, _SIZE, _SHOWN = range(3)
_AHEAD, _CHUNK, _LONGEST = 2**19, 2**16, 2**20
_LOOK_S = 1.0
_BASH = ("bash", "--rcfile", str(Path(__file__).with_name("visitor.sh")), "-i")


def terminal_routes(shell: Shell, folder: str, environment: dict[str, str]) -> Routes:
    """Return the routes that connect a watcher to the agent's terminal (`shell`), and to a new shell of the watcher's.

    folder, environment: of the new shell.
    """

    def watch(request: ApiRequest) -> ConnectionTakeover:
        return ConnectionTakeover(lambda here: _relay_agent_terminal(_WatcherConnection(here), shell))

    def own(request: ApiRequest) -> ConnectionTakeover:
        size = [int(request.number(name, 1, 1000, default)) for name, default in (("rows", 24), ("columns", 80))]
        try:
            begun = _OwnShell(size, folder, environment)
        except OSError as error:
            raise RequestRefused(f"no shell begins: {error.strerror}", 503) from None
        return ConnectionTakeover(lambda here: begun.serve(_WatcherConnection(here)))

    return {("POST", "/terminal/watch"): watch, ("POST", "/terminal/own"): own}


class _WatcherConnection:
    """Hold the connection of a person who watches."""

    def __init__(self, here: socket.socket) -> None:
        here.settimeout(None)
        self._here, self._ahead, self._moved = here, 0, threading.Condition()
        self.open = True

    def send(self, data: bytes) -> None:
        """Send output, once fewer than `_AHEAD` bytes are sent and not shown."""
        with self._moved:
            self._moved.wait_for(lambda: self._ahead < _AHEAD or not self.open)
            self._ahead += len(data)
        if self.open:
            try:
                self._here.sendall(data)
            except OSError:
                self.close()

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Yield keys and sizes (kind, body) until the connection is closed by either side."""
        try:
            while head := self._exactly(5):
                kind, length = struct.unpack(">BI", head)
                if length > _LONGEST:
                    break
                body = self._exactly(length)
                if kind == _SHOWN and length == 4:
                    with self._moved:
                        self._ahead = max(0, self._ahead - struct.unpack(">I", body)[0])
                        self._moved.notify_all()
                else:
                    yield kind, body
        finally:
            self.close()

    def close(self) -> None:
        with self._moved:
            self.open = False
            self._moved.notify_all()
        with contextlib.suppress(OSError):
            self._here.shutdown(socket.SHUT_RDWR)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                part = self._here.recv(count - len(data))
            except OSError:
                part = b""
            if not part:
                return b""
            data += part
        return bytes(data)


def _relay_agent_terminal(line: _WatcherConnection, shell: Shell) -> None:
    def out() -> None:
        place = 0
        while line.open:
            data, place = shell.tape.since(place, _LOOK_S)
            if data:
                line.send(data)

    threading.Thread(target=out, daemon=True).start()
    for kind, body in line.messages():
        if kind == _KEYS:
            shell.type(body)


class _OwnShell:
    """Run a shell of the watcher's own, which ends with the connection."""

    def __init__(self, size: list[int], folder: str, environment: dict[str, str]) -> None:
        self._terminal, slave = pty.openpty()
        self._resize(*size)
        try:
            self._process = subprocess.Popen(
                build_terminal_command(slave, *_BASH), stdin=slave, stdout=slave, stderr=slave, cwd=folder,
                env={**environment, "TERM": "xterm-256color"}, start_new_session=True,
            )  # fmt: skip
        except OSError:
            os.close(self._terminal)
            raise
        finally:
            os.close(slave)

    def serve(self, line: _WatcherConnection) -> None:
        reading = threading.Thread(target=self._out, args=(line,), daemon=True)
        reading.start()
        for kind, body in line.messages():
            if kind == _KEYS:
                type_into_terminal(self._terminal, body)
            elif kind == _SIZE and len(body) == 4:
                self._resize(*struct.unpack(">HH", body))
        self._process.kill()
        self._process.wait()
        reading.join()
        os.close(self._terminal)

    def _out(self, line: _WatcherConnection) -> None:
        """Send output until the shell has ended: programs that it started may hold the terminal open for ever."""
        shell = os.pidfd_open(self._process.pid)
        with contextlib.suppress(OSError):
            while self._terminal in select.select([self._terminal, shell], [], [])[0]:
                line.send(os.read(self._terminal, _CHUNK))
        os.close(shell)
        line.close()

    def _resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", max(1, rows), max(1, columns), 0, 0))
