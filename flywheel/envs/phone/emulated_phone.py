"""Implement the back-end `phone`: serve the emulated phone's pages, and show them in touched browsers."""

from __future__ import annotations

import dataclasses
import functools
import re
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from pydantic import Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from flywheel.config import SandboxSettings, Settings
from flywheel.envs import verdict
from flywheel.envs.base import Task, TaskSuite
from flywheel.envs.browser import chromium
from flywheel.envs.browser.pool import BrowserPool
from flywheel.envs.registry import BackendSettings, EnvLimits, EnvPool, parse_backend_settings
from flywheel.envs.suites import catalogue
from flywheel.envs.suites.phone.home_screen import HOME_SCREEN, PHONE_APPS, find_phone_app
from flywheel.envs.suites.phone.world import PHONE
from flywheel.envs.suites.server import SuiteSession, WorldServer, WorldSession
from flywheel.envs.suites.site import site_address
from flywheel.envs.verdict import Verifier
from flywheel.utils.errors import BadInput, Finding, run_diagnostic

# The phone's pages: its home screen, and each application as a session of its site at an address of its own.
#
# `open/NAME` below the home screen's address leads to an application, where it was left; its session begins when it is
# first opened. All pages show the phone's status bar.

_OPEN_APP_PATH = "open/"
_BODY_TAG = re.compile(r"<body[^>]*>")


@dataclass
class EmulatedPhone:
    """One session. tokens: of the applications, begun or not. opened: those that were opened, in order."""

    task: Task
    tokens: Mapping[str, str]
    opened: list[str] = field(default_factory=list)


class PhoneServer(WorldServer):
    def __init__(self) -> None:
        super().__init__()
        self._phones: dict[str, EmulatedPhone] = {}  # by the token of the home screen

    def open(self, task: Task, seed: int) -> PhoneSession:
        token = secrets.token_urlsafe(16)
        self._sessions[token] = SuiteSession(PHONE, task, seed, HOME_SCREEN.start({"seed": 0}))
        phone = self._phones[token] = EmulatedPhone(task, {site: secrets.token_urlsafe(16) for site in PHONE_APPS})
        return PhoneSession(self, f"{self.url}/s/{token}/", task, phone)

    def begin(self, phone: EmulatedPhone, site: str) -> SuiteSession:
        """The application's session, as it was left."""
        token = phone.tokens[site]
        if token not in self._sessions:
            world, params = catalogue.get_world(site), {"seed": PHONE.seed_of(phone.task.params, site)}
            task = dataclasses.replace(phone.task, world=site, params=params)
            self._sessions[token] = SuiteSession(world, task, phone.task.seed, world.play.start(params))
        return self._sessions[token]

    def end_phone(self, url: str, phone: EmulatedPhone) -> None:
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
            return Response(status_code=204)  # nothing happens, as where there is no such application
        state = self.begin(phone, app.site).state
        phone.opened.append(app.site)
        return RedirectResponse(f"/s/{phone.tokens[app.site]}/{site_address(state['page'], **state['query'])}", 303)

    def _render(self, world: catalogue.BrowserWorld, template: str, base: str, **values: Any) -> Response:
        page = super()._render(world, template, base, **values)
        html = _BODY_TAG.sub(lambda body: body[0] + _status_bar_html(), page.body.decode(), count=1)
        headers = {name: page.headers[name] for name in ("Cache-Control", "Content-Security-Policy")}
        if world is PHONE:  # the home screen hears of long presses
            headers["Content-Security-Policy"] += "; script-src 'unsafe-inline'"
        return HTMLResponse(html, headers=headers)


