"""Open browser contexts, which keep sessions apart, with the proxy and downloads of each.

Chromium sends all requests of a page through the proxy of its browser context: documents, workers, beacons, prefetches,
and WebSockets by CONNECT. A filter inside the browser would have to know each kind of request, later ones too; for the
proxy each is a host and a port. Each context has its own proxy, so two sessions in one browser cannot reach each
other's servers, and the remains of a session that is over reach nothing.
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

# What a session may reach: prefixes of addresses for navigation, and the origins of those for all requests.

Origin = tuple[str, int]  # host, as a browser writes it, and port
_PORTS = {"http": 80, "https": 443}


def is_within_prefixes(url: str, allowed: tuple[str, ...]) -> bool:
    """Tell whether the address `url` lies under one of the prefixes `allowed`, such as `http://127.0.0.1:4100/`.

    A prefix without a path stands for that origin, and not for a longer host name that begins like it. One with a path
    ends where a name ends: `http://host/app` allows `http://host/app/a` and not `http://host/apple`.
    """
    for prefix in allowed:
        scheme, _, rest = prefix.partition("://")
        whole = prefix if "/" in rest else f"{scheme}://{rest}/"
        if url == prefix or (url.startswith(whole) and (whole.endswith("/") or url[len(whole) :][:1] in ("", *"/?#"))):
            return True
    return False


def list_allowed_origins(allowed: tuple[str, ...]) -> frozenset[Origin]:
    """List the hosts and ports of the address prefixes `allowed`."""
    parts = [urlsplit(prefix) for prefix in allowed]
    found = {(part.netloc.rpartition("@")[2], part.hostname, part.port or _PORTS.get(part.scheme, 0)) for part in parts}
    return frozenset((f"[{host}]" if netloc.startswith("[") else host, port) for netloc, host, port in found if host)


# The proxy, which lets a session reach its own origins and nothing else.

_MAX_HEAD_BYTES = 256 * 1024  # of a request's head
_CONNECT_S = 20.0
_REQUEST = re.compile(rb"([A-Z]+) (\S+) HTTP/1\.1")
_TARGET = re.compile(rb"(?:http://)?(\[[0-9a-f:.]+\]|[^/:\[\]@?#]+)(?::(\d{1,5}))?([/?]\S*)?")
_OK_RESPONSE = b"HTTP/1.1 200 OK\r\n\r\n"
_FORBIDDEN_RESPONSE = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"


class SessionProxy:
    """Run an HTTP proxy that lets a session reach its own origins and nothing else, between `start` and `close`.

    origins: which it may reach; none at first. tell: called with a message for each request that was refused or whose
    host is not reached.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.origins: frozenset[Origin] = frozenset()
        self.tell = tell
        self.address = ""  # URL of the proxy, for Chromium
        self._server: asyncio.Server | None = None
        self.callers: set[_ProxyCaller] = set()

    async def start(self) -> None:
        """Start to listen at a free port of 127.0.0.1; its URL is then in `address`."""
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
    """Forward bytes from one end of a proxied connection to its other end, no faster than that can write."""

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
            self.other.transport.close()  # it first writes what it was given


class _ProxyCaller(_ProxyEnd):
    """Serve a connection that the browser opened: requests, one after the other, or a tunnel.

    The browser writes the requests, so their form can be trusted: forms that it does not send (chunks, two lengths) are
    refused, so that no page can hide a second request in the body of the first.
    """

    def __init__(self, proxy: SessionProxy) -> None:
        super().__init__()
        self._proxy = proxy
        self._buffer = bytearray()
        self._body = 0  # bytes of the request's body that are still to come
        self._origin: Origin | None = None  # which the other end is connected to
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
        """Handle the buffered bytes, as far as possible, once the other end is connected."""
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
        """Begin a request by its head: forward it where its origin is allowed, else close the connection."""
        first, *fields = head.split(b"\r\n")
        request = _REQUEST.fullmatch(first)
        target = _TARGET.fullmatch(request[2]) if request else None
        tunnel = request is not None and request[1] == b"CONNECT"
        if target is None or tunnel == request[2].startswith(b"http://"):
            self.end()  # not a request to a proxy
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
            self.transport.close()  # the browser sends it again on a new connection
        else:
            self._tunnel, self._origin = tunnel, origin
            self._opening = asyncio.ensure_future(self._open(b"" if tunnel else begun))

    async def _open(self, begun: bytes) -> None:
        """Connect the other end, and send it the request's head `begun`; b"" for a tunnel."""
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
    """Connect to a server, except to an address of this machine that a DNS name other than localhost resolves to."""
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


