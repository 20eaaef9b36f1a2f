"""Serve the views of the calendar, its search, and the search for free time."""

from __future__ import annotations

import calendar as almanac
import re
from datetime import date
from pathlib import Path
from typing import Any

from flywheel.envs.suites.calendar import times
from flywheel.envs.suites.calendar.data import (
    LENGTHS,
    MONTHS,
    REMINDERS,
    REPEATS,
    VIEWS,
    WEEKDAYS,
    make_records,
    minutes,
)
from flywheel.envs.suites.calendar.times import Occurrence
from flywheel.envs.suites.forms import Field
from flywheel.envs.suites.forms import day as a_day
from flywheel.envs.suites.site import Page, Records, Site, Visit

FIRST_HOUR, LAST_HOUR = 7, 22  # of the columns of a day
AGENDA_DAYS = 10
FREE_DAYS, FREE_SLOTS = 7, 6  # days that the search for free time shows, and times of each at most
_A_CELL = 3  # events that a day of the month view shows
_RESULTS = 20


def _common(visit: Visit) -> dict[str, Any]:
    records = visit.records
    asked = sum(one["answer"] == "open" for one in records["events"].values())
    here = re.search(r"\d{4}-\d\d-\d\d", visit.path)
    day = here[0] if here and is_day(here[0]) else records["_today"]
    return {
        "accent": "#1f5f8b",
        "accent_soft": "#dcebf5",
        "me": records["_me"],
        "today": records["_today"],
        "calendars": records["calendars"],
        "say_day": lambda one: say_day(visit, one),
        "people": records["_people"],
        "hosts": [key for key, one in records["events"].items() if one["answer"] == "open"],
        "shown_day": day,
        "mini": _weeks(records, day[:7]),
        "mini_title": month_title(visit, day[:7]),
        "others": [
            ("invitations", visit.t("Invitations"), asked or ""),
            ("free", visit.t("Find a time"), ""),
            ("calendars", visit.t("Calendars"), ""),
            ("settings", visit.t("Settings"), ""),
        ],
        "repeats": REPEATS,
        "reminders": REMINDERS,
    }


site = Site(Path(__file__).parent, make_records, common=_common)


# -- days in words -----------------------------------------------------------------------------------------------------
def is_day(text: str) -> bool:
    return not a_day(text)


def say_day(visit: Visit, text: str) -> str:
    """Spell a day: 2026-05-13 as Wednesday, May 13, 2026."""
    one = date.fromisoformat(text)
    return f"{visit.t(WEEKDAYS[one.weekday()])}, {visit.t(MONTHS[one.month - 1])} {one.day}, {one.year}"


def month_title(visit: Visit, month: str) -> str:
    return f"{visit.t(MONTHS[int(month[5:7]) - 1])} {int(month[:4])}"


def _weekdays(visit: Visit) -> list[str]:
    first = 0 if visit.records["settings"]["week_start"] == "monday" else 6
    return [visit.t(WEEKDAYS[(first + number) % 7])[:3] for number in range(7)]


