"""Serves the emulated phone: its home screen, and each application as a session of its site at an address of its own.

`open/NAME` below the home screen's address leads to an application, where it was left; it begins when it is first
opened. All pages wear the phone's status bar.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from flywheel.environments.env import Task
from flywheel.phone.apps import APPS, called
from flywheel.phone.launcher import HOME
from flywheel.phone.world import PHONE
from flywheel.reward import verifier
from flywheel.worlds import catalogue
from flywheel.worlds.server import Session, WorldServer, WorldSession
from flywheel.worlds.site import address

_OPEN = "open/"
_BODY = re.compile(r"<body[^>]*>")


@dataclass
class Phone:
    """One session. tokens: of the applications, begun or not. opened: those that were opened, in order."""

    task: Task
    tokens: Mapping[str, str]
    opened: list[str] = field(default_factory=list)


class PhoneServer(WorldServer):
    def __init__(self) -> None:
        super().__init__()
        self._phones: dict[str, Phone] = {}  # by the token of the home screen

    def open(self, task: Task, seed: int) -> PhoneSession:
        token = secrets.token_urlsafe(16)
        self._sessions[token] = Session(PHONE, task, seed, HOME.start({"seed": 0}))
        phone = self._phones[token] = Phone(task, {site: secrets.token_urlsafe(16) for site in APPS})
        return PhoneSession(self, f"{self.url}/s/{token}/", task, phone)

    def begin(self, phone: Phone, site: str) -> Session:
        """The application's session, as it was left."""
        token = phone.tokens[site]
        if token not in self._sessions:
            world, params = catalogue.get(site), {"seed": PHONE.seed_of(phone.task.params, site)}
            task = dataclasses.replace(phone.task, world=site, params=params)
            self._sessions[token] = Session(world, task, phone.task.seed, world.play.start(params))
        return self._sessions[token]

    def end_phone(self, url: str, phone: Phone) -> None:
        self._phones.pop(url.rstrip("/").rpartition("/")[2], None)
        for token in phone.tokens.values():
            self._sessions.pop(token, None)

    # -- pages ----------------------------------------------------------------------------------------------------
    async def _answer(self, request: Request) -> Response:
        phone = self._phones.get(request.path_params["token"])
        path = request.path_params["path"]
        if phone is None or not path.startswith(_OPEN):
            return await super()._answer(request)
        app = called(path.removeprefix(_OPEN))
        if app is None:
            return Response(status_code=204)  # nothing happens, as where there is no such application
        state = self.begin(phone, app.site).state
        phone.opened.append(app.site)
        return RedirectResponse(f"/s/{phone.tokens[app.site]}/{address(state['page'], **state['query'])}", 303)

    def _render(self, world: catalogue.World, template: str, base: str, **values: Any) -> Response:
        page = super()._render(world, template, base, **values)
        html = _BODY.sub(lambda body: body[0] + _status(), page.body.decode(), count=1)
        headers = {name: page.headers[name] for name in ("Cache-Control", "Content-Security-Policy")}
        if world is PHONE:  # the home screen hears of long presses
            headers["Content-Security-Policy"] += "; script-src 'unsafe-inline'"
        return HTMLResponse(html, headers=headers)


class PhoneSession(WorldSession):
    """A session of the phone as a browser sees it (`sandbox.sessions.PageSession`)."""

    def __init__(self, server: PhoneServer, url: str, task: Task, phone: Phone) -> None:
        super().__init__(server, url, task)
        self._phone, self._urls = phone, {site: f"{server.url}/s/{token}/" for site, token in phone.tokens.items()}
        self.allowed = (url, *self._urls.values())  # the home screen first (`sandbox.touch`)

    def state(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        """app: the site of the application that is seen; "": the home screen. apps: the states of those that were
        opened, by site. home: the home screen's. opened: which were opened, in order."""
        here = next((site for site, url in self._urls.items() if seen["url"].startswith(url)), "")
        states = {site: self._server.state(self._urls[site]) for site in dict.fromkeys(self._phone.opened)}
        return {"app": here, "apps": states, "home": self._server.state(self.url), "opened": list(self._phone.opened)}

    def score(self, state: Mapping[str, Any]) -> float:
        return verifier.apply(PHONE.score, self._task.verifier, self._task.params, state, self._task.task_id)

    def close(self) -> None:
        super().close()
        self._server.end_phone(self.url, self._phone)


@functools.cache
def _status() -> str:
    template = (HOME.folder / "templates" / "status.html").read_text(encoding="utf-8")
    return jinja2.Template(template, undefined=jinja2.StrictUndefined).render(look=catalogue.look())