_MAX_NAME = 120  # characters of a file name
_MAX_FILES = 100  # of one session
_BEGIN_S = 0.5  # that a step waits for a requested download to begin
_DOWNLOAD_S = 2.0  # and for it to end


class Downloads:
    """Save files that pages download in the session's folder, under their own names.

    folder: of the session. limit: bytes of one file. cancel: stops a download by its id. note: called with a note on
    each download.
    """

    def __init__(self, folder: Path, limit: int, cancel: Callable[[str], None], note: Callable[[str], None]) -> None:
        self.folder, self._limit, self._cancel, self._note = folder, limit, cancel, note
        self._names: dict[str, str] = {}  # of downloads under way, by id
        self._waited: set[str] = set()  # ids of those that a step has waited for
        self._count = self._asked = 0  # downloads that began, and that are expected to

    def expect(self, files: int) -> None:
        """Make `settle` wait for so many more downloads, which begin soon or have just begun. files: their number."""
        self._asked += files

    async def settle(self) -> None:
        """Wait for downloads, so that their files are in the folder: 0.5 s at most to begin, then 2 s at most to end.

        A download that an earlier call waited for is not waited for again.
        """
        await _wait_until(lambda: self._asked <= self._count, _BEGIN_S)
        await _wait_until(lambda: self._waited.issuperset(self._names), _DOWNLOAD_S)
        self._asked, self._waited = self._count, set(self._names)  # later steps do not wait for these again

    @property
    def untouched(self) -> bool:
        """Tell whether the session has downloaded nothing, and asked for nothing."""
        return not (self._count or self._asked)

    def begins(self, params: Mapping[str, Any]) -> None:
        """Take the event that a download begins; more than the session may have are cancelled. params: of the event."""
        self._count += 1
        if self._count > _MAX_FILES:
            self._cancel(params["guid"])
            self._note(f"a download was refused: there are {_MAX_FILES} already")
        else:
            self._names[params["guid"]] = safe_file_name(params["suggestedFilename"])

    def goes_on(self, params: Mapping[str, Any]) -> None:
        """Take the event that a download goes on or has ended: its file is kept, or it is noted why not.

        params: of the event.
        """
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
    """Make a safe file name, without a path, of the name that a server gave a file; "download" where nothing is left.

    Of a long name the last 120 characters are kept.
    """
    name = re.sub(r"[\x00-\x1f/\\\x7f]", "_", name).strip(" .")
    return name[-_MAX_NAME:] or "download"


def _free_path(path: Path) -> Path:
    """Return `path`, or where it is taken the first free one of `a (1).txt`, `a (2).txt` and so on."""
    others = (path.with_name(f"{path.stem} ({number}){path.suffix}") for number in itertools.count(1))
    return next(free for free in itertools.chain([path], others) if not free.exists())


async def _wait_until(holds: Callable[[], bool], seconds: float) -> None:
    """Wait until `holds()` is true, for `seconds` at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 (there is no event to wait for)
                await asyncio.sleep(0.005)


class BrowserContext:
    """Hold a browser context, which shares no cookies or storage with others, with its proxy and downloads.

    id: of the protocol. note: called with notes on downloads. folder: of the downloads; it is removed with the context.
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
        """Open a context. note: called with notes on downloads. fault: called with hosts refused or not reached.

        Raises EnvError where the browser is gone.
        """
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
        """Return the session's cookies, as the protocol describes them. Raises EnvError where the browser is gone."""
        return (await self._connection.send("Storage.getCookies", {"browserContextId": self.id}))["cookies"]

    async def set_cookies(self, cookies: Sequence[Mapping[str, Any]]) -> None:
        """Add cookies, as the protocol describes them. Raises EnvError for a wrong one, or if the browser is gone."""
        await self._connection.send("Storage.setCookies", {"cookies": list(cookies), "browserContextId": self.id})

    def clear(self, allowed: Sequence[str], page: str) -> list[asyncio.Future[dict[str, Any]]]:
        """Empty all stores that outlive a page, for the next session; returns the pending answers.

        allowed: prefixes of the addresses that the last session was at. page: protocol session of one of its pages.
        """
        send = self._connection.send
        origins = {f"{parts.scheme}://{parts.netloc}" for parts in map(urlsplit, allowed)}
        cleared = [
            send("Storage.clearDataForOrigin", {"origin": one, "storageTypes": "all"}, page) for one in sorted(origins)
        ]
        cleared.append(send("Network.clearBrowserCache", session=page))
        return [*cleared, send("Storage.clearCookies", {"browserContextId": self.id})]

    def forget(self) -> None:
        """Remove the session's files and close the proxy. The caller disposes of the context in the browser."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.proxy.close()