class PhoneSession(WorldSession):
    """Hold a session of the phone as a browser sees it (a `PageSession`)."""

    def __init__(self, server: PhoneServer, url: str, task: Task, phone: EmulatedPhone) -> None:
        super().__init__(server, url, task)
        self._phone, self._urls = phone, {site: f"{server.url}/s/{token}/" for site, token in phone.tokens.items()}
        self.allowed = (url, *self._urls.values())  # the home screen first: a phone's home key leads there

    def state(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        """app: the site of the application that is seen; "": the home screen. apps: the states of those that were
        opened, by site. home: the home screen's. opened: which were opened, in order."""
        here = next((site for site, url in self._urls.items() if seen["url"].startswith(url)), "")
        states = {site: self._server.state(self._urls[site]) for site in dict.fromkeys(self._phone.opened)}
        return {"app": here, "apps": states, "home": self._server.state(self.url), "opened": list(self._phone.opened)}

    def score(self, state: Mapping[str, Any]) -> float:
        return verdict.apply_verifier(PHONE.score, self._task.verifier, self._task.params, state, self._task.task_id)

    def close(self) -> None:
        super().close()
        self._server.end_phone(self.url, self._phone)


@functools.cache
def _status_bar_html() -> str:
    template = (HOME_SCREEN.folder / "templates" / "status.html").read_text(encoding="utf-8")
    return jinja2.Template(template, undefined=jinja2.StrictUndefined).render(look=catalogue.load_look())


# The back-end `phone`: browser pages that are touched, on the emulated phone's pages.

_BACKEND_NAME = "phone"
_IN_IDENTITY = {"width", "height", "step_ms", "frames", "heap_mb", "download_mb"}  # settings that change what happens


class PhoneSettings(BackendSettings):
    """Emulated phones. What is not said here is as `sandbox` has it for browsers."""

    width: int = Field(360, ge=240, le=640)
    """Of the screen, in pixels."""
    height: int = Field(640, ge=320, le=1400)
    """Of the screen, in pixels."""


class PhoneBackend:
    """Implement the back-end of the emulated phone."""

    def suites(self) -> Iterable[str]:
        return [PHONE.name]

    def suite(self, name: str) -> TaskSuite:
        """Return the phone's one task suite, whatever `name`."""
        return PHONE

    def verifier(self, task: Task) -> Verifier:
        """Return the verifier that `task` names. Raises BadInput where there is none of that name."""
        found = PHONE.verifier(task.verifier)
        if found is None:
            raise BadInput(f"no verifier is called {task.verifier!r}", where=task.task_id, fix="draw the task again")
        return found

    def limits(self, settings: Settings) -> EnvLimits:
        """Return how many environments may be open at once, and their deadlines, by the settings."""
        return parse_backend_settings(settings, _BACKEND_NAME, PhoneSettings).limits

    def identity(self, settings: Settings) -> Mapping[str, Any]:
        """Return those of its settings that an episode's course depends on."""
        return phone_browser_settings(settings).model_dump(include=_IN_IDENTITY)

    def check(self, settings: Settings) -> None:
        """Check its settings and what this machine needs for them. Raises BadInput."""
        parse_backend_settings(settings, _BACKEND_NAME, PhoneSettings)
        chromium.find_chromium(settings.sandbox)

    def diagnose(self, settings: Settings) -> Iterable[Finding]:
        """Say, for `flywheel doctor`, whether this machine has what it needs."""
        return (
            run_diagnostic(_BACKEND_NAME, lambda: f"phones are shown by {chromium.find_chromium(settings.sandbox)}"),
        )

    @asynccontextmanager
    async def open(self, settings: Settings, root: Path | None) -> AsyncIterator[EnvPool]:
        """Open a pool of its environments until the block ends.

        root: the folder that relative paths in the settings count from; None: the current one. Raises EnvError where
        none can be opened.
        """
        async with (
            PhoneServer() as source,
            BrowserPool(phone_browser_settings(settings), source, root, touch=True) as pool,
        ):
            yield pool


def phone_browser_settings(settings: Settings) -> SandboxSettings:
    """Return the settings of the browsers that show the phones."""
    chosen = parse_backend_settings(settings, _BACKEND_NAME, PhoneSettings)
    return settings.sandbox.model_copy(
        update={"width": chosen.width, "height": chosen.height, "pages": chosen.places, "timeout_s": chosen.timeout_s}
    )
