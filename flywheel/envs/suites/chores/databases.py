"""Draw chores that query SQLite databases."""

from __future__ import annotations

import random
from typing import Any

from flywheel.agent.actions import Finished, RunPython
from flywheel.envs.suites.chores.family import (
    PEOPLE_NAMES,
    ChoreFamily,
    ChoreParams,
    ExpertSteps,
    draw_words,
    step_budgets,
)

ORDERED_THINGS = ("book", "chair", "clock", "lamp", "phone", "plant", "radio", "shelf", "table", "vase")


def create_database_command(path: str) -> list[str]:
    """Return commands that create the database `path` from the file orders.sql, and then remove that file."""
    program = f"import sqlite3; c = sqlite3.connect('{path}'); c.executescript(open('orders.sql').read()); c.close()"
    return [f'python3 -c "{program}" && rm orders.sql']


def orders_sql(people: list[str], orders: list[tuple[int, str, int]]) -> str:
    rows = ", ".join(f"({n}, '{name}')" for n, name in enumerate(people, 1))
    bought = ", ".join(f"({n}, {person}, '{thing}', {price})" for n, (person, thing, price) in enumerate(orders, 1))
    return (
        "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT);\n"
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, person INTEGER REFERENCES people, thing TEXT, price INTEGER);\n"
        f"INSERT INTO people VALUES {rows};\nINSERT INTO orders VALUES {bought};\n"
    )


def _query(level: int, rng: random.Random) -> dict[str, Any]:
    """Draw a question: how many orders there are (level 1), what the person who paid most paid (2), who that is (3)."""
    path = f"{draw_words(rng, 1)[0]}.db"
    people = rng.sample(PEOPLE_NAMES, 3 + 2 * level)
    orders = [
        (rng.randint(1, len(people)), rng.choice(ORDERED_THINGS), rng.randint(5, 200)) for _ in range(10 + 5 * level)
    ]
    paid = {name: sum(price for person, _, price in orders if people[person - 1] == name) for name in people}
    most = sorted(paid.values())
    if most[-1] == most[-2]:
        return _query(level, rng)
    who = max(paid, key=paid.__getitem__)
    ask = ("How many orders are there", f"How much did {who} pay for all orders", "Who paid the most for all orders")
    answer = (len(orders), paid[who], who)[level - 1]
    return {"files": {"orders.sql": orders_sql(people, orders)}, "setup": create_database_command(path),
            "free": ["orders.sql"], "answer": str(answer), "path": path, "ask": ask[level - 1]}  # fmt: skip


def _play_query(p: ChoreParams) -> ExpertSteps:
    yield (
        "I see which tables there are.",
        RunPython(
            f"import sqlite3\nc = sqlite3.connect('{p['path']}')\n"
            "print(*c.execute('SELECT sql FROM sqlite_master'), sep='\\n')\n"
        ),
    )
    yield (
        "I ask for what each one paid.",
        RunPython(
            "paid = 'SELECT name, count(*), sum(price) FROM people JOIN orders ON people.id = person GROUP BY 1'\n"
            "print(*c.execute(paid), sep='\\n')\nprint(*c.execute('SELECT count(*) FROM orders'))\n"
        ),
    )
    yield "That is what was asked.", Finished(p["answer"])


FAMILIES = {"query": ChoreFamily("{ask}, by the database {path}?", _query, _play_query, step_budgets(6, 8, 8))}
