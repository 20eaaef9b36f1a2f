"""Show a node's sessions to people, at /watch: screens, terminals, files, services; and let them take over by hand."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import WSMsgType, web
from yarl import URL

from flywheel.envs.base import Env, Gesture, LatestPicture, LiveView, MachineAccess, Streams
from flywheel.envs.computer.machine import MachineRefused
from flywheel.envs.remote.node_session import NodeSession
from flywheel.utils.errors import EnvError
from flywheel.utils.stream_relay import relay_connection

_MAX_FILE_BYTES = 2**18  # bytes of a file that is shown


async def get_folder(request: web.Request, env: MachineAccess) -> web.Response:
    """Answer with a folder of a machine as JSON (`MachineAccess.list_folder`).

    Query `path`: from the home; "." is the home itself. Raises EnvError as that method.
    """
    return web.json_response(await env.list_folder(_requested_path(request)))


async def get_file(request: web.Request, env: MachineAccess) -> web.Response:
    """Answer with the `text` of a machine's file and its `digest`, which `put_file` needs, or `why` it is not shown.

    Query `path`: from the home. Raises EnvError as `MachineAccess.read_file`.
    """
    text, digest, why = await _read_text_file(request, env)
    return web.json_response({"text": text, "digest": digest, "why": why})


async def put_file(request: web.Request, env: MachineAccess) -> web.Response:
    """Overwrite a machine's file by the request's body, unless it has changed since it was read.

    Query `path`: from the home. Query `digest`: of the file as it was read. Raises HTTPConflict where it has changed,
    is none that `get_file` shows or cannot be written, HTTPRequestEntityTooLarge for a larger body than is shown,
    EnvError as `MachineAccess`.
    """
    _, digest, why = await _read_text_file(request, env)
    if why or digest != request.query.get("digest"):
        raise web.HTTPConflict(text="The file has changed meanwhile: open it again.")
    content = await request.read()
    if len(content) > _MAX_FILE_BYTES:
        raise web.HTTPRequestEntityTooLarge(
            _MAX_FILE_BYTES, len(content), text=f"A file here has {_MAX_FILE_BYTES} bytes at most."
        )
    try:
        await env.write_file(_requested_path(request), content)
    except MachineRefused as error:
        raise web.HTTPConflict(text=error.what) from None
    return web.json_response({"digest": hashlib.sha256(content).hexdigest()})


def _requested_path(request: web.Request) -> str:
    return request.query.get("path", "") or "."


async def _read_text_file(request: web.Request, env: MachineAccess) -> tuple[str, str, str]:
    data = await env.read_file(_requested_path(request), _MAX_FILE_BYTES)
    if len(data) > _MAX_FILE_BYTES:
        return "", "", f"It has more than {_MAX_FILE_BYTES // 2**10} KB, and is not shown here."
    try:
        return data.decode(), hashlib.sha256(data).hexdigest(), ""
    except UnicodeDecodeError:
        return "", "", "It is not a text in UTF-8, and is not shown here."


# The WebSocket of a live view. The watcher gets the newest pictures (binary) and JSON: `touch` once, `taken` and
# `note`. It sends JSON: `take`, and gestures (`envs/base.py`). During a take-over page time passes as fast as the
# clock.

_TICK_S = 0.08  # seconds between two updates of the page while a person does nothing
_MAX_TICK_S = 0.25  # seconds of page time that pass in one update at most
_SEND_TIMEOUT_S = 5.0
_MAX_WAITING_GESTURES = 256  # gestures that wait


async def stream_live_view(socket: web.WebSocketResponse, session: NodeSession, env: LiveView) -> None:
    """Send a session's picture to a watcher, who may take it over by mouse and keys, until either is gone."""
    visit = _TakeOver(socket, session, env)
    with env.watch() as pictures:
        await socket.send_json({"touch": env.touch})
        parts = [asyncio.ensure_future(_send_pictures(socket, pictures)), asyncio.ensure_future(visit.hear())]
        acting = asyncio.ensure_future(visit.act())
        try:
            await asyncio.wait([*parts, acting, session.life], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in parts:
                part.cancel()
            visit.end()
            # `acting` is not cancelled: what it does in the page has to be finished, and has a deadline of its own.
            await asyncio.gather(*parts, return_exceptions=True)
            await acting


async def _send_pictures(socket: web.WebSocketResponse, pictures: LatestPicture) -> None:
    while True:
        await socket.send_bytes(await pictures.next())


class _TakeOver:
    """Let one watcher act in a session's page; one watcher at a time may have taken it over."""

    def __init__(self, socket: web.WebSocketResponse, session: NodeSession, env: LiveView) -> None:
        self._socket, self._session, self._env = socket, session, env
        self._gestures: list[Gesture] = []
        self._over, self._wanted = False, False
        self._changed = asyncio.Event()

    async def hear(self) -> None:
        """Receive the watcher's messages until the watcher is gone, sends an invalid one, or too many gestures wait."""
        async for message in self._socket:
            if message.type is not WSMsgType.TEXT:
                return
            try:
                said = json.loads(message.data)
                if "take" in said:
                    self._wanted = bool(said["take"])
                    self._changed.set()
                elif self._wanted:
                    self._add(Gesture.from_json(said))
            except (ValueError, TypeError, AttributeError):
                return
            if len(self._gestures) > _MAX_WAITING_GESTURES:
                return

    async def act(self) -> None:
        """Take over and give back as the watcher asks, until `end` is called."""
        while not self._over:
            self._changed.clear()
            if not self._wanted:
                await self._changed.wait()
            elif self._session.visitor is not None:
                await self._tell(taken=False, note="Somebody else has taken this session over.")
                self._wanted = False
            else:
                self._session.visitor, note = self, ""
                try:
                    await self._tell(taken=True)
                    await self._visit()
                except EnvError as error:
                    self._wanted, note = False, str(error)
                finally:
                    self._session.visitor = None
                await self._tell(taken=False, note=note)

    def end(self) -> None:
        self._over, self._wanted = True, False
        self._changed.set()

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _visit(self) -> None:
        last = time.monotonic()
        while self._wanted:
            self._changed.clear()
            now, gestures, self._gestures = time.monotonic(), self._gestures, []
            async with self._session.lock:  # never during a step of the agent
                notes = await self._env.apply_gestures(gestures, 1000 * min(now - last, _MAX_TICK_S))
            for note in notes:
                await self._tell(note=note)
            last = now
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, now + _TICK_S - time.monotonic())):
                    await self._changed.wait()
        async with self._session.lock:
            await self._env.release_all()
        self._gestures = []

    def _add(self, gesture: Gesture) -> None:
        """Queue a gesture; a move replaces the move before it."""
        if gesture.kind == "move" and self._gestures and self._gestures[-1].kind == "move":
            self._gestures.pop()
        self._gestures.append(gesture)
        self._changed.set()

    async def _tell(self, **said: object) -> None:
        try:
            async with asyncio.timeout(_SEND_TIMEOUT_S):
                await self._socket.send_json(said)
        except (ConnectionError, TimeoutError):
            self.end()  # the watcher is gone, or does not read


