"""A node's pages for people: what its sessions show, sessions to be taken over, files and services of their machines.

Who has the token logs in once; a cookie keeps it. A service is somebody else's page: its address holds a secret of its
own in place of the cookie, and it is sent as a sandboxed page, which the browser gives an origin of its own, so that
its scripts can ask this node for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiohttp import WSMsgType, web

from flywheel.environments.env import Env
from flywheel.environments.watchable import Live, Streams, Watchable
from flywheel.errors import EnvError
from flywheel.manager import files, live, services

if TYPE_CHECKING:
    from flywheel.manager.node import Session

_STATIC = Path(__file__).parent / "static"
_COOKIE, _CHUNK, _OPEN_S, _HEARTBEAT_S = "flywheel-watch", 2**16, 10.0, 20.0
# Styles may stand in the page, since the terminal writes its own; what comes from a session is never markup.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_SCRIPTS = ("watch", "socket", "desktop", "page", "terminal", "files", "services", "vnc", "xterm")
_FILES = {
    "index.html": "text/html",
    "watch.css": "text/css",
    "xterm.css": "text/css",
    **{f"{name}.js": "text/javascript" for name in _SCRIPTS},
}


def add(application: web.Application, sessions: Mapping[str, Session], token: str) -> None:
    """The routes below /watch. sessions: of the node, as they come and go."""
    watching = _Watching(sessions, token)
    application.add_routes(
        [
            web.get("/watch", watching.page),
            web.post("/watch/login", watching.login),
            web.get("/watch/static/{name}", watching.static),
            web.get("/watch/sessions", watching.guarded(watching.sessions)),
            web.get("/watch/sessions/{session}/picture", watching.guarded(watching.picture)),
            web.get("/watch/sessions/{session}/recording", watching.guarded(watching.recording)),
            web.get("/watch/sessions/{session}/screen", watching.guarded(watching.screen)),
            web.get("/watch/sessions/{session}/live", watching.guarded(watching.live)),
            web.get("/watch/sessions/{session}/terminal", watching.guarded(watching.terminal)),
            web.get("/watch/sessions/{session}/shell", watching.guarded(watching.shell)),
            web.get("/watch/sessions/{session}/folder", watching.guarded(watching.of_machine(files.folder))),
            web.get("/watch/sessions/{session}/file", watching.guarded(watching.of_machine(files.file))),
            web.put("/watch/sessions/{session}/file", watching.guarded(watching.of_machine(files.write))),
            web.route("*", "/watch/{how:services|whole}/{secret}/{session}/{port}/{path:.*}", watching.service),
        ]
    )


class _Watching:
    def __init__(self, sessions: Mapping[str, Session], token: str) -> None:
        self._sessions, self._token = sessions, token

    def guarded(self, handler):
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
        return _file("index.html")

    async def static(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in _FILES:
            raise web.HTTPNotFound
        return _file(name)

    async def sessions(self, _: web.Request) -> web.Response:
        return web.json_response([await self._told(name, one) for name, one in list(self._sessions.items())])

    async def picture(self, request: web.Request) -> web.Response:
        seen = self._session(request).seen
        if seen is None or seen.observation.screenshot is None:
            raise web.HTTPNotFound
        return web.Response(body=seen.observation.screenshot, content_type="image/png", headers=_headers())

    async def recording(self, request: web.Request) -> web.Response:
        session = self._session(request)
        if session.film.empty:
            raise web.HTTPNotFound(text="nothing is kept: the node was started without --film-mb")
        body = await asyncio.to_thread(session.film.packing())
        headers = _headers() | {"Content-Disposition": 'attachment; filename="episode.zip"'}
        return web.Response(body=body, content_type="application/zip", headers=headers)

    async def screen(self, request: web.Request) -> web.WebSocketResponse:
        """VNC by a WebSocket, as noVNC speaks it."""
        return await self._streamed(request, lambda env: env.screen(), ("binary",))

    async def terminal(self, request: web.Request) -> web.WebSocketResponse:
        """The agent's, as `guest/ptys.py` speaks."""
        return await self._streamed(request, lambda env: env.terminal())

    async def shell(self, request: web.Request) -> web.WebSocketResponse:
        """One of the watcher's own."""
        given = [request.query.get(name, "") for name in ("rows", "columns")]
        rows, columns = (int(text) if text.isdecimal() and 0 < int(text) <= 1000 else 24 for text in given)
        return await self._streamed(request, lambda env: env.shell(rows, columns))

    async def live(self, request: web.Request) -> web.WebSocketResponse:
        session = self._session(request)
        env = await self._env(session)
        if not isinstance(env, Live):
            raise web.HTTPNotFound(text="it has no page")
        socket = await _socket(request)
        await live.show(socket, session, env)
        with contextlib.suppress(ConnectionError, RuntimeError):
            await socket.close()
        return socket

    def of_machine(self, handler: Callable[[web.Request, Watchable], Awaitable[web.Response]]):
        async def asked(request: web.Request) -> web.Response:
            if request.method != "GET":
                _own(request)
            env = await self._env(self._session(request))
            if not isinstance(env, Watchable):
                raise web.HTTPNotFound(text="it has no machine of its own")
            try:
                return await handler(request, env)
            except EnvError as error:
                raise web.HTTPBadGateway(text=str(error)) from None

        return asked

    async def service(self, request: web.Request) -> web.StreamResponse:
        """What a service in a session's machine answers; WebSockets too. Below `whole` it is asked for the address as
        it is, for services that can be told where they stand."""
        name, port = request.match_info["session"], request.match_info["port"]
        if not self._knows(request.match_info["secret"], f"service {name}") or not port.isdecimal():
            raise web.HTTPNotFound
        streams = await self._stream(self._session(request), lambda env: env.service(int(port)))
        whole = request.match_info["how"] == "whole"
        path = request.raw_path[1:] if whole else request.raw_path.split("/", 6)[6]
        return await services.answer(request, streams, int(port), path)

    # -- inside -------------------------------------------------------------------------------------------------------
    async def _told(self, name: str, session: Session) -> dict:
        seen, task = session.seen, session.task
        told = {"id": name, "kind": session.kind, "steps": session.steps, "screen": "", "services": ""}
        told |= {"instruction": task.instruction if task else "", "world": task.world if task else ""}
        told |= {"text": seen.observation.text if seen else "", "score": seen.info.get("score") if seen else None}
        told |= {"picture": bool(seen and seen.observation.screenshot)}
        told |= {"film": not session.film.empty}
        told |= {"over": bool(seen and (seen.terminated or seen.truncated))}
        env = await session.env()
        if isinstance(env, Live):
            told["screen"] = "page"
        if isinstance(env, Watchable):
            told["screen"] = "desktop" if told["picture"] else ""
            own = f"{self._secret(f'service {name}')}/{name}/"
            told |= {"services": f"/watch/services/{own}", "whole": f"/watch/whole/{own}"}
        return told

    def _session(self, request: web.Request) -> Session:
        found = self._sessions.get(request.match_info["session"])
        if found is None:
            raise web.HTTPNotFound(text="this session is over")
        return found

    async def _env(self, session: Session) -> Env:
        try:
            async with asyncio.timeout(_OPEN_S):
                return await session.env()
        except (EnvError, TimeoutError) as error:
            raise web.HTTPBadGateway(text=str(error)) from None

    async def _streamed(
        self, request: web.Request, opens: Callable[[Watchable], Awaitable[Streams]], protocols: tuple[str, ...] = ()
    ) -> web.WebSocketResponse:
        _own(request)
        streams = await self._stream(self._session(request), opens)
        try:
            socket = await _socket(request, protocols)
        except BaseException:
            streams[1].close()
            raise
        await _joined(socket, streams)
        return socket

    async def _stream(self, session: Session, opens: Callable[[Watchable], Awaitable[Streams]]) -> Streams:
        env = await self._env(session)
        if not isinstance(env, Watchable):
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


