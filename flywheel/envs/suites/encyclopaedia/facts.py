"""Read the articles of the encyclopaedia: elements, countries, cities and discoverers, with their attributes and links.

Facts come from facts.json, which `extract.py` made from two packages; its `sources` name them and their licences.
"""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = {"elements": "Elements", "countries": "Countries", "cities": "Cities", "people": "Discoverers"}
SERIES = (
    "Alkali metals",
    "Alkaline earth metals",
    "Transition metals",
    "Poor metals",
    "Metalloids",
    "Nonmetals",
    "Halogens",
    "Noble gases",
    "Lanthanides",
    "Actinides",
)
CONTINENTS = ("Africa", "Asia", "Europe", "North America", "Oceania", "South America")


def slugify(name: str) -> str:
    """Convert a name to the last part of an address: ASCII letters, digits and hyphens."""
    bare = unicodedata.normalize("NFKD", name.replace("ø", "o").replace("Ø", "O").replace("ł", "l").replace("ı", "i"))
    return re.sub(r"[^a-z0-9]+", "-", bare.encode("ascii", "ignore").decode().lower()).strip("-")


@dataclass(frozen=True)
class Article:
    """Hold one page. links: label -> slugs of articles. facts: values for questions and tables; None: not known."""

    slug: str
    title: str
    kind: str
    lead: str
    facts: Mapping[str, Any]
    links: Mapping[str, tuple[str, ...]]
    texts: Mapping[str, str]

    def link(self, label: str) -> str:
        """Return the slug of the only link under `label`. Raises ValueError where there is not exactly one."""
        (one,) = self.links[label]
        return one


@functools.cache
def articles() -> dict[str, Article]:
    """Map slugs to articles, in the order of elements, countries, cities, discoverers."""
    raw = json.loads((Path(__file__).parent / "facts.json").read_text(encoding="utf-8"))
    elements, countries, cities = raw["elements"], raw["countries"], raw["cities"]
    of_country = {code: slugify(one["name"]) for code, one in countries.items()}
    taken = {*elements, *of_country.values()}
    of_city = {key: f"{key}-city" if key in taken else key for key in cities}
    named: dict[str, list[str]] = {}
    for key, one in sorted(elements.items(), key=lambda item: (item[1]["year"] or 0, item[1]["number"])):
        for name in one["people"]:
            named.setdefault(name, []).append(key)
    found = [_element(key, one, elements, of_country) for key, one in elements.items()]
    found.sort(key=lambda one: one.facts["number"])
    found += [_country(code, one, elements, cities, of_country, of_city) for code, one in countries.items()]
    found += [_city(key, one, countries, of_country, of_city) for key, one in cities.items()]
    found += [_person(name, keys, elements, of_country) for name, keys in sorted(named.items())]
    return {one.slug: one for one in found}


def list_articles(kind: str) -> list[Article]:
    """List the articles of a `kind`, one of KINDS."""
    return [one for one in articles().values() if one.kind == kind]


def _element(key: str, one: dict[str, Any], elements: dict[str, Any], of_country: dict[str, str]) -> Article:
    by_number = {other["number"]: other_key for other_key, other in elements.items()}
    around = [by_number[n] for n in (one["number"] - 1, one["number"] + 1) if n in by_number]
    facts = {
        name: one[name]
        for name in (
            "symbol",
            "number",
            "series",
            "group",
            "period",
            "block",
            "weight",
            "density",
            "melting",
            "boiling",
            "pauling",
            "shells",
            "year",
        )
    }
    lead = (
        f"{one['name']} is the chemical element with the symbol {one['symbol']} and the atomic number {one['number']}."
    )
    return Article(
        key,
        one["name"],
        "elements",
        lead,
        facts,
        {
            "Discovered by": tuple(slugify(name) for name in one["people"]),
            "Discovered in": tuple(of_country[code] for code in one["places"]),
            "Main producers": tuple(of_country[code] for code in one["producers"]),
            "Neighbors in the table": tuple(around),
        },
        {"Description": one["description"] or "", "Uses": one["uses"] or "", "Name": one["origin"] or ""},
    )


def _country(
    code: str,
    one: dict[str, Any],
    elements: dict[str, Any],
    cities: dict[str, Any],
    of_country: dict[str, str],
    of_city: dict[str, str],
) -> Article:
    here = sorted(
        (city for city, other in cities.items() if other["country"] == code), key=lambda c: -cities[c]["population"]
    )
    found = sorted(
        (key for key, other in elements.items() if code in other["places"]), key=lambda k: elements[k]["year"]
    )
    facts = {name: one[name] for name in ("continent", "area", "population", "currency", "domain", "calling")}
    return Article(
        of_country[code],
        one["name"],
        "countries",
        f"{one['name']} is a country in {one['continent']}.",
        facts,
        {
            "Capital": (of_city[one["capital"]],) if one["capital"] else (),
            "Neighbors": tuple(of_country[other] for other in one["neighbours"] if other in of_country),
            "Large cities": tuple(of_city[city] for city in here if city != one["capital"]),
            "Elements discovered here": tuple(found),
        },
        {},
    )


def _city(
    key: str, one: dict[str, Any], countries: dict[str, Any], of_country: dict[str, str], of_city: dict[str, str]
) -> Article:
    country = countries[one["country"]]
    title = f"{one['name']} (city)" if of_city[key] != key else one["name"]
    what = "the capital" if country["capital"] == key else "a city"
    facts = {name: one[name] for name in ("population", "latitude", "longitude", "zone")}
    facts["continent"] = country["continent"]
    return Article(
        of_city[key],
        title,
        "cities",
        f"{one['name']} is {what} of {country['name']}.",
        facts,
        {"Country": (of_country[one["country"]],)},
        {},
    )


def _person(name: str, keys: list[str], elements: dict[str, Any], of_country: dict[str, str]) -> Article:
    places = dict.fromkeys(of_country[code] for key in keys for code in elements[key]["places"])
    years = [elements[key]["year"] for key in keys]
    facts = {"count": len(keys), "first": min(years)}
    what = "an element" if len(keys) == 1 else f"{len(keys)} elements"
    return Article(
        slugify(name),
        name,
        "people",
        f"{name} discovered {what}, alone or with others.",
        facts,
        {"Elements": tuple(keys), "Places of discovery": tuple(places)},
        {},
    )