# A service of a machine may be hostile: its answers are limited in size, set no cookies of this node, and run in a
# sandbox of the browser. There its own scripts have another origin than it, so every origin may read its answers: its
# address is the secret.

# Headers of requests and answers that are not passed on, and headers that are added to answers.
_HEADERS = json.loads((Path(__file__).parent / "headers.json").read_text("ascii"))
_CORS_PREFIX = "access-control-"
_MAX_ANSWER_BYTES, _TIMEOUT_S = 2**26, 60.0
_FIRST_SCRIPT = b"<script>%s</script>" % (Path(__file__).parent / "service_page.js").read_bytes()
_HEAD_TAG, _HEAD_SEARCH_BYTES = re.compile(rb"<head(?:\s[^>]*)?>", re.IGNORECASE), 2**14


async def proxy_service_request(request: web.Request, streams: Streams, port: int, path: str) -> web.StreamResponse:
    """Forward a watcher's request to a service of a session's machine, and return its answer, with our own headers.

    streams: connection to the service's `port`, closed at the end. path: with its query, as the browser wrote it,
    without the first slash. Of an answer above 64 MiB the beginning is sent. Raises HTTPBadGateway where the service
    does not answer within 60 s.
    """
    if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
        streams[1].close()
        return web.Response(status=204, headers=_cors_headers(request))
    headers = {name: value for name, value in request.headers.items() if name.lower() not in _HEADERS["not_sent"]}
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
        if name.lower() not in _HEADERS["held_back"] and not name.lower().startswith(_CORS_PREFIX):
            made.headers.add(name, value)
    made.headers.update(_cors_headers(request) | _HEADERS["of_services"])  # no referrer: its address is a secret
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
    """Yield an HTML document with our script at the beginning of its head."""
    first: bytes | None = b""  # up to the tag of the head; None once it is sent
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
    """Return the headers that let every origin read the answer and send the headers it asks for."""
    asked = request.headers.get("Access-Control-Request-Headers", "*")
    return {**_HEADERS["of_cross_origin"], "Access-Control-Allow-Headers": asked}


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
    try:
        await run_until_first_ends(_copy_messages(here, there), _copy_messages(there, here))
    finally:
        with contextlib.suppress(ConnectionError, RuntimeError):
            await there.close()
            await here.close()
    return here


