"""Make and dispose of browser contexts, one a session, with their proxy and downloads.

Chromium sends whatever a page asks for through the proxy of its browser context: documents, workers, beacons,
prefetches, and WebSockets by CONNECT. A filter inside of the browser would have to know each of these, and one that is
added tomorrow; here all of them are a host and a port. Each context has a proxy of its own, so neither of two sessions
in one browser reaches what is the other's, and what is left of a session that is over reaches nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from flywheel.envs.browser.driver.cdp import BrowserLink
from flywheel.utils.local_ports import bind_free_port

# What a session may reach: prefixes of addresses, for navigation, and their origins.

Origin = tuple[str, int]  # host, as a browser writes it, and port
_PORTS = {"http": 80, "https": 443}


def is_within_prefixes(url: str, allowed: tuple[str, ...]) -> bool:
    """Tell whether the address `url` lies under one of the prefixes `allowed`.

    A prefix without a path is that origin, not a longer name that begins like it.
    """
    for prefix in allowed:
        scheme, _, rest = prefix.partition("://")
        whole = prefix if "/" in rest else f"{scheme}://{rest}/"
        if url.startswith(whole) or url == prefix:
            return True
    return False


def list_allowed_origins(allowed: tuple[str, ...]) -> frozenset[Origin]:
    """List hosts and ports of the address prefixes `allowed`."""
    parts = [urlsplit(prefix) for prefix in allowed]
    found = {(part.netloc.rpartition("@")[2], part.hostname, part.port or _PORTS.get(part.scheme, 0)) for part in parts}
    return frozenset((f"[{host}]" if netloc.startswith("[") else host, port) for netloc, host, port in found if host)


# The proxy, which admits a session to its own origins and nothing else.

_MAX_HEAD_BYTES = 256 * 1024  # bytes of a request's head
_CONNECT_S = 20.0
_REQUEST = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.1")
_TARGET = re.compile(rb"(?:http://)?(\[[0-9a-f:.]+\]|[^/:\[\]@?#]+)(?::(\d{1,5}))?([/?]\S*)?")
_OK_RESPONSE = b"HTTP/1.1 200 OK\r\n\r\n"
_FORBIDDEN_RESPONSE = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"


class SessionProxy:
    """Admit a session to its own origins, at first none, between `start` and `close`. tell: is told what was refused
    or not reached."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.origins: frozenset[Origin] = frozenset()
        self.tell = tell
        self.address = ""  # as Chromium wants it
        self._server: asyncio.Server | None = None
        self.callers: set[_ProxyCaller] = set()

    async def start(self) -> None:
        listener = bind_free_port()
        self.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._server = await asyncio.get_running_loop().create_server(lambda: _ProxyCaller(self), sock=listener)

    def close(self) -> None:
        """End all connections; may be called twice."""
        self.origins = frozenset()
        if self._server is not None:
            self._server.close()
        for caller in list(self.callers):
            caller.end()


class _ProxyEnd(asyncio.Protocol):
    """One end of a connection through the proxy. It reads no faster than its other end writes."""

    def __init__(self) -> None:
        self.other: _ProxyEnd | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            self.other.transport.close()  # once what it was given is written


