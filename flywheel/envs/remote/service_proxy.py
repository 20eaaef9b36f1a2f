"""Forward one request to a service of a machine, and return its answer as a sandboxed page.

Whoever wrote the service may be hostile: what it sends is limited, has no say about this node's cookies, and runs in a
sandbox of the browser. There its own scripts are strangers to it, so every page may read what it answers: the address
is the secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from aiohttp import WSMsgType, web
from yarl import URL

from flywheel.envs.base import Streams
from flywheel.utils.stream_relay import relay_connection

_SANDBOX_POLICY = "sandbox allow-scripts allow-forms allow-popups"
# Headers that are not passed on, of answers and of requests.
_HELD_BACK = {
    "set-cookie", "set-cookie2", "content-security-policy", "connection", "transfer-encoding", "content-encoding",
    "content-length", "clear-site-data", "service-worker-allowed", "referrer-policy",
}  # fmt: skip
_NOT_SENT = {
    "host", "cookie", "connection", "origin", "referer", "accept-encoding", "content-length", "transfer-encoding",
    "upgrade", "sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions",
}  # fmt: skip
_CORS_PREFIX = "access-control-"
_MAX_ANSWER_BYTES, _TIMEOUT_S = 2**26, 60.0
_FIRST_SCRIPT = b"<script>%s</script>" % (Path(__file__).parent / "service_page.js").read_bytes()
_HEAD_TAG, _HEAD_SEARCH_BYTES = re.compile(rb"<head(?:\s[^>]*)?>", re.IGNORECASE), 2**14


async def proxy_service_request(request: web.Request, streams: Streams, port: int, path: str) -> web.StreamResponse:
    """Pass a request on to a service of a session's machine, and its answer back.

    streams: connection to the service's `port`. path: with its query, as the browser wrote it, without the first slash.
    """
    if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
        streams[1].close()
        return web.Response(status=204, headers=_cors_headers(request))
    headers = {name: value for name, value in request.headers.items() if name.lower() not in _NOT_SENT}
    address = URL(f"http://localhost:{port}/{path}", encoded=True)
    async with (
        _use_connection(streams) as connector,
        aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as client,
    ):
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await _proxy_websocket(request, client, address)
        try:
            async with client.request(
                request.method, address, headers=headers, data=await request.read(), allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S), auto_decompress=True,
            ) as said:  # fmt: skip
                return await _send_response(request, said)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise web.HTTPBadGateway(text=f"the service does not answer: {error or type(error).__name__}") from None


async def _send_response(request: web.Request, said: aiohttp.ClientResponse) -> web.StreamResponse:
    made = web.StreamResponse(status=said.status)
    for name, value in said.headers.items():
        if name.lower() not in _HELD_BACK and not name.lower().startswith(_CORS_PREFIX):
            made.headers.add(name, value)
    made.headers.update(_cors_headers(request))
    made.headers["Content-Security-Policy"] = _SANDBOX_POLICY
    made.headers["X-Content-Type-Options"] = "nosniff"
    made.headers["Referrer-Policy"] = "no-referrer"  # its address is a secret
    await made.prepare(request)
    sent = 0
    shown = said.headers.get("Content-Type", "").lower().startswith("text/html")
    async for part in _insert_script(said.content.iter_any()) if shown else said.content.iter_any():
        sent += len(part)
        if sent > _MAX_ANSWER_BYTES:
            break
        await made.write(part)
    return made


async def _insert_script(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A document with our script at the beginning of its head."""
    first: bytes | None = b""  # None once it is sent
    async for part in parts:
        if first is None:
            yield part
            continue
        first += part
        if head := _HEAD_TAG.search(first[:_HEAD_SEARCH_BYTES]):
            yield first[: head.end()] + _FIRST_SCRIPT + first[head.end() :]
            first = None
        elif len(first) > _HEAD_SEARCH_BYTES:
            yield first
            first = None
    if first:
        yield first


def _cors_headers(request: web.Request) -> dict[str, str]:
    """Who may read it, and what may be asked."""
    asked = request.headers.get("Access-Control-Request-Headers", "*")
    return {
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
        "Access-Control-Allow-Headers": asked,
        "Access-Control-Expose-Headers": "*",
    }


async def _proxy_websocket(request: web.Request, client: aiohttp.ClientSession, address: URL) -> web.WebSocketResponse:
    protocols = [one.strip() for one in request.headers.get("Sec-WebSocket-Protocol", "").split(",") if one.strip()]
    try:
        there = await client.ws_connect(address, protocols=protocols, max_msg_size=2**22)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise web.HTTPBadGateway(text=f"the service does not answer: {error}") from None
    here = web.WebSocketResponse(protocols=[there.protocol] if there.protocol else (), max_msg_size=2**22)
    try:
        await here.prepare(request)
    except ConnectionError:
        await there.close()
        raise web.HTTPBadRequest(text="who asked is gone") from None
    both = [asyncio.ensure_future(_copy_messages(here, there)), asyncio.ensure_future(_copy_messages(there, here))]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in both:
            one.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        with contextlib.suppress(ConnectionError, RuntimeError):
            await there.close()
            await here.close()
    return here


async def _copy_messages(source, target) -> None:
    async for message in source:
        if message.type is WSMsgType.TEXT:
            await target.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await target.send_bytes(message.data)


@contextlib.asynccontextmanager
async def _use_connection(streams: Streams) -> AsyncIterator[_SingleConnector]:
    """A connector, and nothing of it is left behind."""
    connector = _SingleConnector(streams)
    try:
        yield connector
    finally:
        for task in connector.handing_on:
            task.cancel()
        await asyncio.gather(*connector.handing_on, return_exceptions=True)
        streams[1].close()


class _SingleConnector(aiohttp.BaseConnector):
    """Whatever is asked for goes over this one connection, which is there already."""

    def __init__(self, streams: Streams) -> None:
        super().__init__(force_close=True)
        self._streams = streams
        self.handing_on: list[asyncio.Task[None]] = []

    async def _create_connection(self, *_: object) -> aiohttp.client_proto.ResponseHandler:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=theirs)
        self.handing_on.append(asyncio.ensure_future(relay_connection(self._there, reader, writer)))
        return (await asyncio.get_running_loop().create_connection(self._factory, sock=ours))[1]

    async def _there(self) -> Streams:
        return self._streams