async def run_until_first_ends(*works: Coroutine[Any, Any, object]) -> set[asyncio.Task[object]]:
    """Run coroutines at once until one ends, cancel the others, and return the tasks that have ended by themselves."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy_messages(source, target) -> None:
    async for message in source:
        if message.type is WSMsgType.TEXT:
            await target.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await target.send_bytes(message.data)


@contextlib.asynccontextmanager
async def _use_connection(streams: Streams) -> AsyncIterator[_SingleConnector]:
    connector = _SingleConnector(streams)
    try:
        yield connector
    finally:
        for task in connector.handing_on:
            task.cancel()
        await asyncio.gather(*connector.handing_on, return_exceptions=True)
        streams[1].close()


class _SingleConnector(aiohttp.BaseConnector):
    """Send every request over one connection, which is open already."""

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


# A person logs in once with the token and gets a cookie. A service's page is not trusted: its address contains a secret
# of its own in place of the cookie, and the browser gives it another origin, so that its scripts cannot call this node.

_STATIC = Path(__file__).parent / "static"
_COOKIE, _CHUNK, _OPEN_S, _HEARTBEAT_S = "flywheel-watch", 2**16, 10.0, 20.0
# Inline styles are allowed, since the terminal writes its own; data of a session is never inserted as markup.
OWN_PAGE_HEADERS = _HEADERS["of_own_pages"]
_SCRIPTS = ("watch", "socket", "desktop", "page", "terminal", "files", "services", "vnc", "xterm")
_FILES = {
    "index.html": "text/html",
    "watch.css": "text/css",
    "xterm.css": "text/css",
    **{f"{name}.js": "text/javascript" for name in _SCRIPTS},
}


def add_watch_routes(
    application: web.Application, sessions: Mapping[str, NodeSession], token: str, *, takeovers: bool = False
) -> None:
    """Add the routes below /watch to a node's application.

    sessions: the node's own mapping, by id. token: with which people log in. takeovers: whether sessions may be taken
    over as data, at /watch/annotate/SESSION/.
    """
    watching = WatchHandlers(sessions, token, takeovers)
    shown = {name: getattr(watching, name) for name in ("picture", "recording", "screen", "live", "terminal", "shell")}
    shown |= {"folder": watching.of_machine(get_folder), "file": watching.of_machine(get_file)}
    application.add_routes(
        [
            web.get("/watch", watching.page),
            web.post("/watch/login", watching.login),
            web.get("/watch/static/{name}", watching.static),
            web.get("/watch/sessions", watching.guarded(watching.sessions)),
            *(web.get(f"/watch/sessions/{{session}}/{name}", watching.guarded(one)) for name, one in shown.items()),
            web.put("/watch/sessions/{session}/file", watching.guarded(watching.of_machine(put_file))),
            web.route("*", "/watch/{how:services|whole}/{secret}/{session}/{port}/{path:.*}", watching.service),
        ]
    )


class WatchHandlers:
    """Answer the requests of people who watch a node's sessions; arguments as of `add_watch_routes`."""

    def __init__(self, sessions: Mapping[str, NodeSession], token: str, takeovers: bool = False) -> None:
        self._sessions, self._token, self._takeovers = sessions, token, takeovers

    def guarded(self, handler):
        """Wrap a handler so that it answers only people who have logged in, on requests of this node's own pages."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            if not self._knows(request.cookies.get(_COOKIE, ""), "cookie"):
                raise web.HTTPUnauthorized(text="log in first")
            if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
                raise web.HTTPForbidden(text="only its own pages may ask")
            return await handler(request)

        return guarded

    async def login(self, request: web.Request) -> web.Response:
        given = str((await request.post()).get("token", ""))
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            raise web.HTTPForbidden(text="That is not the token.")
        answer = web.Response(status=303, headers={"Location": "/watch"})
        answer.set_cookie(_COOKIE, self._secret("cookie"), httponly=True, samesite="Strict", path="/watch")
        return answer

    async def page(self, _: web.Request) -> web.Response:
        return static_response("index.html")

    async def static(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in _FILES:
            raise web.HTTPNotFound
        return static_response(name)

    async def sessions(self, _: web.Request) -> web.Response:
        return web.json_response([await self._told(name, one) for name, one in list(self._sessions.items())])

    async def picture(self, request: web.Request) -> web.Response:
        seen = self._session(request).last_result
        if seen is None or seen.observation.screenshot is None:
            raise web.HTTPNotFound
        return web.Response(body=seen.observation.screenshot, content_type="image/png", headers=OWN_PAGE_HEADERS)

    async def recording(self, request: web.Request) -> web.Response:
        session = self._session(request)
        if session.episode_buffer.empty:
            raise web.HTTPNotFound(text="nothing is kept: the node was started without --recording-mb")
        body = await asyncio.to_thread(session.episode_buffer.make_packer())
        headers = OWN_PAGE_HEADERS | {"Content-Disposition": 'attachment; filename="episode.zip"'}
        return web.Response(body=body, content_type="application/zip", headers=headers)

    async def screen(self, request: web.Request) -> web.WebSocketResponse:
        """Relay the desktop's VNC over a WebSocket, as noVNC speaks it."""
        return await self._streamed(request, lambda env: env.screen(), ("binary",))

    async def terminal(self, request: web.Request) -> web.WebSocketResponse:
        """Relay the agent's terminal over a WebSocket (protocol: `envs/computer_server/terminal_relay.py`)."""
        return await self._streamed(request, lambda env: env.terminal())

    async def shell(self, request: web.Request) -> web.WebSocketResponse:
        """Relay a shell of the watcher's own, of the query's `rows` and `columns`, in the protocol of `terminal`."""
        given = [(request.query.get(name, ""), default) for name, default in (("rows", 24), ("columns", 80))]
        rows, columns = (
            int(text) if text.isdecimal() and 0 < int(text) <= 1000 else default for text, default in given
        )
        return await self._streamed(request, lambda env: env.shell(rows, columns))

    async def live(self, request: web.Request) -> web.WebSocketResponse:
        session = self._session(request)
        env = await self._env(session)
        if not isinstance(env, LiveView):
            raise web.HTTPNotFound(text="it has no page")
        socket = await open_websocket(request)
        await stream_live_view(socket, session, env)
        with contextlib.suppress(ConnectionError, RuntimeError):
            await socket.close()
        return socket

    def of_machine(self, handler: Callable[[web.Request, MachineAccess], Awaitable[web.Response]]):
        """Wrap a handler so that it gets the session's machine; errors of the machine become statuses 404 and 502."""

        async def asked(request: web.Request) -> web.Response:
            if request.method != "GET":
                require_own_origin(request)
            env = await self._env(self._session(request))
            if not isinstance(env, MachineAccess):
                raise web.HTTPNotFound(text="it has no machine of its own")
            try:
                return await handler(request, env)
            except MachineRefused as error:
                raise web.HTTPNotFound(text=error.what) from None
            except EnvError as error:
                raise web.HTTPBadGateway(text=str(error)) from None

        return asked

    async def service(self, request: web.Request) -> web.StreamResponse:
        """Forward a request or WebSocket to a service of a session's machine, and return the answer.

        The address names the session, its secret, which stands in for the cookie, and the service's port. The service
        gets the rest of the path, or, below /watch/whole, all of it. Raises HTTPNotFound for a wrong secret, a port
        that is no number, a session that is over or has no machine; HTTPBadGateway where the machine or the service
        does not answer; HTTPBadRequest where a WebSocket's client is gone.
        """
        name, port = request.match_info["session"], request.match_info["port"]
        if not self._knows(request.match_info["secret"], f"service {name}") or not port.isdecimal():
            raise web.HTTPNotFound
        streams = await self._stream(self._session(request), lambda env: env.service(int(port)))
        whole = request.match_info["how"] == "whole"
        path = request.raw_path[1:] if whole else request.raw_path.split("/", 6)[6]
        return await proxy_service_request(request, streams, int(port), path)

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _told(self, name: str, session: NodeSession) -> dict:
        seen, task = session.last_result, session.task
        row = {"id": name, "kind": session.kind, "steps": session.steps, "screen": "", "services": ""}
        row |= {"instruction": task.instruction if task else "", "world": task.world if task else ""}
        row |= {"text": seen.observation.text if seen else "", "score": seen.info.get("score") if seen else None}
        row |= {"picture": bool(seen and seen.observation.screenshot)}
        row |= {"film": not session.episode_buffer.empty}
        row |= {"over": bool(seen and (seen.terminated or seen.truncated))}
        row |= {"annotate": f"/watch/annotate/{name}/" if self._takeovers and task and task.split == "train" else ""}
        env = await session.env()
        if isinstance(env, LiveView):
            row["screen"] = "page"
        if isinstance(env, MachineAccess):
            row["screen"] = "desktop" if row["picture"] else ""
            own = f"{self._secret(f'service {name}')}/{name}/"
            row |= {"services": f"/watch/services/{own}", "whole": f"/watch/whole/{own}"}
        return row

    def _session(self, request: web.Request) -> NodeSession:
        found = self._sessions.get(request.match_info["session"])
        if found is None:
            raise web.HTTPNotFound(text="this session is over")
        return found

    async def _env(self, session: NodeSession) -> Env:
        try:
            async with asyncio.timeout(_OPEN_S):
                return await session.env()
        except (EnvError, TimeoutError) as error:
            raise web.HTTPBadGateway(text=str(error)) from None

    async def _streamed(
        self,
        request: web.Request,
        opens: Callable[[MachineAccess], Awaitable[Streams]],
        protocols: tuple[str, ...] = (),
    ) -> web.WebSocketResponse:
        require_own_origin(request)
        streams = await self._stream(self._session(request), opens)
        try:
            socket = await open_websocket(request, protocols)
        except BaseException:
            streams[1].close()
            raise
        await pump_streams(socket, streams)
        return socket

    async def _stream(self, session: NodeSession, opens: Callable[[MachineAccess], Awaitable[Streams]]) -> Streams:
        env = await self._env(session)
        if not isinstance(env, MachineAccess):
            raise web.HTTPNotFound(text="it has no machine of its own")
        try:
            async with asyncio.timeout(_OPEN_S):
                return await opens(env)
        except (EnvError, TimeoutError) as error:
            raise web.HTTPBadGateway(text=str(error)) from None

    def _secret(self, what: str) -> str:
        return hmac.new(self._token.encode(), f"watch {what}".encode(), hashlib.sha256).hexdigest()

    def _knows(self, given: str, what: str) -> bool:
        return hmac.compare_digest(given.encode(), self._secret(what).encode())


