"""Make and score a task on a shop's orders in SQLite.

`make.py make SEED` writes shop.db; `ask SEED` prints the instruction; `check SEED` prints 1 where the right order is
marked (else 0), less one for each other order that was changed.
"""

import random
import sqlite3
import sys

NAMES = ("Ada", "Boris", "Chen", "Dina", "Emil", "Fatou", "Goran", "Hanna", "Ivo", "Jun")
ITEMS = ("mug", "lamp", "chair", "kettle", "rug", "clock")


def orders(seed: int) -> tuple[list[tuple], tuple]:
    """Draw all orders, and the one that is asked for: the most expensive one of some item."""
    rng = random.Random(seed)
    prices = rng.sample(range(5, 200), 40)
    rows = [(number + 101, rng.choice(NAMES), rng.choice(ITEMS), price) for number, price in enumerate(prices)]
    item = rng.choice(rows)[2]
    return rows, max((row for row in rows if row[2] == item), key=lambda row: row[3])


rows, asked = orders(int(sys.argv[2]))
if sys.argv[1] == "ask":
    print(f"Mark the most expensive order of a {asked[2]} as sent.")
elif sys.argv[1] == "make":
    with sqlite3.connect("shop.db") as base:
        base.execute("create table orders (id integer primary key, name text, item text, price integer, status text)")
        base.executemany("insert into orders values (?, ?, ?, ?, 'new')", rows)
else:
    with sqlite3.connect("file:shop.db?mode=ro", uri=True) as base:
        sent = [number for (number,) in base.execute("select id from orders where status <> 'new'")]
    print((asked[0] in sent) - sum(number != asked[0] for number in sent))
