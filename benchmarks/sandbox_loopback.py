"""The case `loopback_blocked` of `flywheel bench sandbox`: the share of ways to other servers that are shut.

Every way is first tried in a browser without the guard: what does not arrive there proves nothing, and is named. Then
by the same page in the sandbox as it is; and by it once more at the page's own server, which must be reached.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from unittest import mock

from bench_case import BenchCase
from sandbox_ways import WAYS, Way

from flywheel.agent.actions import Click, Point
from flywheel.config import SandboxSettings
from flywheel.envs.browser.driver import chromium, context
from flywheel.envs.browser.driver.chromium import Chromium
from flywheel.envs.browser.driver.tab import BrowserTab
from flywheel.utils.errors import EnvError

if TYPE_CHECKING:
    from sandbox_run import Run

ARRIVE_S = 15.0  # for what is expected to arrive
_LOOK_S = 0.2
_TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html", "png": "image/png"}


class Listener(asyncio.DatagramProtocol):
    """Servers at one port of 127.0.0.1 and ::1, TCP and UDP. hits: what arrived; names of ways, and `a connection` and
    `a datagram`, whatever they hold."""

    def __init__(self) -> None:
        self.hits: set[str] = set()
        self.news = asyncio.Event()
        self.pages: dict[str, str] = {}  # by path
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def at(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def open(self) -> Listener:
        loop = asyncio.get_running_loop()
        for _ in range(20):  # a port that is free for all of them
            first = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = first.sockets[0].getsockname()[1]
            self._open = [first]
            try:
                for host in ("127.0.0.1", "::1"):
                    with contextlib.suppress(OSError if host == "::1" else ()):
                        self._open.append((await loop.create_datagram_endpoint(lambda: self, (host, self.port)))[0])
                with contextlib.suppress(OSError):  # a machine without IPv6
                    self._open.append(await asyncio.start_server(self._serve, "::1", self.port))
                return self
            except OSError:
                self.close()
        raise EnvError("no port is free for TCP and UDP", where="127.0.0.1")

    def close(self) -> None:
        for one in (*self._open, *(writer.transport for writer in self._writers)):
            one.close()

    def datagram_received(self, data: bytes, address: object) -> None:
        self._hit("a datagram")

    def _hit(self, what: str) -> None:
        self.hits.add(what)
        self.news.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._hit("a connection")
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                _, path, _ = head.split("\r\n", 1)[0].split(" ")
                fields = {k.lower(): v.strip() for k, _, v in (row.partition(":") for row in head.split("\r\n")[1:])}
                await reader.readexactly(int(fields.get("content-length") or 0))
                status, headers, body = self._answer(path, fields)
                told = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                writer.write(f"HTTP/1.1 {status}\r\n{told}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        self._writers.discard(writer)
        writer.close()

    def _answer(self, path: str, fields: dict[str, str]) -> tuple[str, dict[str, str], bytes]:
        headers = {"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Methods": "*", "Cache-Control": "no-store"}
        if path.startswith("/hit/"):
            self._hit(path.split("/")[2].partition("?")[0])
        for lead, name, text in (
            ("/to/", "Location", "{}"),
            ("/links/", "Link", "<{}>; rel=preload; as=image"),
            ("/reports/", "Content-Security-Policy", "img-src 'none'; report-uri {}"),
        ):
            if path.startswith(lead):
                headers |= {name: text.format(path.removeprefix(lead)), "Content-Type": "text/html"}
                return "302 Found" if name == "Location" else "200 OK", headers, b"<img src='/x.png'>"
        if path in self.pages:
            return "200 OK", headers | {"Content-Type": "text/html"}, self.pages[path].encode()
        kind = _TYPES.get(path.rpartition(".")[2], "text/event-stream" if "event" in path else "text/plain")
        return "200 OK", headers | {"Content-Type": kind}, b""


@dataclass
class Tried:
    """arrived: names of the ways that reached the server they were aimed at. own: those that reached the page's own."""

    arrived: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)


