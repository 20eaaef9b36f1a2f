"""Serve the pages and forms of the settings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flywheel.envs.suites.forms import Field, Invalid, clock, digits, email, one_of
from flywheel.envs.suites.settings import classic
from flywheel.envs.suites.settings.data import CHOICES, LEVELS, PERMISSIONS, ROLES, SECTIONS, SWITCHES, make_records
from flywheel.envs.suites.site import Page, Site, Visit

APPS_A_PAGE = 8
_OWN = ("network", "bluetooth", "display", "users", "about")  # sections with a template of their own


def _common(visit: Visit) -> dict[str, Any]:
    return {"accent": "#37475f", "accent_soft": "#e3e9f2", "sections": SECTIONS, "section": visit.path.split("/")[0]}


site = Site(Path(__file__).parent, make_records, common=_common, small=classic)


def _section(name: str, visit: Visit, **values: Any) -> Page:
    """Return the page of a section: its switches, choices and levels, and the `values` that its template needs."""
    now = visit.records["values"]
    return Page.of(
        f"section/{name if name in _OWN else 'plain'}.html",
        heading=visit.t(SECTIONS[name][0]),
        switches=[(key, title, text, now[key]) for key, (of, title, text) in SWITCHES.items() if of == name],
        choices=[
            (key, title, _named(visit, options), now[key])
            for key, (of, title, options) in CHOICES.items()
            if of == name
        ],
        levels=[(key, title, now[key]) for key, (of, title) in LEVELS.items() if of == name],
        values=now,
        records=visit.records,
        **values,
    )


def _named(visit: Visit, options: Iterable[str]) -> list[tuple[str, str]]:
    return [(option, visit.t(option)) for option in options]


@site.page("")
def home(visit: Visit) -> Page:
    return Page.of("home.html", device=visit.records["values"]["device"], account=visit.records["account"])


@site.page("search")
def search(visit: Visit) -> Page:
    """Show the settings whose title or description contains every word."""
    words = visit.query.get("q", "").casefold().split()
    titled = [(section, title, text) for section, title, text in SWITCHES.values()]
    titled += [(section, title, "") for section, title, _ in CHOICES.values()]
    titled += [(section, title, "") for section, title in LEVELS.values()]
    titled += [(section, title, "") for section, (title, _, _) in SECTIONS.items()]
    found = [
        (section, visit.t(title), visit.t(text))
        for section, title, text in titled
        if words and all(word in f"{visit.t(title)} {visit.t(text)}".casefold() for word in words)
    ]
    return Page.of("search.html", heading=visit.t("Search"), found=found, asked=visit.query.get("q", ""))


@site.page("apps")
def apps(visit: Visit) -> Page:
    sort = visit.option("sort", ("name", "-name", "size", "-size", "cache", "-cache"))
    wanted = visit.query.get("q", "").casefold()
    rows = [(key, app) for key, app in visit.records["apps"].items() if wanted in app["name"].casefold()]
    rows.sort(key=lambda row: row[1][sort.lstrip("-")], reverse=sort.startswith("-"))
    count = max(1, -(-len(rows) // APPS_A_PAGE))
    number = visit.number("page", 1, 1, count)
    return Page.of(
        "apps.html",
        heading=visit.t("Apps"),
        rows=rows[(number - 1) * APPS_A_PAGE : number * APPS_A_PAGE],
        number=number,
        count=count,
        sort=sort,
        asked=visit.query.get("q", ""),
        total=len(rows),
    )


@site.page("apps/<key>")
def app(visit: Visit, key: str) -> Page | None:
    if (one := visit.records["apps"].get(key)) is None:
        return None
    return Page.of(
        "app.html", heading=one["name"], key=key, app=one, permissions=PERMISSIONS, ask=visit.query.get("ask")
    )


@site.page("network/<key>")
def network(visit: Visit, key: str) -> Page | None:
    if (one := visit.records["networks"].get(key)) is None:
        return None
    return Page.of("network.html", heading=one["name"], key=key, network=one, ask=visit.query.get("ask"))


@site.page("bluetooth/<key>")
def device(visit: Visit, key: str) -> Page | None:
    if (one := visit.records["devices"].get(key)) is None:
        return None
    return Page.of("device.html", heading=one["name"], key=key, device=one)


@site.page("users/new")
def new_user(visit: Visit) -> Page:
    return Page.of(
        "user.html",
        heading=visit.t("Add a user"),
        key="new",
        user={"name": "", "role": "Guest"},
        roles=_named(visit, ROLES),
        ask=None,
    )


@site.page("users/<key>")
def user(visit: Visit, key: str) -> Page | None:
    if (one := visit.records["users"].get(key)) is None:
        return None
    roles = _named(visit, ROLES)
    return Page.of("user.html", heading=one["name"], key=key, user=one, roles=roles, ask=visit.query.get("ask"))


@site.page("account")
def account(visit: Visit) -> Page:
    return Page.of("account.html", heading=visit.t("Account"), account=visit.records["account"])


@site.page("account/password")
def password(visit: Visit) -> Page:
    return Page.of("password.html", heading=visit.t("Change the password"))


@site.page("<name>")
def section(visit: Visit, name: str) -> Page | None:
    return _section(name, visit) if name in SECTIONS else None


# -- forms -----------------------------------------------------------------------------------------------------------
@site.form("switch/<key>")
def switch(visit: Visit, key: str) -> str | None:
    if key not in SWITCHES:
        return None
    visit.records["values"][key] = not visit.records["values"][key]
    return SWITCHES[key][0]


@site.form("level/<key>")
def level(visit: Visit, key: str) -> str | None:
    if key not in LEVELS:
        return None
    step = {"up": 10, "down": -10}.get(visit.form.get("way", ""), 0)
    values = visit.records["values"]
    values[key] = min(max(values[key] + step, 0), 100)
    return LEVELS[key][0]


@site.form("choices/<name>")
def choices(visit: Visit, name: str) -> str | None:
    """Save all choices of a section at once."""
    mine = {key: options for key, (of, _, options) in CHOICES.items() if of == name}
    if not mine:
        return None
    visit.records["values"] |= visit.read(*(Field(key, check=one_of(options)) for key, options in mine.items()))
    visit.notice("Saved.")
    return name


@site.form("night")
def night(visit: Visit) -> str:
    read = visit.read(Field("night_from", check=clock), Field("night_to", check=clock))
    visit.records["values"] |= read
    visit.notice("Saved.")
    return "display"


@site.form("rename")
def rename(visit: Visit) -> str:
    visit.records["values"]["device"] = visit.read(Field("device", longest=30))["device"]
    visit.notice("The device has a new name.")
    return "about"


@site.form("network/<key>/connect")
def connect(visit: Visit, key: str) -> str | None:
    networks = visit.records["networks"]
    if key not in networks:
        return None
    if networks[key]["secure"] and not networks[key]["saved"]:
        given = visit.read(Field("password", longest=60))["password"]
        if len(given) < 8:
            raise Invalid(password="A password has at least 8 characters.")
        networks[key]["password"] = given
    for other in networks.values():
        other["connected"] = False
    networks[key] |= {"connected": True, "saved": True}
    visit.notice("Connected to {name}.", name=networks[key]["name"])
    return "network"


@site.form("network/<key>/<what>")
def leave(visit: Visit, key: str, what: str) -> str | None:
    if key not in visit.records["networks"] or what not in ("disconnect", "forget"):
        return None
    one = visit.records["networks"][key]
    one["connected"] = False
    if what == "forget":
        one["saved"] = False
        one.pop("password", None)
    visit.notice("Disconnected." if what == "disconnect" else "{name} is forgotten.", name=one["name"])
    return "network"


@site.form("bluetooth/<key>/pair")
def pair(visit: Visit, key: str) -> str | None:
    if (one := visit.records["devices"].get(key)) is None:
        return None
    one["code"] = visit.read(Field("code", check=digits(4)))["code"]
    one["paired"] = True
    visit.notice("{name} is paired.", name=one["name"])
    return "bluetooth"


@site.form("bluetooth/<key>/unpair")
def unpair(visit: Visit, key: str) -> str | None:
    if (one := visit.records["devices"].get(key)) is None:
        return None
    one["paired"] = False
    one.pop("code", None)
    return "bluetooth"


@site.form("apps/<key>/allow")
def allow(visit: Visit, key: str) -> str | None:
    one, permission = visit.records["apps"].get(key), visit.form.get("permission")
    if one is None or permission not in PERMISSIONS:
        return None
    one[permission] = not one[permission]
    return f"apps/{key}"


@site.form("apps/<key>/clear")
def clear(visit: Visit, key: str) -> str | None:
    if (one := visit.records["apps"].get(key)) is None:
        return None
    one["cache"] = 0
    visit.notice("The cache is empty.")
    return f"apps/{key}"


@site.form("apps/<key>/uninstall")
def uninstall(visit: Visit, key: str) -> str | None:
    if (one := visit.records["apps"].pop(key, None)) is None:
        return None
    visit.notice("{name} is uninstalled.", name=one["name"])
    return "apps"


@site.form("users/<key>/save")
def save_user(visit: Visit, key: str) -> str | None:
    users = visit.records["users"]
    if key != "new" and key not in users:
        return None
    values = visit.read(Field("name", longest=60), Field("role", check=one_of(ROLES)))
    if any(one["name"] == values["name"] for other, one in users.items() if other != key):
        raise Invalid(name="There is a user of this name.")
    if key == "new":
        number = visit.records["_users"] = visit.records.get("_users", len(users)) + 1
        key = f"u{number}"
    users[key] = values
    visit.notice("Saved.")
    return "users"


@site.form("users/<key>/remove")
def remove_user(visit: Visit, key: str) -> str | None:
    if key == "u0" or (one := visit.records["users"].pop(key, None)) is None:
        return None
    visit.notice("{name} is removed.", name=one["name"])
    return "users"


@site.form("account/save")
def save_account(visit: Visit) -> str:
    visit.records["account"] |= visit.read(
        Field("name", longest=60), Field("email", check=email), Field("phone", check=digits(9))
    )
    visit.notice("Saved.")
    return "account"


@site.form("account/password")
def save_password(visit: Visit) -> str:
    values = visit.read(Field("old"), Field("new"), Field("again"))
    if values["old"] != visit.records["account"]["password"]:
        raise Invalid(old="This is not your password.")
    if len(values["new"]) < 8:
        raise Invalid(new="A password has at least 8 characters.")
    if values["new"] != values["again"]:
        raise Invalid(again="The two are not the same.")
    visit.records["account"]["password"] = values["new"]
    visit.notice("The password is changed.")
    return "account"
