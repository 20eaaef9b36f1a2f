"""Draw chores that MCP tools answer: search and read an encyclopaedia, query a database in SQL."""

from __future__ import annotations

import random
from typing import Any

from flywheel.agent.actions import Finished, ToolCall, WriteFile
from flywheel.envs.suites.chores.databases import ORDERED_THINGS, create_database_command, orders_sql
from flywheel.envs.suites.chores.family import (
    PEOPLE_NAMES,
    ChoreFamily,
    ChoreParams,
    ExpertSteps,
    draw_words,
    join_with_and,
    step_budgets,
)
from flywheel.envs.suites.encyclopaedia.facts import Article, articles, list_articles

_SEARCH = {"search": {"shipped": ["search"]}}
_SQL = {"sql": {"shipped": ["sql"]}}
_QUERIES = (
    "SELECT count(*) FROM orders WHERE thing = '{thing}'",
    "SELECT sum(price) FROM orders WHERE thing = '{thing}'",
    "SELECT name, sum(price) FROM people JOIN orders ON people.id = person WHERE thing = '{thing}' "
    "GROUP BY name ORDER BY 2 DESC",
)
_FACTS = {"symbol": "symbol", "number": "atomic number", "group": "group", "year": "year of discovery"}


def _lookup(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a question: a fact of an article (level 1), one over two articles by a link (2), two capitals compared
    (3)."""
    if level == 1:
        fact = rng.choice(list(_FACTS))
        one = rng.choice([element for element in list_articles("elements") if element.facts[fact]])
        ask, answer, read = f"What is the {_FACTS[fact]} of {one.title}", one.facts[fact], [one.title]
    elif level == 2:
        found = [one for one in list_articles("elements") if _place(one) and _capital(_place(one))]
        one = rng.choice(found)
        country = _place(one)
        ask = f"What is the capital of the country in which {one.title} was discovered"
        answer, read = _name(_capital(country)), [one.title, country.title]
    else:
        pair = _countries(rng, 2)
        cities = [_capital(country) for country in pair]
        more = cities[0].facts["population"] > cities[1].facts["population"]
        ask = f"Of {join_with_and([country.title for country in pair])}, which has the capital with more people"
        answer, read = pair[0 if more else 1].title, [one.title for one in (*pair, *cities)]
    return {"files": {}, "tools": _SEARCH, "ask": ask, "answer": str(answer), "read": read}


def _play_lookup(p: ChoreParams) -> ExpertSteps:
    yield "I search for it.", ToolCall.of("search.find", {"query": p["read"][0]})
    yield from _reads(p["read"])
    yield "That is what was asked.", Finished(p["answer"])


def _note(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a note to write: one capital (level 1), a table of three (2), of four with populations, sorted (3)."""
    countries = _countries(rng, (1, 3, 4)[level - 1])
    name = draw_words(rng, 1)[0]
    titles = [country.title for country in countries]
    if level == 1:
        path, ask = f"{name}.txt", f"the name of the capital of {titles[0]}"
        text = f"{_name(_capital(countries[0]))}\n"
    else:
        path, heads = f"{name}.csv", ["country", "capital", *(["population"] if level == 3 else [])]
        rows = [[one.title, _name(_capital(one)), one.facts["population"]][: len(heads)] for one in countries]
        order = ", by that country's population, the largest first" if level == 3 else ", in this order"
        if level == 3:
            rows.sort(key=lambda row: -row[2])
        ask = f"a table with the columns {join_with_and(heads)} and a row each for {join_with_and(titles)}{order}"
        text = "".join(",".join(map(str, row)) + "\n" for row in (heads, *rows))
    return {"files": {}, "tools": _SEARCH, "wanted": {path: text}, "path": path, "ask": ask, "read": titles}


def _play_note(p: ChoreParams) -> ExpertSteps:
    yield from _reads(p["read"])
    yield "I write it down.", WriteFile(p["path"], p["wanted"][p["path"]])


def _ledger(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a question on the orders of a thing: how many (level 1), the sum paid (2), who paid most (3)."""
    path = f"{draw_words(rng, 1)[0]}.db"
    people, things = rng.sample(PEOPLE_NAMES, 2 + 2 * level), rng.sample(ORDERED_THINGS, 4)
    orders = [(rng.randint(1, len(people)), rng.choice(things), rng.randint(5, 200)) for _ in range(10 + 10 * level)]
    bought = [(people[person - 1], price) for person, thing, price in orders if thing == things[0]]
    paid = {name: sum(price for other, price in bought if other == name) for name, _ in bought}
    most = sorted(paid.values(), reverse=True)
    if len(most) < 2 or most[0] == most[1]:
        return _ledger(level, rng)
    ask = (
        f"How many orders of the thing '{things[0]}' are there",
        f"How much was paid for all orders of the thing '{things[0]}' together",
        f"Who paid the most for orders of the thing '{things[0]}' together",
    )[level - 1]
    answer = (len(bought), sum(paid.values()), max(paid, key=paid.__getitem__))[level - 1]
    sql = _QUERIES[level - 1].format(thing=things[0])
    return {"files": {"orders.sql": orders_sql(people, orders)}, "setup": create_database_command(path),
            "free": ["orders.sql"], "tools": _SQL,
            "path": path, "sql": sql, "ask": ask, "answer": str(answer)}  # fmt: skip


def _play_ledger(p: ChoreParams) -> ExpertSteps:
    yield "I see which tables there are.", ToolCall.of("sql.tables", {"database": p["path"]})
    yield "I ask for it.", ToolCall.of("sql.query", {"database": p["path"], "sql": p["sql"]})
    yield "That is what was asked.", Finished(p["answer"])


# -- the encyclopaedia -------------------------------------------------------------------------------------------------
def _reads(titles: list[str]) -> ExpertSteps:
    for title in titles:
        yield f"I read about {title}.", ToolCall.of("search.read", {"title": title})


def _countries(rng: random.Random, count: int) -> list[Article]:
    """Draw different countries with known capitals, whose names need no quotes in CSV."""
    return rng.sample([one for one in list_articles("countries") if _capital(one) and "," not in one.title], count)


def _capital(country: Article) -> Article | None:
    return articles()[country.links["Capital"][0]] if country.links["Capital"] else None


def _place(element: Article) -> Article | None:
    """Return the country where an element was discovered; None where it is not exactly one."""
    places = element.links["Discovered in"]
    return articles()[places[0]] if len(places) == 1 else None


def _name(city: Article) -> str:
    """Return an article's title without its disambiguation: Singapore for Singapore (city)."""
    return city.title.removesuffix(" (city)")


FAMILIES = {
    "lookup": ChoreFamily("By the tools of search: {ask}?", _lookup, _play_lookup, step_budgets(6, 8, 10)),
    "note": ChoreFamily(
        "Write to {path} {ask}. The tools of search know it.", _note, _play_note, step_budgets(5, 8, 10)
    ),
    "ledger": ChoreFamily(
        "By the tools of sql and the database {path}: {ask}?", _ledger, _play_ledger, step_budgets(6, 6, 8)
    ),
}
