"""What a service of this machine answers, within a limit and a deadline whatever it does."""

from __future__ import annotations

import http.client
import io
import socket
import time

from server import Refused, Request, Routes

_LONGEST_S, _MOST = 10.0, 2**20
_PART = 2**16


class _Heard:
    """Bytes that were received, as http.client wants them."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._data)


def routes() -> Routes:
    def get(request: Request) -> dict:
        number, path = int(request.number("port", 1, 65535, 0)), request.text("path")
        if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
            raise Refused("path is not the path of an address")
        limit = int(request.number("limit", 1, _MOST, _PART))
        return {"body": _get(number, path, request.number("wait_s", 0, _LONGEST_S, 1.0), limit)}

    return {("POST", "/port/get"): get}


def _get(port: int, path: str, wait_s: float, limit: int) -> str | None:
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
        answer = http.client.HTTPResponse(_Heard(bytes(data)))
        answer.begin()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return None
    return body.decode("utf-8", "replace") if answer.status == 200 and len(body) <= limit else None
