"""Serve the emulated phone's pages: its home screen, and each application as a session of its site.

Each has an address of its own. `open/NAME` below the home screen's address redirects to an application, as it was left;
its session begins when it is first opened. All pages show the phone's status bar.
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

from flywheel.envs.base import Task, apply_verifier
from flywheel.envs.suites import catalogue
from flywheel.envs.suites.phone.home_screen import HOME_SCREEN, PHONE_APPS, find_phone_app
from flywheel.envs.suites.phone.world import PHONE
from flywheel.envs.suites.server import SuiteSession, WorldServer, WorldSession
from flywheel.envs.suites.site import site_address

_OPEN_APP_PATH = "open/"
_BODY_TAG = re.compile(r"<body[^>]*>")


@dataclass
class EmulatedPhone:
    """Hold one session of the phone.

    tokens: the unguessable part of each application's address, by site, begun or not. opened: sites, in the order in
    which they were opened.
    """

    task: Task
    tokens: Mapping[str, str]
    opened: list[str] = field(default_factory=list)


class PhoneServer(WorldServer):
    """Serve emulated phones to browsers (a `PageSource`) until its block ends: `async with PhoneServer() as pages:`."""

    def __init__(self) -> None:
        super().__init__()
        self._phones: dict[str, EmulatedPhone] = {}  # by the token of the home screen

    def open(self, task: Task, seed: int) -> PhoneSession:
        """Open a fresh session of the phone for `task`, whose params hold its whole content. seed: ignored."""
        token = secrets.token_urlsafe(16)
        self._sessions[token] = SuiteSession(PHONE, task, seed, HOME_SCREEN.start({"seed": 0}))
        phone = self._phones[token] = EmulatedPhone(task, {site: secrets.token_urlsafe(16) for site in PHONE_APPS})
        return PhoneSession(self, f"{self.url}/s/{token}/", task, phone)

    def begin(self, phone: EmulatedPhone, site: str) -> SuiteSession:
        """Return the session of the phone's application `site` as it was left; the first call begins it."""
        token = phone.tokens[site]
        if token not in self._sessions:
            world, params = catalogue.get_world(site), {"seed": PHONE.seed_of(phone.task.params, site)}
            task = dataclasses.replace(phone.task, world=site, params=params)
            self._sessions[token] = SuiteSession(world, task, phone.task.seed, world.play.start(params))
        return self._sessions[token]

    def end_phone(self, url: str, phone: EmulatedPhone) -> None:
        """End the session of the phone at `url`, and those of its applications."""
        self._phones.pop(url.rstrip("/").rpartition("/")[2], None)
        for token in phone.tokens.values():
            self._sessions.pop(token, None)

    # -- pages ----------------------------------------------------------------------------------------------------
    async def _answer(self, request: Request) -> Response:
        phone = self._phones.get(request.path_params["token"])
        path = request.path_params["path"]
        if phone is None or not path.startswith(_OPEN_APP_PATH):
            return await super()._answer(request)
        app = find_phone_app(path.removeprefix(_OPEN_APP_PATH))
        if app is None:
            return Response(status_code=204)  # the browser stays where it is, as there is no such application
        state = self.begin(phone, app.site).state
        phone.opened.append(app.site)
        return RedirectResponse(f"/s/{phone.tokens[app.site]}/{site_address(state['page'], **state['query'])}", 303)

    def _render(self, world: catalogue.BrowserWorld, template: str, base: str, **values: Any) -> Response:
        page = super()._render(world, template, base, **values)
        html = _BODY_TAG.sub(lambda body: body[0] + _status_bar_html(), page.body.decode(), count=1)
        headers = {name: page.headers[name] for name in ("Cache-Control", "Content-Security-Policy")}
        if world is PHONE:  # a script of the home screen handles long presses
            headers["Content-Security-Policy"] += "; script-src 'unsafe-inline'"
        return HTMLResponse(html, headers=headers)


class PhoneSession(WorldSession):
    """Hold a session of the phone as a browser sees it (a `PageSession`)."""

    def __init__(self, server: PhoneServer, url: str, task: Task, phone: EmulatedPhone) -> None:
        super().__init__(server, url, task)
        self._phone, self._urls = phone, {site: f"{server.url}/s/{token}/" for site, token in phone.tokens.items()}
        self.allowed = (url, *self._urls.values())  # the home screen first: a phone's home key leads there

    def state(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        """Build the state that a verifier reads. seen: what the browser shows, with its `url`.

        Its keys: `app`, the site of the application that is shown, "" for the home screen; `apps`, the states of the
        opened applications, by site; `home`, the home screen's state; `opened`, sites, in the order in which they were
        opened. Raises EnvError where the session has ended.
        """
        here = next((site for site, url in self._urls.items() if seen["url"].startswith(url)), "")
        states = {site: self._server.state(self._urls[site]) for site in dict.fromkeys(self._phone.opened)}
        return {"app": here, "apps": states, "home": self._server.state(self.url), "opened": list(self._phone.opened)}

    def score(self, state: Mapping[str, Any]) -> float:
        return apply_verifier(PHONE.score, self._task.verifier, self._task.params, state, self._task.task_id)

    def close(self) -> None:
        super().close()
        self._server.end_phone(self.url, self._phone)


@functools.cache
def _status_bar_html() -> str:
    template = (HOME_SCREEN.folder / "templates" / "status.html").read_text(encoding="utf-8")
    return jinja2.Template(template, undefined=jinja2.StrictUndefined).render(look=catalogue.load_look())
