"""A small site of countries and cities in static HTML, whose facts a test knows."""

from __future__ import annotations

import random
from pathlib import Path

CONTINENTS = ("Borea", "Austra", "Medan")


def make_atlas(seed: int = 1, countries: int = 24, cities: int = 60) -> dict[str, dict[str, object]]:
    """Draw the entities by name: kind, attributes as shown, and links by label."""
    rng = random.Random(seed)
    names = [f"{a}{b}" for a in ("Bal", "Cor", "Dun", "Fel", "Gar", "Hol", "Jor", "Kel", "Lum", "Mor") for b in
             ("aria", "besk", "dovia", "enna", "fing", "gora", "hild", "istan", "uvia")]  # fmt: skip
    rng.shuffle(names)
    lands, towns = names[:countries], names[countries : countries + cities]
    found = {}
    for number, name in enumerate(lands):
        found[name] = {"kind": "country", "Continent": rng.choice(CONTINENTS),
                       "Population": f"{rng.randrange(200_000, 90_000_000):,}",
                       "Area": f"{rng.randrange(300, 900_000):,} km²", "links": {"Capital": towns[number]}}  # fmt: skip
    for number, name in enumerate(towns):
        land = lands[number] if number < countries else rng.choice(lands)
        found[name] = {"kind": "city", "Population": f"{rng.randrange(20_000, 9_000_000):,}",
                       "Altitude": f"{rng.randrange(1, 3000)} m", "Founded": str(rng.randrange(900, 1950)),
                       "links": {"Country": land}}  # fmt: skip
    return found


def write_atlas(folder: Path, atlas: dict[str, dict[str, object]]) -> Path:
    """Write the pages: index.html, a list of each kind, and a page of each entity."""
    folder.mkdir(parents=True, exist_ok=True)
    lists = {"country": "Countries", "city": "Cities"}
    items = "".join(f'<li><a href="{kind}.html">{title}</a>' for kind, title in lists.items())
    (folder / "index.html").write_text(f"<title>Atlas</title><h1>Atlas</h1><ul>{items}</ul>")
    for kind, title in lists.items():
        own = "".join(f'<li><a href="{name}.html">{name}</a>' for name, one in atlas.items() if one["kind"] == kind)
        (folder / f"{kind}.html").write_text(f"<title>{title}</title><h1>{title}</h1><ul>{own}</ul>")
    for name, one in atlas.items():
        rows = [(label, value) for label, value in one.items() if label not in ("kind", "links")]
        rows += [(label, f'<a href="{to}.html">{to}</a>') for label, to in one["links"].items()]
        table = "".join(f"<tr><th>{label}<td>{value}" for label, value in rows)
        text = f"<title>{name}</title><h1>{name}</h1><table>{table}</table><p><a href=index.html>Start</a>"
        (folder / f"{name}.html").write_text(text)
    return folder
