"""Serve the suites on 127.0.0.1: games and small pages as one page each, sites as pages with state on the server.

A session is at an unguessable path `/s/<token>/`. The state that a verifier reads stays in this process: no route
returns it, so an agent cannot reach it from the screen.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

import jinja2
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from flywheel.envs.base import Task
from flywheel.envs.suites import catalogue, changes, messages, verifiers
from flywheel.envs.suites.catalogue import BrowserWorld
from flywheel.utils.errors import EnvError
from flywheel.utils.local_ports import bind_free_port
from flywheel.utils.local_server import LocalServer

log = logging.getLogger(__name__)
# A page is one document that loads nothing else. A site's page runs no script, whatever text of users it shows.
_SCRIPTED = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'unsafe-inline'"
_POLICY = {
    "game": _SCRIPTED,
    "page": _SCRIPTED,
    "site": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; base-uri 'self'",
}
_MAX_FORM = 64_000  # bytes of a form that is accepted
_MAX_SENT = 64_000_000  # bytes of a request after which reading stops


@dataclass
class SuiteSession:
    """Hold one session of a suite. seed: of a page's random numbers. state: of a site's session; {} for other kinds."""

    world: BrowserWorld
    task: Task
    seed: int
    state: dict[str, Any] = field(default_factory=dict)


class WorldServer:
    """Serve the suites to browsers until the block ends: `async with WorldServer() as server:`; a process needs one.

    Raises EnvError, at the beginning of the block, where the server does not start.
    """

    def __init__(self) -> None:
        self.url = ""
        self._sessions: dict[str, SuiteSession] = {}
        self._pages: dict[str, jinja2.Environment] = {}

    async def __aenter__(self) -> WorldServer:
        listener = bind_free_port()
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        routes = [Route("/s/{token}/{path:path}", self._answer, methods=["GET", "POST"])]
        self._server = LocalServer(Starlette(routes=routes), [listener])
        await self._server.start(where="the world server")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()
        self._sessions.clear()

    # -- sessions -------------------------------------------------------------------------------------------------
    def open(self, task: Task, seed: int) -> WorldSession:
        """Open a fresh session of `task`, as a `PageSession`. seed, and what is raised: as in `new_session`."""
        return WorldSession(self, self.new_session(task, seed), task)

    def new_session(self, task: Task, seed: int) -> str:
        """Begin a fresh session of `task` and return its URL.

        seed: of the random numbers of a game or small page. Raises BadInput for an unknown suite.
        """
        world = catalogue.get_task_world(task)
        session = SuiteSession(world, task, seed)
        if world.kind == "site":
            session.state = world.play.start(task.params)
        token = secrets.token_urlsafe(16)
        self._sessions[token] = session
        return f"{self.url}/s/{token}/"

    def state(self, url: str) -> dict[str, Any]:
        """Return a copy of the state of the site's session at `url`; {} of a game or small page, which holds its own.

        Raises EnvError where there is no such session.
        """
        return changes.copy_records(self._session(url).state)

    def set_state(self, url: str, state: dict[str, Any]) -> None:
        """Replace the state of the site's session at `url` by `state`.

        Raises EnvError where there is no such session.
        """
        self._session(url).state = state

    def kind(self, url: str) -> str:
        """Return the kind of the suite whose session is at `url`: game, page or site.

        Raises EnvError where there is no such session.
        """
        return self._session(url).world.kind

    def end_session(self, url: str) -> None:
        """End the session at `url`; do nothing where there is none."""
        self._sessions.pop(_token(url), None)

    def _session(self, url: str) -> SuiteSession:
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
        if session.world.kind != "site":
            return self._game(session, base) if path == "" and request.method == "GET" else _missing()
        return await self._site(session, base, path, request)

    def _game(self, session: SuiteSession, base: str) -> Response:
        config = {
            "version": session.world.version,
            "seed": session.seed,
            "level": session.task.level,
            "params": dict(session.task.params),
            **catalogue.load_look(),
        }
        # "<" is escaped so that no value can close the script element.
        safe = Markup(json.dumps(config).replace("<", "\\u003c"))
        return self._render(session.world, "index.html", base, rules=session.task.instruction, config=safe)

    async def _site(self, session: SuiteSession, base: str, path: str, request: Request) -> Response:
        """Answer a request for a page, or a posted form; an error becomes an error page and harms no other session."""
        site, world = session.world.play, session.world
        try:
            if request.method != "POST":
                page = site.view(session.state, path, dict(request.query_params))
                if page is not None:
                    return self._render(world, page[0], base, **page[1])
                return self._refuse(world, base, 404, "There is no such page.")
            body = await _body(request)
            if body is None:
                return self._refuse(world, base, 413, "This form is too long to be sent.")
            fields = [pair.partition("=") for pair in body.decode("utf-8", "replace").split("&")]
            target = site.act(session.state, path, {unquote_plus(name): unquote_plus(text) for name, _, text in fields})
            if target is not None:
                return RedirectResponse(base + target, 303)
            return self._refuse(world, base, 404, "There is nothing here any more.")
        except Exception:
            log.exception("world %s failed at %s", world.name, path)
            return self._refuse(world, base, 500, "Something went wrong on our side.")

    def _refuse(self, world: BrowserWorld, base: str, status: int, text: str) -> Response:
        """Return an error page that says why the request is refused."""
        t = messages.load_messages(world.folder, world.language)
        answer = self._render(
            world, "error.html", base, text=t(text), back=t("Back to the start"), language=world.language
        )
        answer.status_code = status
        return answer

    def _render(self, world: BrowserWorld, template: str, base: str, **values: Any) -> Response:
        if world.name not in self._pages:
            loader = jinja2.FileSystemLoader([world.folder, world.folder / "templates", catalogue.SHARED_SOURCES])
            self._pages[world.name] = jinja2.Environment(
                loader=loader, autoescape=True, undefined=jinja2.StrictUndefined
            )
        page = self._pages[world.name].get_template(template)
        title = messages.load_messages(world.folder, world.language)(world.title)
        html = page.render(base=base, title=title, look=catalogue.load_look(), **values)
        return HTMLResponse(html, headers={"Cache-Control": "no-store", "Content-Security-Policy": _POLICY[world.kind]})


class WorldSession:
    """Hold a session of a suite as a browser's environment uses it (a `PageSession`).

    url: of its first page, from `WorldServer.new_session`. Its methods that read or write the server's state, and the
    constructor, raise EnvError where the session has ended.
    """

    viewport: tuple[int, int] | None = None
    step_ms: int | None = None
    prepare = ""
    state_expression = ""
    first_party = True

    def __init__(self, server: WorldServer, url: str, task: Task) -> None:
        self._server, self._task, self.url, self.allowed = server, task, url, (url,)
        self.files = None
        self.restorable = server.kind(url) == "game"  # its page holds all state; other pages have half-filled forms

    def state(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state that the verifier reads: the server's, or what the page reports in `seen["game"]`."""
        return self._server.state(self.url) or seen["game"] or {}

    def score(self, state: Mapping[str, Any]) -> float:
        """Score `state` by the task's verifier, in [0, 1]. Raises BadInput and DataError as `score_state`."""
        return verifiers.score_state(self._task, state)

    def save_server_state(self) -> bytes:
        return json.dumps(self._server.state(self.url)).encode()

    def restore_server_state(self, kept: bytes) -> None:
        """Restore the server's state from the bytes `kept`, as `save_server_state` gave them."""
        self._server.set_state(self.url, json.loads(kept))

    def close(self) -> None:
        self._server.end_session(self.url)


def _token(url: str) -> str:
    return url.split("/s/", 1)[-1].split("/", 1)[0]


def _missing() -> Response:
    return HTMLResponse("<h1>Not found</h1>", 404)


async def _body(request: Request) -> bytes | None:
    """Read the posted form; None where it is longer than _MAX_FORM bytes.

    A longer one is read to its end, up to _MAX_SENT bytes, and discarded: a browser shows the response only once it has
    sent everything.
    """
    kept, length = bytearray(), 0
    async for chunk in request.stream():
        length += len(chunk)
        if length > _MAX_SENT:
            break
        if length <= _MAX_FORM:
            kept += chunk
    return bytes(kept) if length <= _MAX_FORM else None
