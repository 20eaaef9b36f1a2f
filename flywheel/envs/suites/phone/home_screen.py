"""Define the applications of the emulated phone, and the pages of its home screen."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from flywheel.envs.suites.site import Page, Records, Site, Visit

# The applications are sites of the package; their icons are on two screens.


@dataclass(frozen=True)
class PhoneApp:
    """Describe an application.

    site: its suite. name: below its icon, and in the action open_app. shape: SVG path on a 24 x 24 grid. screen: 0 or
    1, the screen of the home screen that its icon is on.
    """

    site: str
    name: str
    colour: str
    shape: str
    screen: int


_ALL = (
    PhoneApp("mail", "Mail", "#b23c17", "M2 5h20v1l-10 7L2 6zM2 8.5l10 7 10-7V19H2z", 0),
    PhoneApp("calendar", "Calendar", "#1e5fd0", "M4 4h3V2h2v2h6V2h2v2h3v17H4zM6 9v10h12V9zM8 11h3v3H8z", 0),
    PhoneApp("board", "Board", "#7a3fb0", "M3 4h5v16H3zM10 4h5v10h-5zM17 4h4v7h-4z", 0),
    PhoneApp(
        "encyclopaedia", "Almanac", "#0b7285", "M3 4h8v15H3zM13 4h8v15h-8zM5 7h4v1H5zM5 10h4v1H5zM15 7h4v1h-4z", 0
    ),
    PhoneApp("files", "Files", "#8a5a00", "M2 5h8l2 2h10v12H2z", 0),
    PhoneApp("forum", "Forum", "#1f6f3f", "M3 4h18v12H10l-5 5v-5H3z", 1),
    PhoneApp("shop", "Shop", "#a3266b", "M5 7h3a4 4 0 0 1 8 0h3l1 14H4zM10 7h4a2 2 0 0 0-4 0z", 1),
    PhoneApp("settings", "Settings", "#5c6470",
        "M10 2h4l1 3 3-1 2 3-2 3v4l2 3-2 3-3-1-1 3h-4l-1-3-3 1-2-3 2-3v-4L4 7l2-3 3 1z"
        "M12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6z", 1),
)  # fmt: skip
PHONE_APPS: dict[str, PhoneApp] = {app.site: app for app in _ALL}


def find_phone_app(name: str) -> PhoneApp | None:
    """Find the phone's application called `name`, in any case, or whose site is; None where there is none."""
    asked = name.strip().casefold()
    return next((app for app in _ALL if asked in (app.name.casefold(), app.site)), None)


# The home screen has two screens of icons side by side; a long press on an icon opens its menu.

_N_SCREENS = 2


def _fresh_icons(rng: random.Random, language: str) -> Records:
    return {"icons": {app.site: {"name": app.name} for app in PHONE_APPS.values()}}


HOME_SCREEN = Site(Path(__file__).parent / "home", data=_fresh_icons)


@HOME_SCREEN.page("")
def show_home_screen(visit: Visit) -> Page:
    shown = [app for app in PHONE_APPS.values() if app.site in visit.records["icons"]]
    return Page.of("screens.html", screens=[[app for app in shown if app.screen == n] for n in range(_N_SCREENS)])


@HOME_SCREEN.page("icon/<site>")
def show_icon_menu(visit: Visit, site: str) -> Page | None:
    return Page.of("icon.html", app=PHONE_APPS[site]) if site in visit.records["icons"] else None


@HOME_SCREEN.form("icon/<site>/remove")
def remove_icon(visit: Visit, site: str) -> str | None:
    return "" if visit.records["icons"].pop(site, None) else None
