"""Serve the pages and forms of the encyclopaedia."""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path
from typing import Any

from flywheel.envs.suites.encyclopaedia.facts import CONTINENTS, KINDS, SERIES, Article, articles, list_articles
from flywheel.envs.suites.forms import Field, one_of
from flywheel.envs.suites.site import Page, Site, Visit

ROWS = 12  # of a page of a table
HITS = 8  # of a page of search results
UNITS = {"temperature": ("kelvin", "celsius"), "area": ("kilometers", "miles")}
_MILE = 2.589988  # square kilometres
# kind -> what its tables show and sort by
COLUMNS = {
    "elements": ("number", "name", "density", "melting", "year", "weight"),
    "countries": ("name", "population", "area"),
    "cities": ("name", "population"),
    "people": ("name", "count", "first"),
}
_MAIN = {"elements": "number", "countries": "population", "cities": "population", "people": "count"}
LABELS = {
    "name": "Name",
    "symbol": "Symbol",
    "number": "Atomic number",
    "series": "Series",
    "group": "Group",
    "period": "Period",
    "block": "Block",
    "weight": "Atomic weight",
    "density": "Density",
    "melting": "Melting point",
    "boiling": "Boiling point",
    "pauling": "Electronegativity",
    "shells": "Electrons",
    "year": "Discovered",
    "continent": "Continent",
    "area": "Area",
    "population": "Population",
    "currency": "Currency",
    "domain": "Internet domain",
    "calling": "Calling code",
    "latitude": "Latitude",
    "longitude": "Longitude",
    "zone": "Time zone",
    "count": "Elements",
    "first": "First discovery",
}


def make_records(rng: random.Random, language: str) -> dict[str, Any]:
    """Draw what a reader has saved (reading list, notes, units), and what the start page features."""
    keys = rng.sample(list(articles()), 11)
    return {
        "reading": {key: True for key in keys[:4]},
        "notes": {keys[4]: "Read this again."},
        "units": {name: rng.choice(options) for name, options in UNITS.items()},
        "_featured": keys[5:],
    }


def shown(name: str, value: Any, units: dict[str, str]) -> str:
    """Format the value of the fact `name` as the pages show it."""
    if value is None:
        return "–"
    if name in ("melting", "boiling"):
        return f"{value:g} K" if units["temperature"] == "kelvin" else f"{celsius(value):g} °C"
    if name == "area":
        return f"{value:,.0f} km²" if units["area"] == "kilometers" else f"{value / _MILE:,.0f} sq mi"
    if name == "density":
        return f"{value:g} g/cm³"
    if name == "population":
        return f"{value:,}"
    return str(value)


def celsius(kelvin: float) -> float:
    return round(kelvin - 273.15, 2)


def _menu(visit: Visit) -> list[tuple[str, str, str]]:
    kinds = [(f"list/{kind}", visit.t(title), "") for kind, title in KINDS.items()]
    return [*kinds, ("compare", visit.t("Compare"), "")]


def _common(visit: Visit) -> dict[str, Any]:
    units = visit.records["units"]
    return {
        "accent": "#2f5d50",
        "accent_soft": "#e2efea",
        "articles": articles(),
        "labels": LABELS,
        "kinds": KINDS,
        "waiting": len(visit.records["reading"]),
        "show": lambda name, value: shown(name, value, units),
    }


site = Site(Path(__file__).parent, make_records, menu=_menu, common=_common)


@site.page("")
def home(visit: Visit) -> Page:
    featured = [articles()[key] for key in visit.records["_featured"]]
    return Page.of("home.html", featured=featured, counts={kind: len(list_articles(kind)) for kind in KINDS})


@site.page("wiki/<key>")
def article(visit: Visit, key: str) -> Page | None:
    if (one := articles().get(key)) is None:
        return None
    note = visit.records["notes"].get(key, "")
    return Page.of(
        "article.html",
        heading=one.title,
        key=key,
        article=one,
        tab=visit.option("tab", ("article", "note")),
        note=note,
        saved=key in visit.records["reading"],
        links=_links(one),
    )


def _links(one: Article) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the links by label, each with its element's name; a second link to an article has none, ""."""
    seen: set[str] = set()
    groups = []
    for label, keys in one.links.items():
        group = [(key, "" if key in seen else f"link {key}") for key in keys]
        seen.update(keys)
        if group:
            groups.append((label, group))
    return groups


