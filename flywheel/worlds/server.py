"""Serves the worlds on 127.0.0.1: games as one page each, sites as pages with state on the server.

A session lives under an unguessable path `/s/<token>/`. The state that a verifier reads stays in this process: no
address gives it out, so an agent cannot reach it from the screen.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import logging
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

import jinja2
import uvicorn
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from flywheel.errors import EnvError
from flywheel.sandbox.env import Task
from flywheel.worlds import catalogue
from flywheel.worlds.catalogue import World

log = logging.getLogger(__name__)
# A page is one document: nothing is loaded beside it, and a site's page runs no script, whatever text it shows.
_POLICY = {
    "game": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'unsafe-inline'",
    "site": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; base-uri 'self'",
}
_MAX_FORM = 10_000  # bytes
_START_S = 20.0


@dataclass
class Session:
    world: World
    task: Task
    seed: int
    state: dict[str, Any] = field(default_factory=dict)


class WorldServer:
    """`async with WorldServer() as server:` serves until the block ends; one is enough for a process."""

    def __init__(self) -> None:
        self.url = ""
        self._sessions: dict[str, Session] = {}
        self._pages: dict[str, jinja2.Environment] = {}

    async def __aenter__(self) -> WorldServer:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        routes = [Route("/s/{token}/{path:path}", self._answer, methods=["GET", "POST"])]
        config = uvicorn.Config(
            Starlette(routes=routes), log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        self._server = _QuietServer(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        async with asyncio.timeout(_START_S):
            while not self._server.started:
                if self._task.done():
                    raise EnvError("the world server did not start", where=self.url) from self._task.exception()
                await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        await self._task
        self._sessions.clear()

    # -- sessions -------------------------------------------------------------------------------------------------
    def new_session(self, task: Task, seed: int) -> str:
        """Address of a fresh session of the task. Raises BadInput for an unknown world."""
        world = catalogue.get(task.world)
        session = Session(world, task, seed)
        if world.kind == "site":
            session.state = world.module.start(task.params)
        token = secrets.token_urlsafe(16)
        self._sessions[token] = session
        return f"{self.url}/s/{token}/"

    def state(self, url: str) -> dict[str, Any]:
        """What happened in a site's session so far (a copy); a game's state lives in its page: {}."""
        return copy.deepcopy(self._session(url).state)

    def end_session(self, url: str) -> None:
        self._sessions.pop(_token(url), None)

    def _session(self, url: str) -> Session:
        session = self._sessions.get(_token(url))
        if session is None:
            raise EnvError("no such session", where=url)
        return session

    # -- pages ----------------------------------------------------------------------------------------------------
    async def _answer(self, request: Request) -> Response:
        token, path = request.path_params["token"], request.path_params["path"]
        session = self._sessions.get(token)
        if session is None:
            return HTMLResponse("no such session", 404)
        base = f"/s/{token}/"
        if session.world.kind == "game":
            return self._game(session, base) if path == "" and request.method == "GET" else _missing()
        return await self._site(session, base, path, request)

    def _game(self, session: Session, base: str) -> Response:
        config = {
            "version": session.world.version, "seed": session.seed, "level": session.task.level,
            "params": dict(session.task.params), "icons": catalogue.look()["icons"],
        }  # fmt: skip
        # "<" is escaped so that no value can close the script element.
        return self._render(
            session.world, "index.html", base, config=Markup(json.dumps(config).replace("<", "\\u003c"))
        )

    async def _site(self, session: Session, base: str, path: str, request: Request) -> Response:
        site = session.world.module
        if request.method == "GET":
            page = site.view(session.state, path, dict(request.query_params))
            return _missing() if page is None else self._render(session.world, page[0], base, **page[1])
        body = await request.body()
        if len(body) > _MAX_FORM:
            return HTMLResponse("the form is too long", 413)
        fields = [pair.partition("=") for pair in body.decode("utf-8", "replace").split("&")]
        form = {unquote_plus(name): unquote_plus(value) for name, _, value in fields}
        target = site.act(session.state, path, form)
        return _missing() if target is None else RedirectResponse(base + target, 303)

    def _render(self, world: World, template: str, base: str, **values: Any) -> Response:
        if world.name not in self._pages:
            loader = jinja2.FileSystemLoader([world.folder, world.folder / "templates", catalogue.SHARED])
            self._pages[world.name] = jinja2.Environment(
                loader=loader, autoescape=True, undefined=jinja2.StrictUndefined
            )
        page = self._pages[world.name].get_template(template)
        html = page.render(base=base, title=world.title, look=catalogue.look(), **values)
        return HTMLResponse(html, headers={"Cache-Control": "no-store", "Content-Security-Policy": _POLICY[world.kind]})


class _QuietServer(uvicorn.Server):
    """Leaves the process's signal handlers alone: they belong to the command."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _token(url: str) -> str:
    return url.split("/s/", 1)[-1].split("/", 1)[0]


def _missing() -> Response:
    return HTMLResponse("<h1>Not found</h1>", 404)
