"""Servers of this process: a named error where one does not come up; their own host and origin alone."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing

import httpx
import pytest
from starlette.responses import PlainTextResponse

from flywheel.utils import local_server
from flywheel.utils.errors import BadInput, EnvError, PolicyError
from flywheel.utils.local_ports import bind_free_port, bind_local_port
from flywheel.utils.local_server import LocalServer
from tests.support.ports import find_free_ports, remember_sockets


async def nothing(scope, receive, send) -> None:
    raise AssertionError("nobody asks")


async def test_a_server_that_never_answers(monkeypatch):
    server = LocalServer(nothing, [bind_free_port()])
    monkeypatch.setattr(local_server, "_START_S", 0.05)
    monkeypatch.setattr(server._server, "startup", lambda sockets: asyncio.Event().wait())
    with pytest.raises(PolicyError, match=r"did not answer within 0\.05 s \(shop\)"):
        await server.start("shop", PolicyError)


async def test_a_server_that_breaks(monkeypatch):
    async def breaks(sockets) -> None:
        raise OSError("no more sockets")

    server = LocalServer(nothing, [bind_free_port()])
    monkeypatch.setattr(server._server, "startup", breaks)
    with pytest.raises(EnvError, match="the server did not start"):
        await server.start("shop")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:{port}"}, 200),
        ({"Host": "LOCALHOST:{port}"}, 200),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Origin": "null"}, 200),
        ({"Host": "evil.example:{port}"}, 421),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1:1"}, 421),
        ({"Host": "127.0.0.1:{port}.evil.example"}, 421),
        ({"Host": ""}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "https://127.0.0.1:{port}"}, 403),
    ],
)
async def test_it_answers_to_its_own_host_and_origin_alone(headers, status):
    """A page of a browser on this machine can give a name of its own this machine's address."""
    listener = bind_free_port()
    server = LocalServer(PlainTextResponse("here"), [listener])
    await server.start()
    port = listener.getsockname()[1]
    sent = {name: text.replace("{port}", str(port)) for name, text in headers.items()}
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"http://127.0.0.1:{port}/", headers=sent)).status_code == status
    await server.stop()


def test_a_free_port_is_had_again_after_its_server_was_killed():
    with closing(bind_free_port()) as first:
        first.listen()
        port = first.getsockname()[1]
        with closing(socket.create_connection(("127.0.0.1", port))) as client:
            first.accept()[0].close()  # the server's end is closed first, and outlives it
            assert client.recv(1) == b""
    with closing(bind_local_port(port)) as again:
        assert again.getsockname() == ("127.0.0.1", port)


def test_a_port_that_is_asked_for_is_ours_or_refused(monkeypatch):
    port = find_free_ports()
    with closing(bind_local_port(port)) as ours:
        assert ours.getsockname() == ("127.0.0.1", port)
        made = remember_sockets(monkeypatch, socket, "socket")
        with pytest.raises(BadInput, match=f"port {port} is in use"):
            bind_local_port(port)
        with pytest.raises(OverflowError):
            bind_local_port(70_000)
    assert [one.fileno() for one in made] == [-1, -1], "what is refused is closed"
