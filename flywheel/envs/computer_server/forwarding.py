"""Forward bytes between connections, ports, programs and unix sockets of this machine."""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import select
import socket
import subprocess
import threading
import time

from server import ApiRequest, ConnectionTakeover, RequestRefused, Routes

# Relaying bytes: to a port of this machine, and to the input and output of a program that is started for it.

_CHUNK = 2**16
_CONNECT_S = 5.0


def stream_routes(folder: str, environment: dict[str, str]) -> Routes:
    def port(request: ApiRequest) -> ConnectionTakeover:
        number = int(request.number("port", 1, 65535, 0))
        try:
            there = socket.create_connection(("127.0.0.1", number), _CONNECT_S)
        except OSError as error:
            raise RequestRefused(f"nothing answers at port {number}: {error}", 502) from None
        there.settimeout(None)
        return ConnectionTakeover(lambda here: relay_until_both_end(here, there))

    def program(request: ApiRequest) -> ConnectionTakeover:
        words = request.json().get("command")
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise RequestRefused("command is not a list of words")
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
                cwd=folder, env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise RequestRefused(f"{words[0]} does not start: {error.strerror}") from None
        return ConnectionTakeover(lambda here: _relay_program(here, process))

    return {("POST", "/port"): port, ("POST", "/program"): program}


def relay_until_both_end(here: socket.socket, there: socket.socket) -> None:
    """Relay bytes between two connections until both directions have ended."""
    here.settimeout(None)
    with there:
        back = threading.Thread(target=_copy_and_shut, args=(there, here), daemon=True)
        back.start()
        _copy_and_shut(here, there)
        back.join()


def _relay_program(here: socket.socket, process: subprocess.Popen) -> None:
    """Until either end closes: a program whose user is gone is ended."""
    here.settimeout(None)

    def back() -> None:
        _copy(process.stdout.read, here)
        _shut_down(here, socket.SHUT_RDWR)

    threading.Thread(target=back, daemon=True).start()
    os.set_blocking(process.stdin.fileno(), False)
    try:
        while (data := here.recv(_CHUNK)) and _feed_program(process.stdin.fileno(), data, here):
            pass
    except OSError:
        pass
    process.kill()
    process.wait()


def _feed_program(target: int, data: bytes, here: socket.socket) -> bool:
    """Tell whether a program has taken it all, which may never read, before its user was gone."""
    poll = select.poll()
    poll.register(target, select.POLLOUT)
    poll.register(here, getattr(select, "POLLRDHUP", select.POLLHUP))
    while data:
        if any(ready == here.fileno() for ready, _ in poll.poll()):
            return False
        data = data[os.write(target, data) :]
    return True


def _copy_and_shut(source: socket.socket, target: socket.socket) -> None:
    """Its end too."""
    _copy(source.recv, target)
    _shut_down(target, socket.SHUT_WR)


def _copy(read, target: socket.socket) -> None:
    try:
        while data := read(_CHUNK):
            target.sendall(data)
    except OSError:
        pass


def _shut_down(end: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(how)


# Requests to a service of this machine, within a limit of bytes and a deadline.

_LONGEST_S, _MAX_BODY_BYTES = 10.0, 2**20
_PART = 2**16


class _ReceivedBytes:
    """Bytes that were received, as http.client wants them."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._data)


def port_routes() -> Routes:
    def get(request: ApiRequest) -> dict:
        number, path = int(request.number("port", 1, 65535, 0)), request.text("path")
        if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
            raise RequestRefused("path is not the path of an address")
        limit = int(request.number("limit", 1, _MAX_BODY_BYTES, _PART))
        return {"body": _get_body(number, path, request.number("wait_s", 0, _LONGEST_S, 1.0), limit)}

    return {("POST", "/port/get"): get}


def _get_body(port: int, path: str, wait_s: float, limit: int) -> str | None:
    """The body of a 200; None where there is none, or it is not whole in time or within the limit."""
    until, data = time.monotonic() + wait_s, bytearray()
    try:
        with socket.create_connection(("127.0.0.1", port), wait_s) as there:
            there.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            while len(data) <= limit:
                there.settimeout(max(0.001, until - time.monotonic()))
                part = there.recv(_PART)
                if not part:
                    break
                data += part
                if time.monotonic() > until:
                    return None
        answer = http.client.HTTPResponse(_ReceivedBytes(bytes(data)))
        answer.begin()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return None
    return body.decode("utf-8", "replace") if answer.status == 200 and len(body) <= limit else None


# Ports of this machine that lead to unix sockets, at which services from outside are mounted.


def forward_routes() -> Routes:
    def forward(request: ApiRequest) -> dict:
        number, path = int(request.number("port", 1, 65535, 0)), request.text("path")
        try:
            listening = socket.create_server(("127.0.0.1", number), backlog=64)
        except OSError as error:
            raise RequestRefused(f"port {number} cannot be had: {error.strerror}", 409) from None
        threading.Thread(target=_accept_connections, args=(listening, path), daemon=True).start()
        return {}

    return {("POST", "/forward"): forward}


def _accept_connections(listening: socket.socket, path: str) -> None:
    while True:
        here, _ = listening.accept()
        threading.Thread(target=_lead_to_socket, args=(here, path), daemon=True).start()


def _lead_to_socket(here: socket.socket, path: str) -> None:
    with here, socket.socket(socket.AF_UNIX) as there, contextlib.suppress(OSError):
        there.connect(path)
        relay_until_both_end(here, there)


# Relaying a connection to the desktop's VNC server, which listens on a unix socket alone.

_CHUNK = 2**16


def relay_until_either_ends(here: socket.socket, there: socket.socket) -> None:
    """Relay bytes between two connections until either ends."""
    here.settimeout(None)
    back = threading.Thread(target=_copy_until_closed, args=(there, here), daemon=True)
    back.start()
    _copy_until_closed(here, there)
    back.join()
    there.close()


def _copy_until_closed(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
