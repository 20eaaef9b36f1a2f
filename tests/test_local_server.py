"""A server of this process that does not come up is a named error, within its deadline."""

from __future__ import annotations

import asyncio

import pytest

from flywheel import local_server
from flywheel.errors import EnvError, PolicyError
from flywheel.local_server import LocalServer, free_port


async def nothing(scope, receive, send) -> None:
    raise AssertionError("nobody asks")


async def test_a_server_that_never_answers(monkeypatch):
    server = LocalServer(nothing, [free_port()])
    monkeypatch.setattr(local_server, "_START_S", 0.05)
    monkeypatch.setattr(server._server, "startup", lambda sockets: asyncio.Event().wait())
    with pytest.raises(PolicyError, match=r"did not answer within 0\.05 s \(shop\)"):
        await server.start("shop", PolicyError)


async def test_a_server_that_breaks(monkeypatch):
    async def breaks(sockets) -> None:
        raise OSError("no more sockets")

    server = LocalServer(nothing, [free_port()])
    monkeypatch.setattr(server._server, "startup", breaks)
    with pytest.raises(EnvError, match="the server did not start"):
        await server.start("shop")
