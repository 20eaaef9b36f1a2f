"""A connection handed on to the desktop's VNC server, which speaks on a unix socket alone."""

from __future__ import annotations

import contextlib
import socket
import threading

_CHUNK = 2**16


def joined(here: socket.socket, there: socket.socket) -> None:
    """Bytes of each to the other, until either ends."""
    here.settimeout(None)
    back = threading.Thread(target=_copy, args=(there, here), daemon=True)
    back.start()
    _copy(here, there)
    back.join()
    there.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