def _own(request: web.Request) -> None:
    """Only a page of this node may ask; browsers tell whose page it is."""
    if urlsplit(request.headers.get("Origin", "")).netloc != request.host:
        raise web.HTTPForbidden(text="only its own pages may ask")


async def _socket(request: web.Request, protocols: tuple[str, ...] = ()) -> web.WebSocketResponse:
    _own(request)
    socket = web.WebSocketResponse(protocols=protocols, max_msg_size=2**20, heartbeat=_HEARTBEAT_S)
    try:
        await socket.prepare(request)
    except ConnectionError:
        raise web.HTTPBadRequest(text="who asked is gone") from None
    return socket


async def _joined(socket: web.WebSocketResponse, streams: Streams) -> None:
    """Until either ends."""
    reader, writer = streams

    async def out() -> None:
        while data := await reader.read(_CHUNK):
            await socket.send_bytes(data)

    async def back() -> None:
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                writer.write(message.data)
                await writer.drain()

    both = [asyncio.ensure_future(out()), asyncio.ensure_future(back())]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in both:
            one.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        writer.close()
        with contextlib.suppress(ConnectionError, RuntimeError):
            await socket.close()


def _file(name: str) -> web.Response:
    return web.Response(
        body=(_STATIC / name).read_bytes(), content_type=_FILES[name], charset="utf-8", headers=_headers()
    )


def _headers() -> dict[str, str]:
    return {
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
