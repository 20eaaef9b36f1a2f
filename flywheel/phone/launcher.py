"""The phone's home screen: two screens of icons side by side; a long press on one asks what to do with it."""

from __future__ import annotations

import random
from pathlib import Path

from flywheel.phone.apps import APPS
from flywheel.worlds.site import Page, Records, Site, Visit

_SCREENS = 2


def _fresh(rng: random.Random, language: str) -> Records:
    return {"icons": {app.site: {"name": app.name} for app in APPS.values()}}


HOME = Site(Path(__file__).parent / "home", data=_fresh)


@HOME.page("")
def home(visit: Visit) -> Page:
    shown = [app for app in APPS.values() if app.site in visit.records["icons"]]
    return Page.of("screens.html", screens=[[app for app in shown if app.screen == n] for n in range(_SCREENS)])


@HOME.page("icon/<site>")
def icon(visit: Visit, site: str) -> Page | None:
    return Page.of("icon.html", app=APPS[site]) if site in visit.records["icons"] else None


@HOME.form("icon/<site>/remove")
def remove(visit: Visit, site: str) -> str | None:
    return "" if visit.records["icons"].pop(site, None) else None
