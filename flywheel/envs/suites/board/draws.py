"""Draw what several task templates of the board need."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

from flywheel.envs.suites.board import data
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw

Records = dict[str, Any]


def card(d: Draw, fits: Callable[[data.Card], Any] = lambda one: True) -> Params:
    """Draw a card that is not archived and `fits`."""
    key, one = d.pick("cards", lambda one: not one["archived"] and fits(one))
    return {"key": key, "title": one["title"]}


def cards(d: Draw, count: int, fits: Callable[[data.Card], Any]) -> list[Params]:
    drawn = [card(d, fits) for _ in range(count)]
    if len({one["key"] for one in drawn}) < count:
        raise Redraw
    return drawn


def project(d: Draw) -> Params:
    key, one = d.pick("projects")
    return {"project": key, "where": one["name"]}


def member(d: Draw, fits: Callable[[str], Any] = lambda key: True) -> Params:
    keys = [key for key in d.records["members"] if fits(key)]
    if not keys:
        raise Redraw
    key = d.rng.choice(keys)
    return {"member": key, "who": d.records["members"][key]["name"]}


def sprint(d: Draw, *states: str) -> Params:
    """Draw a sprint in one of `states`, with its project."""
    key, one = d.pick("sprints", lambda one: one["state"] in states)
    where = d.records["projects"][one["project"]]["name"]
    return {"sprint": key, "name": one["name"], "project": one["project"], "where": where}


def day(d: Draw, low: int = 5, high: int = 80) -> str:
    return (date.fromisoformat(data.TODAY) + timedelta(days=d.rng.randint(low, high))).isoformat()


def is_open(d: Draw) -> Callable[[data.Card], bool]:
    return lambda one: not data.is_done(d.records, one)


def other_column(d: Draw, key: str) -> str:
    """Draw a column of its board that the card `key` is not in."""
    one = d.records["cards"][key]
    columns = d.records["projects"][one["project"]]["columns"]
    return d.rng.choice([column for column in columns if column != one["column"]])


def title(d: Draw) -> str:
    """Draw the title of a new card."""
    verb, thing = (
        d.rng.choice(("Order", "Prepare", "Buy", "Plan", "Book")),
        d.rng.choice(
            (
                "new chairs",
                "the summer party",
                "a bigger screen",
                "the next fair",
                "the photo day",
                "train tickets",
                "the spring workshop",
                "name badges",
                "a second printer",
                "the visit from Oslo",
            )
        ),
    )
    return f"{verb} {thing}"


def steps(d: Draw, key: str) -> dict[str, Any]:
    """Return the checklist of the card `key`."""
    return {name: one for name, one in d.records["steps"].items() if one["card"] == key}