class _ProxyCaller(_ProxyEnd):
    """A connection that the browser opened: requests, one after the other, or a tunnel.

    The browser writes the requests, so there is little to mistrust in their form: what it does not send (pieces of
    unknown length, two lengths) is refused, and nobody can hide a second request in a first one's body.
    """

    def __init__(self, proxy: SessionProxy) -> None:
        super().__init__()
        self._proxy = proxy
        self._buffer = bytearray()
        self._body = 0  # bytes of the request's body that are still to come
        self._origin: Origin | None = None  # of the other end
        self._tunnel = False
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._proxy.callers.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._proxy.callers.discard(self)
        if self._opening is not None:
            self._opening.cancel()

    def end(self) -> None:
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._tunnel and self._opening is None:
            super().data_received(data)
            return
        self._buffer += data
        if len(self._buffer) > _MAX_HEAD_BYTES and self._opening is not None:
            self.transport.pause_reading()
        self._go_on()

    def _go_on(self) -> None:
        """Pass on what of the buffer can be, once the other end is there."""
        while self._buffer and self._opening is None and not self.transport.is_closing():
            if self._tunnel or self._body:
                part = bytes(self._buffer if self._tunnel else self._buffer[: self._body])
                del self._buffer[: len(part)]
                self._body -= 0 if self._tunnel else len(part)
                super().data_received(part)
                continue
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _MAX_HEAD_BYTES:
                    self.end()
                return
            head = bytes(self._buffer[:end])
            del self._buffer[: end + 4]
            self._begin(head)

    def _begin(self, head: bytes) -> None:
        """A request: to the other end where its origin is admitted, else the connection ends."""
        first, *fields = head.split(b"\r\n")
        request = _REQUEST.fullmatch(first)
        target = _TARGET.fullmatch(request[2]) if request else None
        tunnel = request is not None and request[1] == b"CONNECT"
        if target is None or tunnel == request[2].startswith(b"http://"):
            self.end()  # no request to a proxy
            return
        host, port = target[1].decode("latin-1").lower(), int(target[2] or 80)
        origin = (host, port)
        if origin not in self._proxy.origins:
            self._proxy.tell(f"{host}:{port} was refused: it is none of the session's origins")
            if tunnel:
                self.transport.write(_FORBIDDEN_RESPONSE)
            self.transport.close()
            return
        kept, lengths = [], []
        for field in fields:
            name, _, value = field.partition(b":")
            name = name.lower()
            if name in (b"content-length", b"transfer-encoding"):
                lengths.append(value.strip() if name == b"content-length" else b"unknown")
            if name != b"host" and not name.startswith(b"proxy-"):
                kept.append(field)
        if len(lengths) > 1 or not all(length.isdigit() for length in lengths):
            self.end()
            return
        self._body = int(lengths[0]) if lengths and not tunnel else 0
        said = target[1] + (b":" + target[2] if target[2] else b"")
        begun = b"\r\n".join([b"%s %s HTTP/1.1" % (request[1], target[3] or b"/"), b"Host: " + said, *kept, b"", b""])
        if self._origin == origin and not tunnel:
            self.other.transport.write(begun)
        elif self._origin is not None:
            self.transport.close()  # the browser asks again, by a connection of its own
        else:
            self._tunnel, self._origin = tunnel, origin
            self._opening = asyncio.ensure_future(self._open(b"" if tunnel else begun))

    async def _open(self, begun: bytes) -> None:
        """Have the other end, and give it the request."""
        host, port = self._origin
        try:
            async with asyncio.timeout(_CONNECT_S):
                self.other = await _connect(host.strip("[]"), port, self)
        except (OSError, TimeoutError) as error:
            why = f"no answer in {_CONNECT_S:g} s" if isinstance(error, TimeoutError) else error.strerror or str(error)
            self._proxy.tell(f"{host}:{port} cannot be reached: {why}")
            self.transport.close()
            return
        if self.transport.is_closing():
            self.other.transport.abort()
            return
        if self._tunnel:
            self.transport.write(_OK_RESPONSE)
        else:
            self.other.transport.write(begun)
        self._opening = None
        self.transport.resume_reading()
        self._go_on()


async def _connect(host: str, port: int, caller: _ProxyCaller) -> _ProxyEnd:
    """A connection to a server. A name that somebody else's DNS gives an address of this machine leads nowhere."""
    loop, error = asyncio.get_running_loop(), OSError("the name has no address that may be reached")
    for *_, address in await loop.getaddrinfo(host, port, type=1):
        if host != address[0] and host != "localhost" and _is_this_machine(address[0]):
            continue
        try:
            _, end = await loop.create_connection(_ProxyEnd, address[0], port)
        except OSError as failed:
            error = failed
            continue
        end.other = caller
        return end
    raise error


def _is_this_machine(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None) or parsed
    return mapped.is_loopback or mapped.is_link_local or mapped.is_unspecified


_MAX_NAME = 120  # characters
_MAX_FILES = 100  # of one session
_BEGIN_S = 0.5  # that a step waits for a file to begin, where one was asked for
_DOWNLOAD_S = 2.0  # and for it to be there


