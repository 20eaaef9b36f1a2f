"""Define the encyclopaedia's task templates whose questions lead over several articles, by their links."""

from __future__ import annotations

from flywheel.envs.suites.encyclopaedia import nav
from flywheel.envs.suites.encyclopaedia.facts import Article
from flywheel.envs.suites.encyclopaedia.questions import (
    ANY_UNITS,
    chain,
    draw_article,
    get_article,
    has_single_links,
    last_fact,
    of_last,
)
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask


def _found_in(one: Article) -> bool:
    return has_single_links(one, "Discovered in") and has_single_links(
        get_article(one.link("Discovered in")), "Capital"
    )


def _draw_place_capital(d: Draw) -> Params:
    one = draw_article(d, "elements", _found_in)
    return {"chain": [one.slug, one.link("Discovered in")], "title": one.title}


def _draw_place_people(d: Draw) -> Params:
    one = draw_article(d, "elements", _found_in)
    country = one.link("Discovered in")
    return {"chain": [one.slug, country, get_article(country).link("Capital")], "title": one.title}


def _draw_capital_people(d: Draw) -> Params:
    one = draw_article(d, "countries", lambda a: has_single_links(a, "Capital"))
    return {"chain": [one.slug, one.link("Capital")], "title": one.title}


def _draw_city_currency(d: Draw) -> Params:
    one = draw_article(d, "cities")
    return {"chain": [one.slug, one.link("Country")], "title": one.title}


def _draw_others(d: Draw) -> Params:
    """Draw an element whose only discoverer discovered exactly one other."""
    one = draw_article(
        d,
        "elements",
        lambda a: has_single_links(a, "Discovered by") and get_article(a.link("Discovered by")).facts["count"] == 2,
    )
    return {"chain": [one.slug, one.link("Discovered by")], "title": one.title}


def _other(p: Params) -> str:
    return next(get_article(key).title for key in get_article(p["chain"][1]).links["Elements"] if key != p["chain"][0])


def _draw_count(d: Draw) -> Params:
    one = draw_article(
        d,
        "elements",
        lambda a: has_single_links(a, "Discovered by") and get_article(a.link("Discovered by")).facts["count"] > 1,
    )
    return {"chain": [one.slug, one.link("Discovered by")], "title": one.title}


def _draw_producer(d: Draw) -> Params:
    """Draw an element, with the first of its main producers."""
    one = draw_article(
        d,
        "elements",
        lambda a: a.links["Main producers"] and has_single_links(get_article(a.links["Main producers"][0]), "Capital"),
    )
    return {"chain": [one.slug, one.links["Main producers"][0]], "title": one.title}


def _draw_next_place(d: Draw) -> Params:
    """Draw an element whose successor by atomic number was discovered in exactly one country."""
    one = draw_article(d, "elements", lambda a: 1 < a.facts["number"] < 118)
    after = get_article(one.links["Neighbors in the table"][1])
    if not has_single_links(after, "Discovered in"):
        raise Redraw
    return {"chain": [one.slug, after.slug], "title": one.title}


def _draw_largest_neighbour(d: Draw) -> Params:
    one = draw_article(d, "countries", lambda a: 2 <= len(a.links["Neighbors"]) <= 3)
    return {"key": one.slug, "title": one.title}


def _largest_neighbour(p: Params) -> str:
    return max(
        (get_article(key) for key in get_article(p["key"]).links["Neighbors"]), key=lambda a: a.facts["population"]
    ).title


def _steps_largest_neighbour(screen: Screen, p: Params) -> Move | None:
    """Read each neighbour in turn: the first by a link from the country, the others through the search."""
    keys = list(get_article(p["key"]).links["Neighbors"])
    if screen.page == f"wiki/{keys[-1]}":
        return screen.answer(_largest_neighbour(p), "I have seen them all.")
    for key in keys[:-1]:
        if screen.page == f"wiki/{key}":
            after = keys[keys.index(key) + 1]
            return nav.open_article(screen, after)
    if screen.page == "search":
        asked = screen.query.get("q", "")
        here = next((key for key in keys if get_article(key).title == asked), p["key"])
        return nav.open_article(screen, here)
    return nav.follow_links(screen, [p["key"], keys[0]])


def _draw_first_here(d: Draw) -> Params:
    """Draw a city in whose country one element was discovered before all others."""
    one = draw_article(d, "cities", lambda a: len(get_article(a.link("Country")).links["Elements discovered here"]) > 1)
    country = get_article(one.link("Country"))
    keys = country.links["Elements discovered here"]
    if get_article(keys[0]).facts["year"] == get_article(keys[1]).facts["year"]:
        raise Redraw
    return {"chain": [one.slug, country.slug], "title": one.title}


def _currency(p: Params) -> str:
    """Return the code of the currency: the three letters in brackets."""
    return get_article(p["chain"][-1]).facts["currency"].rpartition("(")[2].rstrip(")")


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
