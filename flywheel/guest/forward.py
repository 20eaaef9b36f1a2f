"""Ports of this machine that lead to unix sockets: services which run elsewhere, as programs here find them."""

from __future__ import annotations

import contextlib
import socket
import threading

from server import Refused, Request, Routes
from streams import joined


def routes() -> Routes:
    def forward(request: Request) -> dict:
        number, path = int(request.number("port", 1, 65535, 0)), request.text("path")
        try:
            listening = socket.create_server(("127.0.0.1", number), backlog=64)
        except OSError as error:
            raise Refused(f"port {number} cannot be had: {error.strerror}", 409) from None
        threading.Thread(target=_accept, args=(listening, path), daemon=True).start()
        return {}

    return {("POST", "/forward"): forward}


def _accept(listening: socket.socket, path: str) -> None:
    while True:
        here, _ = listening.accept()
        threading.Thread(target=_lead, args=(here, path), daemon=True).start()


def _lead(here: socket.socket, path: str) -> None:
    with here, socket.socket(socket.AF_UNIX) as there, contextlib.suppress(OSError):
        there.connect(path)
        joined(here, there)
