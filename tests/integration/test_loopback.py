"""A page reaches its session's origins and nothing else of this machine, by all of `benchmarks/sandbox_ways.py`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket

import pytest
import pytest_asyncio
from browser_pages import SETTINGS, browser
from processes import PATIENCE_S

from flywheel.cli import bench
from flywheel.envs.browser.driver import context
from flywheel.envs.browser.driver.context import SessionProxy, list_allowed_origins

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def ways(monkeypatch):
    """The module that serves listeners and tries every way, `ways.WAYS`."""
    monkeypatch.syspath_prepend(str(bench.BENCHMARKS_FOLDER))
    return importlib.import_module("sandbox_loopback")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium():
    async with browser() as started:
        yield started


async def test_no_way_leads_to_another_server_and_each_leads_to_the_session_s_own(ways, chromium):
    tab = await chromium.open_tab(200, 200)
    tried = await ways.attempt(tab, ways.WAYS, guarded=True)
    assert not tried.arrived
    assert tried.own >= {way.name for way in ways.WAYS if way.own and not way.rare}
    await tab.close()


@pytest.mark.exhaustive
async def test_each_way_leads_there_where_nothing_guards_it(ways):
    """Else the test above would prove nothing."""
    with ways.unguarded():
        async with ways.one_tab(SETTINGS) as tab:
            tried = await ways.attempt(tab, ways.WAYS, guarded=False)
    assert tried.arrived >= {way.name for way in ways.WAYS if not way.rare}


async def test_sessions_of_one_browser_do_not_reach_one_another(ways, chromium):
    """Neither by the other's server nor by the other's proxy; and what is admitted beside the own server, is."""
    async with contextlib.AsyncExitStack() as stack:
        ours, more, theirs = [await ways._opened(stack) for _ in range(3)]
        for site in (ours, theirs):
            site.pages["/"] = "<!doctype html><body>a page"
        tabs = [await chromium.open_tab(200, 200) for _ in range(2)]
        for tab, site, allowed in zip(tabs, (ours, theirs), ((ours, more), (theirs,)), strict=True):
            await tab.open(
                f"http://{site.at}/", seed=0, allowed=tuple(f"http://{one.at}/" for one in allowed), read="0"
            )
        proxies = [tab.context.proxy.address.removeprefix("http://") for tab in tabs]
        asked = [f"http://{at}/hit/x" for at in (ours.at, more.at, theirs.at)]
        asked += [f"http://{at}/http://{theirs.at}/hit/by_{i}" for i, at in enumerate(proxies)]
        script = f"Promise.all({asked}.map((url) => fetch(url).then((answer) => answer.status, () => 'no')))"
        assert await tabs[0].evaluate(script) == [200, 200, "no", "no", "no"]
        assert theirs.hits == {"a connection"}  # of its own page
        assert any(f"{theirs.at} was refused" in fault for fault in tabs[0].notes.faults)
        for tab in tabs:
            await tab.close()


async def test_a_browser_that_is_killed_leaves_no_open_port():
    async with browser() as started:
        tab = await started.open_tab(200, 200)
        port = tab.context.proxy.address
        started.kill()
        await started.died.wait()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port.rpartition(":")[2])))


# -- the proxy by itself
async def said(proxy: SessionProxy, request: bytes) -> bytes:
    """All that a proxy answers to some bytes."""
    reader, writer = await asyncio.open_connection(sock=_connected(proxy))
    writer.write(request)
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
    writer.close()
    return answer


@contextlib.asynccontextmanager
async def opened(allowed: str, faults: list[str]):
    one = SessionProxy(faults.append)
    await one.start()
    one.origins = list_allowed_origins((allowed,))
    try:
        yield one
    finally:
        one.close()


@pytest.mark.parametrize(
    "request_",
    [
        "GET / HTTP/1.1\r\nHost: {at}\r\n\r\n",  # no request to a proxy: its own port, asked directly
        "GET http://{other}/ HTTP/1.1\r\nHost: {at}\r\n\r\n",
        "GET http://{at}@{other}/ HTTP/1.1\r\n\r\n",
        "GET http://{at}.evil.example/ HTTP/1.1\r\n\r\n",
        "GET https://{at}/ HTTP/1.1\r\n\r\n",
        "CONNECT http://{at}/ HTTP/1.1\r\n\r\n",
        "CONNECT {other} HTTP/1.1\r\n\r\n",
        "POST http://{at}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST http://{at}/ HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 50\r\n\r\n",
        "POST http://{at}/ HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n",
        "POST http://{at}/ HTTP/1.1\r\nContent-Length: +5\r\n\r\n",
        "\r\n\r\n",
        "GET\r\n\r\n",
    ],
)
async def test_what_is_no_request_to_an_origin_of_the_session_reaches_nobody(ways, request_):
    faults: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        site, other = [await ways._opened(stack) for _ in range(2)]
        one = await stack.enter_async_context(opened(f"http://{site.at}/", faults))
        answer = await said(one, request_.format(at=site.at, other=other.at).encode())
        assert b" 200 " not in answer
        assert not site.hits
        assert not other.hits


async def test_bodies_pass_whole_and_a_second_request_follows_the_first(ways):
    """Also where one side reads slower than the other writes; a body that looks like a request is a body."""
    async with contextlib.AsyncExitStack() as stack:
        site, other = [await ways._opened(stack) for _ in range(2)]
        site.pages["/long"] = "x" * 8_000_000
        one = await stack.enter_async_context(opened(f"http://{site.at}/", []))
        inner = f"GET http://{other.at}/hit/inner HTTP/1.1\r\n\r\n".encode() * 50_000
        head = f"POST http://{site.at}/hit/first HTTP/1.1\r\nContent-Length: {len(inner)}\r\n\r\n".encode()
        reader, writer = await asyncio.open_connection(sock=_connected(one))
        writer.write(head + inner + f"GET http://{site.at}/long HTTP/1.1\r\n\r\n".encode())
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(2):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
            assert await reader.readexactly(8_000_000) == b"x" * 8_000_000
            assert "first" in site.hits
            writer.write(f"GET http://{other.at}/ HTTP/1.1\r\n\r\n".encode())
            assert await reader.read() == b""
        writer.close()
        assert not other.hits


async def test_a_session_that_is_over_reaches_nothing(ways):
    async with contextlib.AsyncExitStack() as stack:
        site = await ways._opened(stack)
        async with opened(f"http://{site.at}/", []) as one:
            reader, writer = await asyncio.open_connection(sock=_connected(one))
            writer.write(f"CONNECT {site.at} HTTP/1.1\r\n\r\n".encode())
            assert b"200" in await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(OSError):
            writer.write(b"GET /hit/late HTTP/1.1\r\n\r\n")
            assert await reader.read() == b""
        writer.close()
        assert site.hits == {"a connection"}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "169.254.169.254", "0.0.0.0", "::ffff:127.0.0.1"])
async def test_a_name_that_was_given_an_address_of_this_machine_leads_nowhere(monkeypatch, address):
    """An origin of a manifest, whose DNS says at the second look that it is here."""
    faults: list[str] = []

    async def rebound(self, host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    async with opened("http://far.example/", faults) as one:
        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", rebound)
        monkeypatch.setattr(context, "_CONNECT_S", 5.0)
        reader, writer = await asyncio.open_connection(sock=_connected(one))
        writer.write(b"GET http://far.example/ HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
    assert "far.example:80 cannot be reached: the name has no address that may be reached" in faults


def _connected(one: SessionProxy) -> socket.socket:
    host, port = one.address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)))


async def test_origins_of_addresses():
    allowed = (
        "http://127.0.0.1:81/s/x/",
        "https://Example.org",
        "http://[::1]:8/",
        "http://far.example/a",
        "about:blank",
    )
    assert list_allowed_origins(allowed) == {("127.0.0.1", 81), ("example.org", 443), ("[::1]", 8), ("far.example", 80)}