@site.page("list/<kind>")
def table(visit: Visit, kind: str) -> Page | None:
    """Show the articles of a kind, narrowed by series or continent, sorted; those with an unknown value come last."""
    if kind not in KINDS:
        return None
    parts = {
        "elements": ("series", SERIES),
        "countries": ("continent", CONTINENTS),
        "cities": ("continent", CONTINENTS),
    }
    by, options = parts.get(kind, ("", ()))
    narrow = visit.option(by, ("", *options)) if by else ""
    sort, order = visit.option("sort", COLUMNS[kind]), visit.option("order", ("up", "down"))
    rows = [one for one in list_articles(kind) if not narrow or one.facts[by] == narrow]
    rows = ordered(rows, sort, order)
    count = max(1, -(-len(rows) // ROWS))
    number = visit.number("page", 1, 1, count)
    return Page.of(
        "list.html",
        heading=visit.t(KINDS[kind]),
        kind=kind,
        rows=rows[(number - 1) * ROWS : number * ROWS],
        total=len(rows),
        number=number,
        count=count,
        by=by,
        options=options,
        narrow=narrow,
        asked={by: narrow, "sort": sort, "order": order} if by else {"sort": sort, "order": order},
        columns=COLUMNS[kind],
        sort=sort,
        order=order,
        main=sort if sort != "name" else _MAIN[kind],
        sorts=[(name, visit.t(LABELS[name])) for name in COLUMNS[kind]],
        orders=[("up", visit.t("Rising")), ("down", visit.t("Falling"))],
    )


def ordered(rows: list[Article], sort: str, order: str) -> list[Article]:
    def fact(one: Article) -> Any:
        return _bare(one.title) if sort == "name" else one.facts[sort]

    known = sorted((one for one in rows if fact(one) is not None), key=fact, reverse=order == "down")
    return known + [one for one in rows if fact(one) is None]


@site.page("search")
def search(visit: Visit) -> Page:
    """Show the articles with the query as title or symbol, then those with its words in the title, then in the text."""
    asked = visit.query.get("q", "")
    found = found_by(asked)
    count = max(1, -(-len(found) // HITS))
    number = visit.number("page", 1, 1, count)
    hits = found[(number - 1) * HITS : number * HITS]
    return Page.of(
        "search.html", heading=visit.t("Search"), asked=asked, found=hits, total=len(found), number=number, count=count
    )


def found_by(asked: str) -> list[Article]:
    words = _bare(asked).split()
    if not words:
        return []
    ranked = []
    for one in articles().values():
        title = _bare(one.title)
        text = f"{title} {_bare(one.lead)} {_bare(' '.join(one.texts.values()))}"
        if title == " ".join(words) or one.facts.get("symbol") == asked.strip():
            ranked.append((0, one))
        elif all(word in title for word in words):
            ranked.append((1, one))
        elif all(word in text for word in words):
            ranked.append((2, one))
    return [one for _, one in sorted(ranked, key=lambda item: item[0])]


def _bare(text: str) -> str:
    """Fold a text to lower case without accents."""
    plain = unicodedata.normalize("NFKD", text)
    return "".join(one for one in plain if not unicodedata.combining(one)).casefold()


@site.page("compare")
def compare(visit: Visit) -> Page:
    """Show two articles side by side, found by their titles."""
    sides = []
    for name in ("a", "b"):
        title = visit.query.get(name, "")
        sides.append(next((one for one in articles().values() if _bare(one.title) == _bare(title.strip())), None))
    both = [one for one in sides if one is not None]
    names = [name for name in LABELS if any(name in one.facts for one in both)]
    return Page.of(
        "compare.html",
        heading=visit.t("Compare"),
        sides=sides,
        both=both,
        names=names,
        asked={name: visit.query.get(name, "") for name in ("a", "b")},
    )


@site.page("reading")
def reading(visit: Visit) -> Page:
    return Page.of(
        "reading.html",
        heading=visit.t("Reading list"),
        keys=list(visit.records["reading"]),
        notes=visit.records["notes"],
    )


@site.page("settings")
def settings(visit: Visit) -> Page:
    return Page.of("settings.html", heading=visit.t("Units"), units=visit.records["units"])


@site.form("wiki/<key>/save")
def save(visit: Visit, key: str) -> str | None:
    if key not in articles():
        return None
    if visit.records["reading"].pop(key, None) is None:
        visit.records["reading"][key] = True
        visit.notice("It is on your reading list.")
    return f"wiki/{key}"


@site.form("wiki/<key>/note")
def write(visit: Visit, key: str) -> str | None:
    """Save the note of an article; an empty text deletes it."""
    if key not in articles():
        return None
    text = visit.read(Field("text", required=False, longest=1000))["text"]
    if text:
        visit.records["notes"][key] = text
    else:
        visit.records["notes"].pop(key, None)
    visit.notice("Saved.")
    return f"wiki/{key}?tab=note"


@site.form("reading/<key>/remove")
def remove(visit: Visit, key: str) -> str | None:
    return "reading" if visit.records["reading"].pop(key, None) else None


@site.form("settings")
def keep(visit: Visit) -> str:
    visit.records["units"] = visit.read(*(Field(name, check=one_of(options)) for name, options in UNITS.items()))
    visit.notice("Saved.")
    return "settings"
