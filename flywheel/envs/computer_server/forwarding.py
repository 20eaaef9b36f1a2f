"""Forward bytes into and out of the isolated machine: to its ports and programs, and from a port to the host."""

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
from types import SimpleNamespace

from server import ApiRequest, ConnectionTakeover, RequestRefused, Routes, is_command

_CHUNK = 2**16
_CONNECT_S = 5.0
_LONGEST_S, _MAX_BODY_BYTES = 10.0, 2**20  # of a service's answer


def forwarding_routes(folder: str, environment: dict[str, str]) -> Routes:
    """Return the routes that connect a client to ports and programs of the machine, and its ports to the host.

    folder: where programs start. environment: their environment variables.
    """

    def port(request: ApiRequest) -> ConnectionTakeover:
        number = _port_number(request)
        try:
            there = socket.create_connection(("127.0.0.1", number), _CONNECT_S)
        except OSError as error:
            raise RequestRefused(f"nothing answers at port {number}: {error}", 502) from None
        there.settimeout(None)
        return ConnectionTakeover(lambda here: relay_connections(here, there, until_both_end=True))

    def program(request: ApiRequest) -> ConnectionTakeover:
        words = request.json().get("command")
        if not is_command(words):
            raise RequestRefused("command is not a list of words")
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
                cwd=folder, env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise RequestRefused(f"{words[0]} does not start: {error.strerror}") from None
        return ConnectionTakeover(lambda here: _relay_program(here, process))

    def get(request: ApiRequest) -> dict:
        number, path = _port_number(request), request.text("path")
        if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
            raise RequestRefused("path is not the path of an address")
        limit = int(request.number("limit", 1, _MAX_BODY_BYTES, _CHUNK))
        return {"body": _get_body(number, path, request.number("wait_s", 0, _LONGEST_S, 1.0), limit)}

    def forward(request: ApiRequest) -> dict:
        number, path = _port_number(request), request.text("path")
        try:
            listening = socket.create_server(("127.0.0.1", number), backlog=64)
        except OSError as error:
            raise RequestRefused(f"port {number} cannot be had: {error.strerror}", 409) from None
        threading.Thread(target=_accept_connections, args=(listening, path), daemon=True).start()
        return {}

    return {
        ("POST", "/port"): port,
        ("POST", "/program"): program,
        ("POST", "/port/get"): get,
        ("POST", "/forward"): forward,
    }


def _port_number(request: ApiRequest) -> int:
    return int(request.number("port", 1, 65535, 0))


def relay_connections(here: socket.socket, there: socket.socket, *, until_both_end: bool) -> None:
    """Relay bytes between two connections until one direction has ended, or both (`until_both_end`); closes `there`."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        _copy(source.recv, target)
        if until_both_end:
            _shut_down(target, socket.SHUT_WR)
        else:
            _shut_down(source, socket.SHUT_RDWR)
            _shut_down(target, socket.SHUT_RDWR)

    here.settimeout(None)
    with there:
        back = threading.Thread(target=copy, args=(there, here), daemon=True)
        back.start()
        copy(here, there)
        back.join()


def _relay_program(here: socket.socket, process: subprocess.Popen) -> None:
    """Relay bytes between a connection and a program until one of them ends, then kill the program."""
    here.settimeout(None)

    def back() -> None:
        _copy(process.stdout.read, here)
        _shut_down(here, socket.SHUT_RDWR)

    threading.Thread(target=back, daemon=True).start()
    os.set_blocking(process.stdin.fileno(), False)
    with contextlib.suppress(OSError):
        while (data := here.recv(_CHUNK)) and _feed_program(process.stdin.fileno(), data, here):
            pass
    process.kill()
    process.wait()


def _feed_program(target: int, data: bytes, here: socket.socket) -> bool:
    """Write data to a program, which may never read it; False where the client is gone before all is written."""
    poll = select.poll()
    poll.register(target, select.POLLOUT)
    poll.register(here, getattr(select, "POLLRDHUP", select.POLLHUP))
    while data:
        if any(ready == here.fileno() for ready, _ in poll.poll()):
            return False
        data = data[os.write(target, data) :]
    return True


def _copy(read, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := read(_CHUNK):
            target.sendall(data)


def _shut_down(end: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(how)


def _get_body(port: int, path: str, wait_s: float, limit: int) -> str | None:
    """Return the body of a 200 response; None without one that is complete in time and within the limit."""
    until, data = time.monotonic() + wait_s, bytearray()
    try:
        with socket.create_connection(("127.0.0.1", port), wait_s) as there:
            there.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            while len(data) <= limit:
                there.settimeout(max(0.001, until - time.monotonic()))
                part = there.recv(_CHUNK)
                if not part:
                    break
                data += part
                if time.monotonic() > until:
                    return None
        answer = http.client.HTTPResponse(SimpleNamespace(makefile=lambda *_: io.BytesIO(data)))
        answer.begin()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return None
    return body.decode("utf-8", "replace") if answer.status == 200 and len(body) <= limit else None


def _accept_connections(listening: socket.socket, path: str) -> None:
    while True:
        here, _ = listening.accept()
        threading.Thread(target=_lead_to_socket, args=(here, path), daemon=True).start()


def _lead_to_socket(here: socket.socket, path: str) -> None:
    with here, socket.socket(socket.AF_UNIX) as there, contextlib.suppress(OSError):
        there.connect(path)
        relay_connections(here, there, until_both_end=True)
