"""Define the encyclopaedia's task templates that ask what one article or one table answers."""

from __future__ import annotations

from flywheel.envs.suites.encyclopaedia import nav
from flywheel.envs.suites.encyclopaedia.facts import CONTINENTS, SERIES, list_articles
from flywheel.envs.suites.encyclopaedia.pages import LABELS, celsius, ordered
from flywheel.envs.suites.encyclopaedia.questions import (
    ANY_UNITS,
    chain,
    draw_article,
    get_article,
    has_single_links,
    of_first,
)
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Answer, Draw, Params, Redraw, SiteTask

_COMPARED = (
    ("elements", "density", "is denser"),
    ("elements", "weight", "has the larger atomic weight"),
    ("countries", "area", "has the larger area"),
    ("countries", "population", "has more people"),
)


# -- one article -------------------------------------------------------------------------------------------------------
def _draw_fact(d: Draw) -> Params:
    kind, names = d.rng.choice(
        (
            ("elements", ("symbol", "number", "group", "period", "block", "density", "year")),
            ("countries", ("domain", "calling", "population")),
            ("cities", ("zone",)),
        )
    )
    name = d.rng.choice(names)
    one = draw_article(d, kind, lambda a: a.facts[name] not in (None, ""))
    what = {"year": "year of discovery", "density": "density in g/cm³"}.get(name, LABELS[name].lower())
    return {"key": one.slug, "title": one.title, "fact": name, "what": what}


def _fact(p: Params) -> Answer:
    value = get_article(p["key"]).facts[p["fact"]]
    return value if isinstance(value, int | float) and p["fact"] != "calling" else str(value)


def _steps_fact(screen: Screen, p: Params) -> Move | None:
    return nav.open_article(screen, p["key"]) or screen.answer(str(_fact(p)))


def _draw_melting(d: Draw) -> Params:
    one = draw_article(d, "elements", lambda a: a.facts["melting"])
    unit = d.rng.choice(("kelvin", "celsius"))
    return {
        "key": one.slug,
        "title": one.title,
        "unit": unit,
        "words": "kelvin" if unit == "kelvin" else "degrees Celsius",
    }


def _melting(p: Params) -> float:
    value = get_article(p["key"]).facts["melting"]
    return value if p["unit"] == "kelvin" else celsius(value)


def _steps_melting(screen: Screen, p: Params) -> Move | None:
    move = nav.choose_units(screen, temperature=p["unit"]) or nav.open_article(screen, p["key"])
    return move or screen.answer(f"{_melting(p):g}")


def _draw_capital(d: Draw) -> Params:
    one = draw_article(d, "countries", lambda a: has_single_links(a, "Capital"))
    return {"chain": [one.slug], "title": one.title}


def _titles(keys: list[str] | tuple[str, ...]) -> list[str]:
    return [get_article(key).title for key in keys]


def _draw_neighbours(d: Draw) -> Params:
    one = draw_article(d, "countries", lambda a: 2 <= len(a.links["Neighbors"]) <= 4)
    if any(" and " in title or "," in title for title in _titles(one.links["Neighbors"])):
        raise Redraw  # the answer is a list, which such a name would split
    return {"key": one.slug, "title": one.title}


def _steps_neighbours(screen: Screen, p: Params) -> Move | None:
    move = nav.open_article(screen, p["key"])
    return move or screen.answer(", ".join(_titles(get_article(p["key"]).links["Neighbors"])))


def _draw_symbol(d: Draw) -> Params:
    one = draw_article(d, "elements")
    return {"key": one.slug, "symbol": one.facts["symbol"]}


def _steps_symbol(screen: Screen, p: Params) -> Move | None:
    if screen.page == "search" and screen.query.get("q") == p["symbol"]:
        return screen.answer(get_article(p["key"]).title, "The first one is the answer.")
    return screen.fill({"search": p["symbol"]}, "", {"search": ("I search for the symbol.",)})


def _draw_discoverer(d: Draw) -> Params:
    one = draw_article(d, "elements", lambda a: has_single_links(a, "Discovered by"))
    return {"chain": [one.slug], "title": one.title}


