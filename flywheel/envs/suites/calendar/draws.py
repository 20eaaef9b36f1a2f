"""Draw what several task templates of the calendar need."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

from flywheel.envs.suites.calendar import times
from flywheel.envs.suites.calendar.data import MONTHS, NEW_TITLES, PLACES, WEEKDAYS, clock
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw

Records = dict[str, Any]


def words(d: Draw, day: str) -> str:
    """Spell a day: 2026-05-13 as Wednesday, May 13."""
    one = date.fromisoformat(day)
    return f"{d.t(WEEKDAYS[one.weekday()])}, {d.t(MONTHS[one.month - 1])} {one.day}"


def event(d: Draw, fits: Callable[[dict[str, Any]], Any] = lambda one: True) -> Params:
    """Draw an event of the user's own that happens once, has a time, and `fits`."""
    key, one = d.pick("events", lambda one: plain(one) and fits(one))
    return {"key": key, "title": one["title"], "day": one["day"], "when": words(d, one["day"])}


def plain(one: dict[str, Any]) -> bool:
    return one["repeat"] == "none" and not one["all_day"] and not one["answer"]


def series(d: Draw) -> Params:
    """Draw a weekly series, and a day of it within the next five weeks."""
    key, one = d.pick("events", lambda one: one["repeat"] == "weekly")
    days = [day for day in times.days(d.records["_today"], 35) if times.occurs(one, day)]
    if not days:
        raise Redraw
    on = d.rng.choice(days)
    return {"key": key, "title": one["title"], "day": on, "when": words(d, on)}


def coming(d: Draw, most: int = 30) -> str:
    """Draw a day from tomorrow on, at most `most` days away."""
    return times.shift(d.records["_today"], d.rng.randint(1, most))


def span(d: Draw) -> tuple[str, str]:
    """Draw a start and an end, half an hour to three hours apart."""
    begin = d.rng.randrange(7 * 60, 19 * 60, 15)
    return clock(begin), clock(begin + d.rng.choice((30, 45, 60, 75, 90, 120, 180)))


def title(d: Draw) -> str:
    return d.rng.choice(NEW_TITLES)


def place(d: Draw, *taken: str) -> str:
    return d.rng.choice([one for one in PLACES if one not in taken])


def person(d: Draw, *taken: str) -> tuple[str, str]:
    """Draw a person to invite who is not in `taken`; return key and name."""
    return d.rng.choice([(key, one["name"]) for key, one in d.records["_people"].items() if key not in taken])
