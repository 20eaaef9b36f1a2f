"""Saved queries as files: what a name may be, what is kept, what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from flywheel.store.saved_queries import (
    SavedQuery,
    delete_saved_query,
    list_saved_queries,
    read_saved_query,
    rename_saved_query,
    save_query,
)
from flywheel.utils.errors import BadInput, DataError

AT = "2026-11-30T12:00:00+00:00"


def saved(name: str = "hard", sql: str = "FROM iterations", **more: str) -> SavedQuery:
    return SavedQuery(name, sql, **{"author": "Ada Byron", "at": AT} | more)


def test_a_query_is_kept_as_sql_with_what_is_known_of_it(ws):
    save_query(ws, saved(sql="\n-- of each\nSELECT 'é'\n", description=' all of\n"them" '))
    assert read_saved_query(ws, "hard") == SavedQuery(
        "hard", "-- of each\nSELECT 'é'", 'all of "them"', "ada byron", AT
    )
    assert (ws.root / "queries" / "hard.sql").read_text(encoding="utf-8").splitlines()[1:] == [
        "-- of each",
        "SELECT 'é'",
    ]
    (ws.root / "queries" / "own.sql").write_text("-- by hand\nFROM tasks\n", encoding="utf-8")
    (ws.root / "queries" / "No Name.sql").write_text("FROM tasks", encoding="utf-8")
    assert [one.name for one in list_saved_queries(ws)] == ["hard", "own"]
    assert read_saved_query(ws, "own") == SavedQuery("own", "-- by hand\nFROM tasks")


@pytest.mark.parametrize(
    "name", ["", "A", "a b", "../a", "a/b", ".a", "-a", "a" * 41, "a.sql", "é", "a\n", "con\x00", "a%2fb"]
)
def test_what_is_no_name_is_refused_everywhere(ws, name):
    for act in (
        lambda: save_query(ws, saved(name)),
        lambda: read_saved_query(ws, name),
        lambda: delete_saved_query(ws, name),
        lambda: rename_saved_query(ws, name, "b"),
    ):
        with pytest.raises(BadInput, match=r"no name of a query.*take 1 to 40 small letters"):
            act()
    assert not (ws.root / "queries").exists()


def test_a_taken_name_is_refused_and_replaced_where_that_is_asked(ws):
    save_query(ws, saved())
    with pytest.raises(BadInput, match="a query is saved as hard already by ada byron; take another name"):
        save_query(ws, saved(sql="FROM tasks", author="bo"))
    save_query(ws, saved(sql="FROM tasks", author="bo"), replace=True)
    assert (read_saved_query(ws, "hard").sql, read_saved_query(ws, "hard").author) == ("FROM tasks", "bo")
    save_query(ws, saved("other"))
    with pytest.raises(BadInput, match="a query is saved as other already"):
        rename_saved_query(ws, "hard", "other")
    rename_saved_query(ws, "hard", "new")
    with pytest.raises(BadInput, match="no query is saved as hard; known are"):
        read_saved_query(ws, "hard")
    assert read_saved_query(ws, "new").sql == "FROM tasks"
    delete_saved_query(ws, "new")
    delete_saved_query(ws, "other")
    with pytest.raises(BadInput, match="none is saved yet"):
        delete_saved_query(ws, "new")
    for more, words in (({"author": " "}, "no name"), ({"description": "x" * 301}, "a description may have 300")):
        with pytest.raises(BadInput, match=words):
            save_query(ws, saved(**more))
    (ws.root / "queries" / "bad.sql").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"not a saved query.*queries/bad\.sql"):
        list_saved_queries(ws)


def test_of_two_who_take_a_name_at_once_one_has_it(ws):
    def attempt(n: int) -> bool:
        try:
            save_query(ws, saved(author=f"r{n}"))
        except BadInput:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1