# -- tables ------------------------------------------------------------------------------------------------------------
def _draw_extreme(d: Draw) -> Params:
    kind = d.rng.choice(("elements", "countries", "cities"))
    only = d.rng.choice(SERIES if kind == "elements" else CONTINENTS)
    by, sorts = (
        ("series", ("density", "melting", "year")) if kind == "elements" else ("continent", ("population", "area"))
    )
    sort, order = d.rng.choice(sorts if kind != "cities" else ("population",)), d.rng.choice(("up", "down"))
    rows = ordered([one for one in list_articles(kind) if one.facts[by] == only], sort, order)
    values = [one.facts[sort] for one in rows[:2]]
    if None in values or values[0] == values[1]:
        raise Redraw
    words = LABELS[sort].lower()
    most = ("was discovered first", "was discovered last")
    if sort != "year":
        most = (f"has the smallest {words}", f"has the largest {words}")
    of = f"Of the {only.lower()}, which element" if kind == "elements" else f"Of the {kind} of {only}, which"
    return {
        "kind": kind,
        "only": only,
        "sort": sort,
        "order": order,
        "key": rows[0].slug,
        "words": f"{of} {most[order == 'down']}?",
    }


def _steps_extreme(screen: Screen, p: Params) -> Move | None:
    move = nav.open_table(screen, p["kind"], p["only"], p["sort"], p["order"])
    return move or screen.answer(get_article(p["key"]).title, "The first one is the answer.", "It stands at the top.")


def _draw_compare(d: Draw) -> Params:
    kind, sort, word = d.rng.choice(_COMPARED)
    one, other = d.rng.sample([a for a in list_articles(kind) if a.facts[sort]], 2)
    if one.facts[sort] == other.facts[sort]:
        raise Redraw
    return {"keys": [one.slug, other.slug], "sort": sort, "one": one.title, "other": other.title, "word": word}


def _larger(p: Params) -> str:
    return max((get_article(key) for key in p["keys"]), key=lambda one: one.facts[p["sort"]]).title


def _steps_compare(screen: Screen, p: Params) -> Move | None:
    if screen.page != "compare":
        return screen.click("menu compare", "I compare the two.", "I open the page to compare.")
    if (screen.query.get("a"), screen.query.get("b")) == (p["one"], p["other"]):
        return screen.answer(_larger(p), "I see both now.")
    return screen.fill({"a": p["one"], "b": p["other"]}, "compare", {"compare": ("I compare them.",)})


TASKS = (
    SiteTask(
        "fact",
        "{title}: what is its {what}? Answer with it alone.",
        {1: 8},
        _draw_fact,
        _steps_fact,
        answer=lambda _, p: _fact(p),
        ignore=ANY_UNITS,
    ),
    SiteTask(
        "melting",
        "At how many {words} does {title} melt? Answer with the number.",
        {2: 14},
        _draw_melting,
        _steps_melting,
        answer=lambda _, p: _melting(p),
        ignore=ANY_UNITS,
    ),
    chain("capital", "What is the capital of {title}? Answer with its name.", 1, 7, _draw_capital, of_first("Capital")),
    SiteTask(
        "neighbours",
        "Which countries border {title}? Answer with their names, parted by commas.",
        {2: 8},
        _draw_neighbours,
        _steps_neighbours,
        answer=lambda _, p: _titles(get_article(p["key"]).links["Neighbors"]),
        ignore=ANY_UNITS,
    ),
    SiteTask(
        "symbol",
        "Which element has the symbol {symbol}? Answer with its name.",
        {1: 5},
        _draw_symbol,
        _steps_symbol,
        answer=lambda _, p: get_article(p["key"]).title,
        ignore=ANY_UNITS,
    ),
    chain(
        "discoverer",
        "Who discovered {title}? Answer with the full name.",
        1,
        7,
        _draw_discoverer,
        of_first("Discovered by"),
    ),
    SiteTask(
        "extreme",
        "{words} Answer with its name.",
        {2: 11},
        _draw_extreme,
        _steps_extreme,
        answer=lambda _, p: get_article(p["key"]).title,
        ignore=ANY_UNITS,
    ),
    SiteTask(
        "compare",
        "Which {word}, {one} or {other}? Answer with its name.",
        {2: 10},
        _draw_compare,
        _steps_compare,
        answer=lambda _, p: _larger(p),
        ignore=ANY_UNITS,
    ),
)