def _weeks(records: Records, month: str) -> list[list[str]]:
    """List the whole weeks that a month is in, as lists of days; days before the year 1 are left out."""
    first = f"{month}-01"
    start = times.week_of(first, records["settings"]["week_start"])
    length = almanac.monthrange(int(month[:4]), int(month[5:7]))[1]
    count = date.fromisoformat(first).toordinal() - date.fromisoformat(start).toordinal() + length
    found = times.days(start, -(-count // 7) * 7)
    return [found[number : number + 7] for number in range(0, len(found), 7)]


def view_path(records: Records, view: str, day: str) -> str:
    """Return the path at which a view shows a day: the day's month, the first day of its week, or the day itself."""
    if view == "month":
        return f"month/{day[:7]}"
    return f"{view}/{times.week_of(day, records['settings']['week_start']) if view == 'week' else day}"


def _view(visit: Visit, view: str, day: str, heading: str, earlier: str, later: str, **values: Any) -> Page:
    """Return the page of a view with its bar. day: where the other views open. earlier, later: where the arrows
    lead."""
    records = visit.records
    tabs = [(name, visit.t(title), view_path(records, name, day)) for name, title in VIEWS.items()]
    return Page.of(
        f"{view}.html",
        heading="",
        named=heading,
        view=view,
        tabs=tabs,
        earlier=view_path(records, view, earlier),
        later=view_path(records, view, later),
        this=view_path(records, view, records["_today"]),
        **values,
    )


# -- views -------------------------------------------------------------------------------------------------------------
@site.page("")
def start(visit: Visit) -> Page:
    return _month(visit, visit.records["_today"][:7])


@site.page("month/<month>")
def month(visit: Visit, month: str) -> Page | None:
    return _month(visit, month) if is_day(f"{month}-01") else None


def _month(visit: Visit, month: str) -> Page:
    records = visit.records
    weeks = _weeks(records, month)
    found: dict[str, list[Occurrence]] = {}
    for one in times.occurrences(times.shown(records), [day for week in weeks for day in week]):
        found.setdefault(one.day, []).append(one)
    # the other views open at today, or at the first day of another month
    day = records["_today"] if records["_today"].startswith(month) else f"{month}-01"
    return _view(
        visit,
        "month",
        day,
        month_title(visit, month),
        f"{times.shift_month(month, -1)}-01",
        f"{times.shift_month(month, 1)}-01",
        weeks=weeks,
        month=month,
        found=found,
        most=_A_CELL,
        weekdays=_weekdays(visit),
    )


@site.page("week/<first>")
def week(visit: Visit, first: str) -> Page | None:
    if not is_day(first):
        return None
    records = visit.records
    start = times.week_of(first, records["settings"]["week_start"])
    days = times.days(start, 7)
    today = records["_today"] if records["_today"] in days else start
    heading = visit.t("Week of {day}", day=say_day(visit, start).split(", ", 1)[1])
    return _view(
        visit,
        "week",
        today,
        heading,
        times.shift(start, -7),
        times.shift(start, 7),
        columns=_columns(visit, days),
        hours=range(FIRST_HOUR, LAST_HOUR),
        weekdays=_weekdays(visit),
    )


@site.page("day/<day>")
def day_view(visit: Visit, day: str) -> Page | None:
    if not is_day(day):
        return None
    return _view(
        visit,
        "day",
        day,
        say_day(visit, day),
        times.shift(day, -1),
        times.shift(day, 1),
        columns=_columns(visit, [day]),
        hours=range(FIRST_HOUR, LAST_HOUR),
    )


def _columns(visit: Visit, days: list[str]) -> list[dict[str, Any]]:
    """Lay out each day: whole-day events, and the others as blocks, in hours from the top and shares of the width."""
    records, columns = visit.records, []
    settings = records["settings"]
    for day in days:
        found = times.occurrences(times.shown(records), [day])
        blocks = []
        for one, lane, count in times.lanes([one for one in found if not one.event["all_day"]]):
            begin = min(max(minutes(one.event["start"]) / 60, FIRST_HOUR), LAST_HOUR - 1)
            end = min(max(minutes(one.event["end"]) / 60, begin + 0.5), LAST_HOUR)
            blocks.append(
                {"one": one, "top": begin - FIRST_HOUR, "height": end - begin, "left": lane / count, "width": 1 / count}
            )
        works = settings["work_days"][str(date.fromisoformat(day).weekday())]
        columns.append(
            {
                "day": day,
                "whole": [one for one in found if one.event["all_day"]],
                "blocks": blocks,
                "all": found,
                "work": [minutes(settings[name]) / 60 for name in ("work_from", "work_to")] if works else [0, 0],
            }
        )
    return columns


@site.page("agenda/<day>")
def agenda(visit: Visit, day: str) -> Page | None:
    if not is_day(day):
        return None
    days = times.days(day, AGENDA_DAYS)
    found = {one: times.occurrences(times.shown(visit.records), [one]) for one in days}
    return _view(
        visit,
        "agenda",
        day,
        visit.t("Agenda"),
        times.shift(day, -AGENDA_DAYS),
        times.shift(day, AGENDA_DAYS),
        found={one: rows for one, rows in found.items() if rows},
        last=days[-1],
    )


@site.form("go")
def go(visit: Visit) -> str:
    """Go to the typed day, in the view that is shown."""
    target = visit.read(Field("go", check=a_day))["go"]
    view = visit.form.get("view", "")
    return view_path(visit.records, view if view in VIEWS else "day", target)


# -- searches ----------------------------------------------------------------------------------------------------------
@site.page("search")
def search(visit: Visit) -> Page:
    """Show the events with every word in title, place, notes, host or guests; coming ones first, hidden ones too."""
    asked = visit.query.get("q", "")
    words, people, found = asked.casefold().split(), visit.records["_people"], []
    for key, one in visit.records["events"].items():
        guests = " ".join(people[guest]["name"] for guest in one["guests"] if guest in people)
        text = f"{one['title']} {one['place']} {one['notes']} {one['_from']} {guests}".casefold()
        if words and all(word in text for word in words):
            found.append((key, one))
    found.sort(key=lambda item: (item[1]["day"] < visit.records["_today"], item[1]["day"], item[1]["start"]))
    return Page.of(
        "search.html", heading=visit.t("Search results"), found=found[:_RESULTS], total=len(found), asked=asked
    )


@site.page("free")
def free(visit: Visit) -> Page:
    """Show the times within working hours at which the user, and a guest if one is chosen, are free."""
    records = visit.records
    guest = visit.option("guest", ("", *records["_people"]))
    length = visit.number("length", 60, 30, 480)
    first = visit.query.get("from", "")
    wrong = visit.t("Enter a day as 2026-01-31.") if first and not is_day(first) else ""
    first = records["_today"] if wrong or not first else first
    days = times.days(first, FREE_DAYS)
    found = {one: times.free(records, one, length, guest)[:FREE_SLOTS] for one in days}
    guests = [("", visit.t("Just me")), *((key, one["name"]) for key, one in records["_people"].items())]
    return Page.of(
        "free.html",
        heading=visit.t("Find a time"),
        guest=guest,
        length=length,
        first=first,
        found=found,
        guests=guests,
        wrong=wrong,
        searched="guest" in visit.query,
        lengths=[(one, visit.t("{n} minutes", n=one)) for one in LENGTHS],
    )


@site.page("invitations")
def invitations(visit: Visit) -> Page:
    events = visit.records["events"]
    rows = sorted(
        ((key, one) for key, one in events.items() if one["answer"]), key=lambda row: (row[1]["day"], row[1]["start"])
    )
    return Page.of("invitations.html", heading=visit.t("Invitations"), rows=rows)