class Downloads:
    """Files that pages give the user, kept in the session's folder under their own names.

    folder: where they lie. limit: bytes of one file. cancel: stops a download by its id. note: tells the user of it.
    """

    def __init__(self, folder: Path, limit: int, cancel: Callable[[str], None], note: Callable[[str], None]) -> None:
        self.folder, self._limit, self._cancel, self._note = folder, limit, cancel, note
        self._names: dict[str, str] = {}  # of the ones under way
        self._waited: set[str] = set()  # of those, the ones that were waited for
        self._count = self._asked = 0  # that began, and that should

    def expect(self, files: int) -> None:
        """Expect that so many files begin, or have just begun."""
        self._asked += files

    async def settle(self) -> None:
        """Wait a moment for those that were asked for to begin, and for those under way to be there."""
        await _wait_until(lambda: self._asked <= self._count, _BEGIN_S)
        await _wait_until(lambda: self._waited.issuperset(self._names), _DOWNLOAD_S)
        self._asked, self._waited = self._count, set(self._names)  # what has not come yet may come when it will

    def begins(self, params: Mapping[str, Any]) -> None:
        self._count += 1
        if self._count > _MAX_FILES:
            self._cancel(params["guid"])
            self._note(f"a download was refused: there are {_MAX_FILES} already")
        else:
            self._names[params["guid"]] = safe_file_name(params["suggestedFilename"])

    def goes_on(self, params: Mapping[str, Any]) -> None:
        guid, ended = params["guid"], params["state"] in ("completed", "canceled")
        long = not ended and max(params["receivedBytes"], params["totalBytes"]) > self._limit
        name = self._names.pop(guid, None) if ended or long else None
        if name is None:
            return
        if params["state"] == "completed":
            target = _free_path(self.folder / name)
            try:
                (self.folder / guid).rename(target)
            except OSError as error:
                self._note(f"the download {name} could not be kept: {error.strerror}")
                return
            self._note(f"downloaded {target.name} ({target.stat().st_size} bytes)")
        elif ended:
            self._note(f"the download {name} failed")
        else:
            self._cancel(guid)
            self._note(f"the download {name} was cancelled: it is longer than {self._limit // 2**20} MiB")


def safe_file_name(name: str) -> str:
    """Make a file name that stays in its folder, whatever a server called the file."""
    name = re.sub(r"[\x00-\x1f/\\\x7f]", "_", name).strip(" .")
    return name[-_MAX_NAME:] or "download"


def _free_path(path: Path) -> Path:
    """`a.txt`, or `a (1).txt` where that is taken."""
    others = (path.with_name(f"{path.stem} ({number}){path.suffix}") for number in itertools.count(1))
    return next(free for free in itertools.chain([path], others) if not free.exists())


async def _wait_until(holds: Callable[[], bool], seconds: float) -> None:
    """Wait until something holds, and no longer than so many seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 (the browser tells nobody else)
                await asyncio.sleep(0.005)


class BrowserContext:
    """A browser context for one session, with a proxy that admits what the session may reach.

    id: of the protocol. folder: of the session's files; it goes with the context.
    """

    def __init__(self, link: BrowserLink, id: str, proxy: SessionProxy, note: Callable[[str], None]) -> None:
        self._connection, self.id, self.proxy = link.connection, id, proxy
        self.folder = folder = Path(tempfile.mkdtemp(prefix="downloads-", dir=link.profile))
        own, post, limit = {"browserContextId": id}, link.connection.post, link.settings.download_mb * 2**20
        self.downloads = Downloads(
            folder, limit, lambda guid: post("Browser.cancelDownload", {"guid": guid, **own}), note
        )
        post("Browser.grantPermissions", {"permissions": [], **own})  # all others are denied
        kept = {"behavior": "allowAndName", "downloadPath": str(folder), "eventsEnabled": True}
        post("Browser.setDownloadBehavior", kept | own)

    @classmethod
    async def open(cls, link: BrowserLink, note: Callable[[str], None], fault: Callable[[str], None]) -> BrowserContext:
        """Open a context. note: told of downloads. fault: told of refused hosts."""
        proxy = SessionProxy(fault)
        await proxy.start()
        wanted = {"disposeOnDetach": True, "proxyServer": proxy.address, "proxyBypassList": "<-loopback>"}
        try:
            made = await link.connection.send("Target.createBrowserContext", wanted)
        except BaseException:
            proxy.close()
            raise
        return cls(link, made["browserContextId"], proxy, note)

    async def cookies(self) -> list[dict[str, Any]]:
        return (await self._connection.send("Storage.getCookies", {"browserContextId": self.id}))["cookies"]

    async def set_cookies(self, cookies: Sequence[Mapping[str, Any]]) -> None:
        await self._connection.send("Storage.setCookies", {"cookies": list(cookies), "browserContextId": self.id})

    def forget(self) -> None:
        """Remove its files and close its proxy. The caller tells the browser."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.proxy.close()
