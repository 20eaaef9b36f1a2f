"""`make.py SEED`: the database of a session, with as many orders as the seed says."""

import sqlite3
import sys

with sqlite3.connect("shop.db") as base:
    base.execute("create table orders (item text)")
    base.executemany("insert into orders values (?)", [("old",)] * (int(sys.argv[1]) % 5))
print("made")
