"""Serve HTTP on the machine that an agent controls: a table maps each route to a function from request to answer.

A module defines its routes in a function named `*_routes`. Every client has full control of the machine: on a unix
socket whoever can open it, on a port whoever knows the token.
"""

from __future__ import annotations

import hmac
import json
import socket
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

MAX_BODY_BYTES = 256 * 2**20  # bytes
_MAX_REFUSED_BYTES = 2**16  # that are read of a body whose request has no token
_IDLE_S = 600  # seconds that a connection may be silent


class RequestRefused(Exception):
    """Signal a request that cannot be done. message: one line for the client. status: HTTP status code."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class ApiRequest:
    """Hold one request. path: without the query. query: values by name. kind: Content-Type of the body."""

    path: str
    query: Mapping[str, str]
    body: bytes
    kind: str = ""

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object. Raises RequestRefused for anything else."""
        try:
            body = json.loads(self.body or b"{}")
        except ValueError as error:
            raise RequestRefused(f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise RequestRefused("the body is not a JSON object")
        return body

    def text(self, name: str) -> str:
        """Return the text field `name` of the JSON body. Raises RequestRefused where it is missing or no text."""
        value = self.json().get(name)
        if not isinstance(value, str):
            raise RequestRefused(f"{name} is not a text")
        return value

    def number(self, name: str, least: float, most: float, default: float) -> float:
        """Return the number `name` of the JSON body, or the default. Raises RequestRefused if it is out of bounds."""
        value = self.json().get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise RequestRefused(f"{name} is not a number from {least:g} to {most:g}")
        return value


def is_command(words: object) -> bool:
    """Tell whether `words` can be a command: a list of strings, one at least."""
    return isinstance(words, list) and bool(words) and all(isinstance(word, str) for word in words)


@dataclass(frozen=True)
class ApiAnswer:
    """Hold one answer. body: bytes, or a value to encode as JSON. kind: Content-Type. status: HTTP status code."""

    body: Any
    kind: str = "application/json"
    status: int = 200


@dataclass(frozen=True)
class ConnectionTakeover:
    """Hold the answer of a route that takes over the connection, after status 101.

    serve: called with the connection's socket, which is no longer HTTP.
    """

    serve: Callable[[socket.socket], None]


Route = Callable[[ApiRequest], Any]  # gives an ApiAnswer or a ConnectionTakeover; anything else becomes JSON
Routes = Mapping[tuple[str, str], Route]  # by method and path


def make_http_server(listening: socket.socket, routes: Routes, token: str = "") -> ThreadingHTTPServer:
    """Make an HTTP server of `routes` on a bound socket; the caller calls `serve_forever`.

    token: that clients must send as a bearer token; "": none.
    """
    handler = type("Handler", (_RequestHandler,), {"routes": dict(routes), "token": token})
    server = ThreadingHTTPServer(("", 0), handler, bind_and_activate=False)
    server.daemon_threads = True
    server.socket.close()
    server.socket = listening
    listening.listen(64)
    return server


class _RequestHandler(BaseHTTPRequestHandler):
    routes: Routes
    token = ""
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S

    def do_GET(self) -> None:
        try:
            answer = self._answer()
        except RequestRefused as refused:
            answer = ApiAnswer({"error": str(refused)}, status=refused.status)
        except Exception as error:
            answer = ApiAnswer({"error": f"{type(error).__name__}: {error}"}, status=500)
            traceback.print_exc()
        if isinstance(answer, ConnectionTakeover):
            self.send_response(101, "Switching Protocols")
            self.end_headers()
            self.wfile.flush()
            self.close_connection = True
            answer.serve(self.connection)
            return
        if not isinstance(answer, ApiAnswer):
            answer = ApiAnswer(answer)
        body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_DELETE = do_GET

    def _answer(self) -> Any:
        length = int(self.headers.get("Content-Length") or 0)
        given = self.headers.get("Authorization", "").encode("latin-1")  # as the parser decoded it
        if self.token and not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
            if not 0 <= length <= _MAX_REFUSED_BYTES:
                self.close_connection = True
            self.rfile.read(min(max(length, 0), _MAX_REFUSED_BYTES))  # closed with bytes unread, the answer may be lost
            raise RequestRefused("the token is missing or wrong", 401)
        if not 0 <= length <= MAX_BODY_BYTES:
            self.close_connection = True
            raise RequestRefused(f"a body may have {MAX_BODY_BYTES} bytes", 413)
        body = self.rfile.read(length)
        address = urlsplit(self.path)
        methods = [method for method, path in self.routes if path == address.path]
        if not methods:
            raise RequestRefused(f"there is no {address.path}", 404)
        if self.command not in methods:
            raise RequestRefused(f"{address.path} takes {', '.join(methods)}", 405)
        query = dict(parse_qsl(address.query, keep_blank_values=True))
        kind = self.headers.get("Content-Type", "")
        return self.routes[self.command, address.path](ApiRequest(address.path, query, body, kind))

    def log_message(self, *_: Any) -> None:
        """Log nothing: the client logs its own requests."""
