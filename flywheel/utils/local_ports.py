"""Bind ports of this machine for servers, and check and bypass HTTP proxies, without importing a server library."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator

from flywheel.utils.errors import BadInput

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_QUEUE = 2048  # backlog of connections that wait to be accepted, as in uvicorn


def bypass_proxies_on_loopback() -> None:
    """Set NO_PROXY so that this process and its subprocesses connect to servers of this machine without a proxy.

    Libraries use HTTP_PROXY and similar variables for 127.0.0.1 too, unless NO_PROXY names it. Where no such variable
    is set, nothing is changed.
    """
    if any(name.lower() in _PROXIES for name in os.environ):
        hosts = [host for name in ("no_proxy", "NO_PROXY") for host in os.environ.get(name, "").split(",") if host]
        own = ",".join(dict.fromkeys([*hosts, "127.0.0.1", "localhost", "::1"]))
        os.environ.update(no_proxy=own, NO_PROXY=own)


def check_connection_variables() -> None:
    """Check that an HTTP client can be made with the proxies and certificates of the environment variables.

    Raises BadInput, which names the variables, where it cannot.
    """
    named = [name for name in os.environ if name.lower() in _PROXIES or name in _CERTIFICATES]
    if not named:
        return
    import httpx  # imported here, as it takes a tenth of a second and few environments have such variables

    try:
        httpx.Client().close()
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
        why = " ".join(str(error).split())
        raise BadInput(
            f"no connection can be made as the environment says: {why}",
            where=", ".join(sorted(named)),
            fix="mend the one that is wrong, or unset it",
        ) from None


def bind_free_port() -> socket.socket:
    """Return a socket that is bound to a free port of 127.0.0.1, for a `LocalServer`; it does not listen yet.

    The caller closes it. Raises OSError where none is free.
    """
    return bind_local_port(0)


def bind_local_port(port: int) -> socket.socket:
    """Bind a socket to a port of 127.0.0.1, and return it; the caller closes it.

    port: 1 to 65535, and the socket listens already; 0 takes a free one, and it does not listen yet. The socket is made
    with IPPROTO_TCP, so that asyncio turns Nagle's algorithm off for accepted connections: with that algorithm, each
    response of header and body waits 40 ms for the client's delayed acknowledgement. Raises BadInput where the port is
    in use, OSError where this user may not bind it, OverflowError for a number that is no port.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if port:  # one that was closed a moment ago is free
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with errors_of_port(port):
            listener.bind(("127.0.0.1", port))
            # After `bind`, so that a free port is one that no other socket has. Connections that outlive this process
            # then do not keep the next one from the same port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if port:
                listener.listen(_QUEUE)  # two sockets may be bound to the port, but only one can listen
    except BaseException:
        listener.close()
        raise
    return listener


@contextlib.contextmanager
def errors_of_port(port: int, host: str = "127.0.0.1", more: str = "") -> Iterator[None]:
    """Raise BadInput, which advises another `--port`, for the error "address in use" within the block.

    port, host: where the block binds, for the message. more: a further remedy, added to the advice. Other errors pass.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise BadInput(f"port {port} is in use", where=host, fix=f"give another --port{more}") from None