def require_own_origin(request: web.Request) -> None:
    """Raise HTTPForbidden unless a request comes from a page of this server's own, as its header Origin says."""
    try:
        origin = urlsplit(request.headers.get("Origin", "")).netloc
    except ValueError:  # no address
        origin = ""
    if origin != request.host:
        raise web.HTTPForbidden(text="only its own pages may ask")


async def open_websocket(request: web.Request, protocols: tuple[str, ...] = ()) -> web.WebSocketResponse:
    """Accept a WebSocket from a page of this server's own, and return it; a message may have 1 MiB.

    protocols: subprotocols that it may speak. Raises HTTPForbidden as `require_own_origin`, HTTPBadRequest where the
    request asks for no WebSocket, or the client is gone.
    """
    require_own_origin(request)
    socket = web.WebSocketResponse(protocols=protocols, max_msg_size=2**20, heartbeat=_HEARTBEAT_S)
    try:
        await socket.prepare(request)
    except ConnectionError:
        raise web.HTTPBadRequest(text="who asked is gone") from None
    return socket


async def pump_streams(socket: web.WebSocketResponse, streams: Streams) -> None:
    """Relay bytes between a WebSocket and a connection until either ends or fails, then close both.

    socket: its binary messages are relayed, others ignored. streams: reader and writer of the connection.
    """
    reader, writer = streams

    async def out() -> None:
        while data := await reader.read(_CHUNK):
            await socket.send_bytes(data)

    async def back() -> None:
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                writer.write(message.data)
                await writer.drain()

    try:
        await run_until_first_ends(out(), back())
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, RuntimeError):
            await socket.close()


def static_response(name: str) -> web.Response:
    """Return the response with a file of the watch page: its HTML, a script or a style sheet.

    name: of the file, such as `watch.css`. Raises KeyError or FileNotFoundError where the page has none of this name.
    """
    return web.Response(
        body=(_STATIC / name).read_bytes(), content_type=_FILES[name], charset="utf-8", headers=OWN_PAGE_HEADERS
    )
