"""The applications of the emulated phone: sites of the package, two screens of icons."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class App:
    """site: the world that it is. name: below its icon, and what the action open_app calls it by. shape: SVG path on a
    24 x 24 grid. screen: 0 or 1, of the home screen's."""

    site: str
    name: str
    colour: str
    shape: str
    screen: int


_ALL = (
    App("mail", "Mail", "#b23c17", "M2 5h20v1l-10 7L2 6zM2 8.5l10 7 10-7V19H2z", 0),
    App("calendar", "Calendar", "#1e5fd0", "M4 4h3V2h2v2h6V2h2v2h3v17H4zM6 9v10h12V9zM8 11h3v3H8z", 0),
    App("board", "Board", "#7a3fb0", "M3 4h5v16H3zM10 4h5v10h-5zM17 4h4v7h-4z", 0),
    App("encyclopaedia", "Almanac", "#0b7285", "M3 4h8v15H3zM13 4h8v15h-8zM5 7h4v1H5zM5 10h4v1H5zM15 7h4v1h-4z", 0),
    App("files", "Files", "#8a5a00", "M2 5h8l2 2h10v12H2z", 0),
    App("forum", "Forum", "#1f6f3f", "M3 4h18v12H10l-5 5v-5H3z", 1),
    App("shop", "Shop", "#a3266b", "M5 7h3a4 4 0 0 1 8 0h3l1 14H4zM10 7h4a2 2 0 0 0-4 0z", 1),
    App("settings", "Settings", "#5c6470",
        "M10 2h4l1 3 3-1 2 3-2 3v4l2 3-2 3-3-1-1 3h-4l-1-3-3 1-2-3 2-3v-4L4 7l2-3 3 1z"
        "M12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6z", 1),
)  # fmt: skip
APPS: dict[str, App] = {app.site: app for app in _ALL}


def called(name: str) -> App | None:
    """The application of a name, in whatever case; its site's name will do. None: there is none."""
    asked = name.strip().casefold()
    return next((app for app in _ALL if asked in (app.name.casefold(), app.site)), None)