async def attempt(tab: BrowserTab, ways: Sequence[Way], *, guarded: bool) -> Tried:
    """Try all ways from hostile pages of one server, each at a server of its own and at the page's own.

    Unguarded, a way is waited for until it arrives; guarded, until it has arrived at the page's own server.
    """
    tried = Tried()
    async with contextlib.AsyncExitStack() as stack:
        site = await _opened(stack)
        targets = {way.name: await _opened(stack) for way in ways}
        together = tuple(way for way in ways if not way.alone)
        for group in filter(None, [together, *((way,) for way in ways if way.alone)]):
            for own in (False, True) if guarded else (False,):
                aimed = [way for way in group if way.own or not own]
                body = "\n".join(way.page(site.at if own else targets[way.name].at, site.at) for way in aimed)
                address = f"/page/{len(site.pages)}"
                site.pages[address] = f"<!doctype html><title>ways</title><body>{body}"
                allowed = [site.at] + [one.at for one in targets.values() if not guarded]
                await _play(tab, f"http://{site.at}{address}", tuple(f"http://{one}/" for one in allowed))
                if own:
                    await _arrive(tab, [(site, way.name) for way in aimed if not way.rare])
                elif not guarded:
                    await _arrive(tab, [(targets[way.name], "") for way in aimed if not way.rare])
        tried.own = {way.name for way in ways if way.own and way.name in site.hits}
        tried.arrived = {name for name, one in targets.items() if one.hits}
    return tried


async def _opened(stack: contextlib.AsyncExitStack) -> Listener:
    listener = await Listener().open()
    stack.callback(listener.close)
    return listener


async def _play(tab: BrowserTab, address: str, allowed: tuple[str, ...]) -> None:
    """Open a page, press on its middle, and go on."""
    await tab.open(address, seed=0, allowed=allowed, read="({})")
    await tab.do(Click(Point(0.5, 0.5)))
    await tab.observe(1000)


async def _arrive(tab: BrowserTab, expected: Sequence[tuple[Listener, str]]) -> None:
    """Page time goes on until all have arrived ("": anything), or for ARRIVE_S at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ARRIVE_S):
            for listener, name in expected:
                while name not in listener.hits if name else not listener.hits:
                    listener.news.clear()
                    await tab.observe(50)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(listener.news.wait(), _LOOK_S)


class _Direct:
    """No proxy at all, where the sandbox's own would be."""

    address, origins = "direct://", frozenset()

    def __init__(self, tell: object) -> None: ...

    async def start(self) -> None: ...

    def close(self) -> None: ...


@contextlib.contextmanager
def unguarded() -> Iterator[None]:
    """Browsers that are started in the block reach what they like: for the peer alone."""
    with mock.patch.object(chromium, "_NETWORK_FLAGS", ()), mock.patch.object(context, "SessionProxy", _Direct):
        yield


@contextlib.asynccontextmanager
async def one_tab(settings: SandboxSettings) -> AsyncIterator[BrowserTab]:
    browser = await Chromium.start(chromium.find_chromium(settings), settings)
    try:
        yield await browser.open_tab(settings.width, settings.height)
    finally:
        await browser.close()


async def loopback_blocked(run: Run) -> BenchCase:
    settings = run.sandbox()
    with unguarded():
        async with one_tab(settings) as open_tab:
            reach = (await attempt(open_tab, WAYS, guarded=False)).arrived
    async with one_tab(settings) as shut:
        tried = await attempt(shut, WAYS, guarded=True)
    blocked = len(reach - tried.arrived) / len(reach)
    own = {way.name for way in WAYS if way.own and way.name in reach}
    return BenchCase(
        "sandbox",
        "loopback_blocked",
        "fraction",
        blocked,
        0.0,
        "the same browser without the guard",
        None,
        1.0,
        blocked == 1.0 and not tried.arrived and tried.own >= own,
        {
            "ways": len(reach),
            "arrived": sorted(tried.arrived),
            "own_not_reached": sorted(own - tried.own),
            "not_shown_unguarded": sorted({way.name for way in WAYS} - reach),
        },
    )
