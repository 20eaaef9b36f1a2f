"""Question templates of the encyclopaedia: from one fact to chains over several articles, each with one answer.

Whoever answers may change the units on the way. What is asked is drawn so that the answer is one: a chain goes only
over links that are alone under their label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flywheel.worlds.encyclopaedia import nav
from flywheel.worlds.encyclopaedia.facts import CONTINENTS, SERIES, Article, articles, of_kind
from flywheel.worlds.encyclopaedia.pages import LABELS, celsius, ordered
from flywheel.worlds.screen import Move, Screen
from flywheel.worlds.site_tasks import Answer, Draw, Params, Redraw, SiteTask

_COMPARED = (
    ("elements", "density", "is denser"),
    ("elements", "weight", "has the larger atomic weight"),
    ("countries", "area", "has the larger area"),
    ("countries", "population", "has more people"),
)
_FREE = ("units/*",)  # what may change on the way to an answer


def _get(key: str) -> Article:
    return articles()[key]


def _pick(d: Draw, kind: str, fits: Callable[[Article], Any] = lambda one: True) -> Article:
    return d.rng.choice([one for one in of_kind(kind) if fits(one)])


def _alone(one: Article, *labels: str) -> bool:
    """Whether there is exactly one link under each label."""
    return all(len(one.links[label]) == 1 for label in labels)


def _titles(keys: list[str] | tuple[str, ...]) -> list[str]:
    return [_get(key).title for key in keys]


def _name(key: str) -> str:
    """A title without what tells it from another: Singapore (city) is Singapore."""
    return _get(key).title.removesuffix(" (city)")


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
    one = _pick(d, kind, lambda a: a.facts[name] not in (None, ""))
    what = {"year": "year of discovery", "density": "density in g/cm³"}.get(name, LABELS[name].lower())
    return {"key": one.slug, "title": one.title, "fact": name, "what": what}


def _fact(p: Params) -> Answer:
    value = _get(p["key"]).facts[p["fact"]]
    return value if isinstance(value, int | float) and p["fact"] != "calling" else str(value)


def _steps_fact(screen: Screen, p: Params) -> Move | None:
    return nav.article(screen, p["key"]) or screen.answer(str(_fact(p)))


def _draw_melting(d: Draw) -> Params:
    one = _pick(d, "elements", lambda a: a.facts["melting"])
    unit = d.rng.choice(("kelvin", "celsius"))
    return {
        "key": one.slug,
        "title": one.title,
        "unit": unit,
        "words": "kelvin" if unit == "kelvin" else "degrees Celsius",
    }


def _melting(p: Params) -> float:
    value = _get(p["key"]).facts["melting"]
    return value if p["unit"] == "kelvin" else celsius(value)


def _steps_melting(screen: Screen, p: Params) -> Move | None:
    move = nav.unit(screen, temperature=p["unit"]) or nav.article(screen, p["key"])
    return move or screen.answer(f"{_melting(p):g}")


def _draw_capital(d: Draw) -> Params:
    one = _pick(d, "countries", lambda a: _alone(a, "Capital"))
    return {"chain": [one.slug], "title": one.title}


def _draw_neighbours(d: Draw) -> Params:
    one = _pick(d, "countries", lambda a: 2 <= len(a.links["Neighbors"]) <= 4)
    if any(" and " in title or "," in title for title in _titles(one.links["Neighbors"])):
        raise Redraw  # the answer is a list of names
    return {"key": one.slug, "title": one.title}


def _steps_neighbours(screen: Screen, p: Params) -> Move | None:
    move = nav.article(screen, p["key"])
    return move or screen.answer(", ".join(_titles(_get(p["key"]).links["Neighbors"])))


def _draw_symbol(d: Draw) -> Params:
    one = _pick(d, "elements")
    return {"key": one.slug, "symbol": one.facts["symbol"]}


def _steps_symbol(screen: Screen, p: Params) -> Move | None:
    if screen.page == "search" and screen.query.get("q") == p["symbol"]:
        return screen.answer(_get(p["key"]).title, "The first one is the answer.")
    return screen.fill({"search": p["symbol"]}, "", {"search": ("I search for the symbol.",)})


def _draw_discoverer(d: Draw) -> Params:
    one = _pick(d, "elements", lambda a: _alone(a, "Discovered by"))
    return {"chain": [one.slug], "title": one.title}


# -- tables ------------------------------------------------------------------------------------------------------------
def _draw_extreme(d: Draw) -> Params:
    kind = d.rng.choice(("elements", "countries", "cities"))
    only = d.rng.choice(SERIES if kind == "elements" else CONTINENTS)
    by, sorts = (
        ("series", ("density", "melting", "year")) if kind == "elements" else ("continent", ("population", "area"))
    )
    sort, order = d.rng.choice(sorts if kind != "cities" else ("population",)), d.rng.choice(("up", "down"))
    rows = ordered([one for one in of_kind(kind) if one.facts[by] == only], sort, order)
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
    move = nav.listed(screen, p["kind"], p["only"], p["sort"], p["order"])
    return move or screen.answer(_get(p["key"]).title, "The first one is the answer.", "It stands at the top.")


def _draw_compare(d: Draw) -> Params:
    kind, sort, word = d.rng.choice(_COMPARED)
    one, other = d.rng.sample([a for a in of_kind(kind) if a.facts[sort]], 2)
    if one.facts[sort] == other.facts[sort]:
        raise Redraw
    return {"keys": [one.slug, other.slug], "sort": sort, "one": one.title, "other": other.title, "word": word}


def _larger(p: Params) -> str:
    return max((_get(key) for key in p["keys"]), key=lambda one: one.facts[p["sort"]]).title


def _steps_compare(screen: Screen, p: Params) -> Move | None:
    if screen.page != "compare":
        return screen.click("menu compare", "I compare the two.", "I open the page to compare.")
    if (screen.query.get("a"), screen.query.get("b")) == (p["one"], p["other"]):
        return screen.answer(_larger(p), "I see both now.")
    return screen.fill({"a": p["one"], "b": p["other"]}, "compare", {"compare": ("I compare them.",)})


# -- chains ------------------------------------------------------------------------------------------------------------
def _steps_chain(answer: Callable[[Params], Answer]) -> Callable[[Screen, Params], Move | None]:
    """Follow the links, then answer with what the last article shows."""

    def steps(screen: Screen, p: Params) -> Move | None:
        return nav.follow(screen, p["chain"]) or screen.answer(str(answer(p)))

    return steps


def _found_in(one: Article) -> bool:
    return _alone(one, "Discovered in") and _alone(_get(one.link("Discovered in")), "Capital")


def _draw_place_capital(d: Draw) -> Params:
    one = _pick(d, "elements", _found_in)
    return {"chain": [one.slug, one.link("Discovered in")], "title": one.title}


def _draw_place_people(d: Draw) -> Params:
    one = _pick(d, "elements", _found_in)
    country = one.link("Discovered in")
    return {"chain": [one.slug, country, _get(country).link("Capital")], "title": one.title}


def _draw_capital_people(d: Draw) -> Params:
    one = _pick(d, "countries", lambda a: _alone(a, "Capital"))
    return {"chain": [one.slug, one.link("Capital")], "title": one.title}


def _draw_city_currency(d: Draw) -> Params:
    one = _pick(d, "cities")
    return {"chain": [one.slug, one.link("Country")], "title": one.title}


def _draw_others(d: Draw) -> Params:
    """An element whose only discoverer found exactly one other."""
    one = _pick(
        d, "elements", lambda a: _alone(a, "Discovered by") and _get(a.link("Discovered by")).facts["count"] == 2
    )
    return {"chain": [one.slug, one.link("Discovered by")], "title": one.title}


def _other(p: Params) -> str:
    return next(_get(key).title for key in _get(p["chain"][1]).links["Elements"] if key != p["chain"][0])


def _draw_count(d: Draw) -> Params:
    one = _pick(
        d, "elements", lambda a: _alone(a, "Discovered by") and _get(a.link("Discovered by")).facts["count"] > 1
    )
    return {"chain": [one.slug, one.link("Discovered by")], "title": one.title}


def _draw_producer(d: Draw) -> Params:
    """The first of the main producers."""
    one = _pick(
        d, "elements", lambda a: a.links["Main producers"] and _alone(_get(a.links["Main producers"][0]), "Capital")
    )
    return {"chain": [one.slug, one.links["Main producers"][0]], "title": one.title}


def _draw_next_place(d: Draw) -> Params:
    """The element after another one, and where it was discovered."""
    one = _pick(d, "elements", lambda a: 1 < a.facts["number"] < 118)
    after = _get(one.links["Neighbors in the table"][1])
    if not _alone(after, "Discovered in"):
        raise Redraw
    return {"chain": [one.slug, after.slug], "title": one.title}


def _draw_largest_neighbour(d: Draw) -> Params:
    one = _pick(d, "countries", lambda a: 2 <= len(a.links["Neighbors"]) <= 3)
    return {"key": one.slug, "title": one.title}


def _largest_neighbour(p: Params) -> str:
    return max((_get(key) for key in _get(p["key"]).links["Neighbors"]), key=lambda a: a.facts["population"]).title


def _steps_largest_neighbour(screen: Screen, p: Params) -> Move | None:
    """Reads each neighbour in turn: from the country to the first, back to the country, to the next."""
    keys = list(_get(p["key"]).links["Neighbors"])
    if screen.page == f"wiki/{keys[-1]}":
        return screen.answer(_largest_neighbour(p), "I have seen them all.")
    for key in keys[:-1]:
        if screen.page == f"wiki/{key}":
            after = keys[keys.index(key) + 1]
            return nav.article(screen, after)
    if screen.page == "search":
        asked = screen.query.get("q", "")
        here = next((key for key in keys if _get(key).title == asked), p["key"])
        return nav.article(screen, here)
    return nav.follow(screen, [p["key"], keys[0]])


def _draw_first_here(d: Draw) -> Params:
    """The element that was discovered first in the country of a city, alone in its year."""
    one = _pick(d, "cities", lambda a: len(_get(a.link("Country")).links["Elements discovered here"]) > 1)
    country = _get(one.link("Country"))
    keys = country.links["Elements discovered here"]
    if _get(keys[0]).facts["year"] == _get(keys[1]).facts["year"]:
        raise Redraw
    return {"chain": [one.slug, country.slug], "title": one.title}


def _of_last(label: str) -> Callable[[Params], str]:
    return lambda p: _name(_get(p["chain"][-1]).links[label][0])


def _of_first(label: str) -> Callable[[Params], str]:
    return lambda p: _name(_get(p["chain"][0]).link(label))


def _last_fact(name: str) -> Callable[[Params], Answer]:
    return lambda p: _get(p["chain"][-1]).facts[name]


def _currency(p: Params) -> str:
    """Its code: the three letters in brackets."""
    return _get(p["chain"][-1]).facts["currency"].rpartition("(")[2].rstrip(")")


def _chain(
    name: str, text: str, level: int, budget: int, draw: Callable[[Draw], Params], answer: Callable[[Params], Answer]
) -> SiteTask:
    return SiteTask(
        name, text, {level: budget}, draw, _steps_chain(answer), answer=lambda _, p: answer(p), ignore=_FREE
    )


QUESTIONS = (
    SiteTask(
        "fact",
        "{title}: what is its {what}? Answer with it alone.",
        {1: 8},
        _draw_fact,
        _steps_fact,
        answer=lambda _, p: _fact(p),
        ignore=_FREE,
    ),
    SiteTask(
        "melting",
        "At how many {words} does {title} melt? Answer with the number.",
        {2: 14},
        _draw_melting,
        _steps_melting,
        answer=lambda _, p: _melting(p),
        ignore=_FREE,
    ),
    _chain(
        "capital", "What is the capital of {title}? Answer with its name.", 1, 7, _draw_capital, _of_first("Capital")
    ),
    SiteTask(
        "neighbours",
        "Which countries border {title}? Answer with their names, parted by commas.",
        {2: 8},
        _draw_neighbours,
        _steps_neighbours,
        answer=lambda _, p: _titles(_get(p["key"]).links["Neighbors"]),
        ignore=_FREE,
    ),
    SiteTask(
        "symbol",
        "Which element has the symbol {symbol}? Answer with its name.",
        {1: 5},
        _draw_symbol,
        _steps_symbol,
        answer=lambda _, p: _get(p["key"]).title,
        ignore=_FREE,
    ),
    _chain(
        "discoverer",
        "Who discovered {title}? Answer with the full name.",
        1,
        7,
        _draw_discoverer,
        _of_first("Discovered by"),
    ),
    SiteTask(
        "extreme",
        "{words} Answer with its name.",
        {2: 11},
        _draw_extreme,
        _steps_extreme,
        answer=lambda _, p: _get(p["key"]).title,
        ignore=_FREE,
    ),
    SiteTask(
        "compare",
        "Which {word}, {one} or {other}? Answer with its name.",
        {2: 10},
        _draw_compare,
        _steps_compare,
        answer=lambda _, p: _larger(p),
        ignore=_FREE,
    ),
    _chain(
        "place_capital",
        "What is the capital of the country in which {title} was discovered? Answer with its name.",
        3,
        11,
        _draw_place_capital,
        _of_last("Capital"),
    ),
    _chain(
        "place_people",
        "How many people live in the capital of the country in which {title} was discovered? Answer with the number.",
        3,
        14,
        _draw_place_people,
        _last_fact("population"),
    ),
    _chain(
        "capital_people",
        "How many people live in the capital of {title}? Answer with the number.",
        2,
        10,
        _draw_capital_people,
        _last_fact("population"),
    ),
    _chain(
        "city_currency",
        "In which currency does one pay in {title}? Answer with its code of three letters.",
        2,
        10,
        _draw_city_currency,
        _currency,
    ),
    _chain(
        "other_element",
        "Which other element did the discoverer of {title} discover? Answer with its name.",
        2,
        10,
        _draw_others,
        _other,
    ),
    _chain(
        "works",
        "How many elements did the discoverer of {title} discover? Answer with the number.",
        2,
        10,
        _draw_count,
        _last_fact("count"),
    ),
    _chain(
        "producer",
        "What is the capital of the country that is the first of the main producers of {title}? Answer with its name.",
        3,
        11,
        _draw_producer,
        _of_last("Capital"),
    ),
    _chain(
        "next_place",
        "In which country was the element discovered that follows {title} by atomic number? Answer with its name.",
        3,
        11,
        _draw_next_place,
        _of_last("Discovered in"),
    ),
    SiteTask(
        "largest_neighbour",
        "Which country that borders {title} has the most people? Answer with its name.",
        {3: 19},
        _draw_largest_neighbour,
        _steps_largest_neighbour,
        ignore=_FREE,
        answer=lambda _, p: _largest_neighbour(p),
    ),
    _chain(
        "first_here",
        "Which element was discovered first in the country in which {title} lies? Answer with its name.",
        3,
        11,
        _draw_first_here,
        _of_last("Elements discovered here"),
    ),
)
