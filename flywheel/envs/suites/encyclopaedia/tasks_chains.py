"""Define the encyclopaedia's task templates whose questions lead over several articles, by their links."""

from __future__ import annotations

from flywheel.envs.suites.encyclopaedia import nav
from flywheel.envs.suites.encyclopaedia.facts import Article
from flywheel.envs.suites.encyclopaedia.questions import ANY_UNITS, alone, chain, get, last_fact, of_last, pick
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask


def _found_in(one: Article) -> bool:
    return alone(one, "Discovered in") and alone(get(one.link("Discovered in")), "Capital")


def _draw_place_capital(d: Draw) -> Params:
    one = pick(d, "elements", _found_in)
    return {"chain": [one.slug, one.link("Discovered in")], "title": one.title}


def _draw_place_people(d: Draw) -> Params:
    one = pick(d, "elements", _found_in)
    country = one.link("Discovered in")
    return {"chain": [one.slug, country, get(country).link("Capital")], "title": one.title}


def _draw_capital_people(d: Draw) -> Params:
    one = pick(d, "countries", lambda a: alone(a, "Capital"))
    return {"chain": [one.slug, one.link("Capital")], "title": one.title}


def _draw_city_currency(d: Draw) -> Params:
    one = pick(d, "cities")
    return {"chain": [one.slug, one.link("Country")], "title": one.title}


def _draw_others(d: Draw) -> Params:
    """Draw an element whose only discoverer discovered exactly one other."""
    one = pick(d, "elements", lambda a: alone(a, "Discovered by") and get(a.link("Discovered by")).facts["count"] == 2)
    return {"chain": [one.slug, one.link("Discovered by")], "title": one.title}


def _other(p: Params) -> str:
    return next(get(key).title for key in get(p["chain"][1]).links["Elements"] if key != p["chain"][0])


def _draw_count(d: Draw) -> Params:
    one = pick(d, "elements", lambda a: alone(a, "Discovered by") and get(a.link("Discovered by")).facts["count"] > 1)
    return {"chain": [one.slug, one.link("Discovered by")], "title": one.title}


def _draw_producer(d: Draw) -> Params:
    """Draw an element, with the first of its main producers."""
    one = pick(
        d, "elements", lambda a: a.links["Main producers"] and alone(get(a.links["Main producers"][0]), "Capital")
    )
    return {"chain": [one.slug, one.links["Main producers"][0]], "title": one.title}


def _draw_next_place(d: Draw) -> Params:
    """Draw an element whose successor by atomic number was discovered in exactly one country."""
    one = pick(d, "elements", lambda a: 1 < a.facts["number"] < 118)
    after = get(one.links["Neighbors in the table"][1])
    if not alone(after, "Discovered in"):
        raise Redraw
    return {"chain": [one.slug, after.slug], "title": one.title}


def _draw_largest_neighbour(d: Draw) -> Params:
    one = pick(d, "countries", lambda a: 2 <= len(a.links["Neighbors"]) <= 3)
    return {"key": one.slug, "title": one.title}


def _largest_neighbour(p: Params) -> str:
    return max((get(key) for key in get(p["key"]).links["Neighbors"]), key=lambda a: a.facts["population"]).title


def _steps_largest_neighbour(screen: Screen, p: Params) -> Move | None:
    """Read each neighbour in turn: the first by a link from the country, the others through the search."""
    keys = list(get(p["key"]).links["Neighbors"])
    if screen.page == f"wiki/{keys[-1]}":
        return screen.answer(_largest_neighbour(p), "I have seen them all.")
    for key in keys[:-1]:
        if screen.page == f"wiki/{key}":
            after = keys[keys.index(key) + 1]
            return nav.article(screen, after)
    if screen.page == "search":
        asked = screen.query.get("q", "")
        here = next((key for key in keys if get(key).title == asked), p["key"])
        return nav.article(screen, here)
    return nav.follow(screen, [p["key"], keys[0]])


def _draw_first_here(d: Draw) -> Params:
    """Draw a city in whose country one element was discovered before all others."""
    one = pick(d, "cities", lambda a: len(get(a.link("Country")).links["Elements discovered here"]) > 1)
    country = get(one.link("Country"))
    keys = country.links["Elements discovered here"]
    if get(keys[0]).facts["year"] == get(keys[1]).facts["year"]:
        raise Redraw
    return {"chain": [one.slug, country.slug], "title": one.title}


def _currency(p: Params) -> str:
    """Return the code of the currency: the three letters in brackets."""
    return get(p["chain"][-1]).facts["currency"].rpartition("(")[2].rstrip(")")


TASKS = (
    chain(
        "place_capital",
        "What is the capital of the country in which {title} was discovered? Answer with its name.",
        3,
        11,
        _draw_place_capital,
        of_last("Capital"),
    ),
    chain(
        "place_people",
        "How many people live in the capital of the country in which {title} was discovered? Answer with the number.",
        3,
        14,
        _draw_place_people,
        last_fact("population"),
    ),
    chain(
        "capital_people",
        "How many people live in the capital of {title}? Answer with the number.",
        2,
        10,
        _draw_capital_people,
        last_fact("population"),
    ),
    chain(
        "city_currency",
        "In which currency does one pay in {title}? Answer with its code of three letters.",
        2,
        10,
        _draw_city_currency,
        _currency,
    ),
    chain(
        "other_element",
        "Which other element did the discoverer of {title} discover? Answer with its name.",
        2,
        10,
        _draw_others,
        _other,
    ),
    chain(
        "works",
        "How many elements did the discoverer of {title} discover? Answer with the number.",
        2,
        10,
        _draw_count,
        last_fact("count"),
    ),
    chain(
        "producer",
        "What is the capital of the country that is the first of the main producers of {title}? Answer with its name.",
        3,
        11,
        _draw_producer,
        of_last("Capital"),
    ),
    chain(
        "next_place",
        "In which country was the element discovered that follows {title} by atomic number? Answer with its name.",
        3,
        11,
        _draw_next_place,
        of_last("Discovered in"),
    ),
    SiteTask(
        "largest_neighbour",
        "Which country that borders {title} has the most people? Answer with its name.",
        {3: 19},
        _draw_largest_neighbour,
        _steps_largest_neighbour,
        ignore=ANY_UNITS,
        answer=lambda _, p: _largest_neighbour(p),
    ),
    chain(
        "first_here",
        "Which element was discovered first in the country in which {title} lies? Answer with its name.",
        3,
        11,
        _draw_first_here,
        of_last("Elements discovered here"),
    ),
)
