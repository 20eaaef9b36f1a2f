"""Bytes handed on: to a port of this machine, and to the input and output of a program that is started for it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import threading

from server import Hijack, Refused, Request, Routes

_CHUNK = 2**16
_CONNECT_S = 5.0


def routes(folder: str, environment: dict[str, str]) -> Routes:
    def port(request: Request) -> Hijack:
        number = int(request.number("port", 1, 65535, 0))
        try:
            there = socket.create_connection(("127.0.0.1", number), _CONNECT_S)
        except OSError as error:
            raise Refused(f"nothing answers at port {number}: {error}", 502) from None
        there.settimeout(None)
        return Hijack(lambda here: joined(here, there))

    def program(request: Request) -> Hijack:
        words = request.json().get("command")
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise Refused("command is not a list of words")
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
                cwd=folder, env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise Refused(f"{words[0]} does not start: {error.strerror}") from None
        return Hijack(lambda here: _piped(here, process))

    return {("POST", "/port"): port, ("POST", "/program"): program}


def joined(here: socket.socket, there: socket.socket) -> None:
    """Two connections, until both ways have ended."""
    here.settimeout(None)
    with there:
        back = threading.Thread(target=_copied, args=(there, here), daemon=True)
        back.start()
        _copied(here, there)
        back.join()


def _piped(here: socket.socket, process: subprocess.Popen) -> None:
    """Until either end closes: a program whose user is gone is ended."""
    here.settimeout(None)

    def back() -> None:
        _copy(process.stdout.read, here)
        _shut(here, socket.SHUT_RDWR)

    threading.Thread(target=back, daemon=True).start()
    os.set_blocking(process.stdin.fileno(), False)
    try:
        while (data := here.recv(_CHUNK)) and _fed(process.stdin.fileno(), data, here):
            pass
    except OSError:
        pass
    process.kill()
    process.wait()


def _fed(target: int, data: bytes, here: socket.socket) -> bool:
    """Whether a program has taken it all, which may never read, before its user was gone."""
    poll = select.poll()
    poll.register(target, select.POLLOUT)
    poll.register(here, getattr(select, "POLLRDHUP", select.POLLHUP))
    while data:
        if any(ready == here.fileno() for ready, _ in poll.poll()):
            return False
        data = data[os.write(target, data) :]
    return True


def _copied(source: socket.socket, target: socket.socket) -> None:
    """Its end too."""
    _copy(source.recv, target)
    _shut(target, socket.SHUT_WR)


def _copy(read, target: socket.socket) -> None:
    try:
        while data := read(_CHUNK):
            target.sendall(data)
    except OSError:
        pass


def _shut(end: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(how)
