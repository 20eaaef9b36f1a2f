"""Compute occurrences of a series, lanes of overlapping events, and free time, in pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from flywheel.envs.suites.calendar.data import clock, minutes

_MOST = 400  # most days that `days` lists
STEP = 30  # minutes between the times that the search for free time offers


@dataclass(frozen=True)
class Occurrence:
    """Hold an event on one of its days."""

    key: str
    day: str
    event: Mapping[str, Any]

    @property
    def when(self) -> tuple[str, bool, str, str]:
        """Return the sort key of a list: by day, whole-day events first, then by time and title."""
        return self.day, not self.event["all_day"], self.event["start"], self.event["title"]


def occurs(event: Mapping[str, Any], day: str) -> bool:
    """Tell whether an event, or an event of a series, takes place on a day."""
    if day < event["day"] or day in event["skipped"] or (event["until"] and day > event["until"]):
        return False
    if day == event["day"]:
        return True
    first, this = date.fromisoformat(event["day"]), date.fromisoformat(day)
    match event["repeat"]:
        case "daily":
            return True
        case "weekly":
            return (this - first).days % 7 == 0
        case "monthly":
            return this.day == first.day
    return False


def days(first: str, count: int) -> list[str]:
    start = date.fromisoformat(first).toordinal()
    last = min(start + min(count, _MOST), date.max.toordinal())
    return [date.fromordinal(number).isoformat() for number in range(start, last)]


def occurrences(events: Mapping[str, Mapping[str, Any]], on: Iterable[str]) -> list[Occurrence]:
    """List what takes place on the days `on`, sorted by day and time."""
    found = [Occurrence(key, day, one) for day in on for key, one in events.items() if occurs(one, day)]
    return sorted(found, key=lambda one: one.when)


def shown(records: Mapping[str, Any]) -> dict[str, Any]:
    """Return the events that views show: those of visible calendars that are not declined."""
    calendars = records["calendars"]
    return {
        key: one
        for key, one in records["events"].items()
        if one["calendar"] in calendars and calendars[one["calendar"]]["shown"] and one["answer"] != "no"
    }


def lanes(timed: list[Occurrence]) -> list[tuple[Occurrence, int, int]]:
    """Give each event of a day its lane, and the number of lanes side by side there: (occurrence, lane, count).

    timed: the day's events that have a time.
    """
    found: list[tuple[Occurrence, int, int]] = []
    group: list[tuple[Occurrence, int]] = []
    ends: list[str] = []
    for one in sorted(timed, key=lambda one: one.when):
        if ends and one.event["start"] >= max(ends):
            found += [(other, lane, len(ends)) for other, lane in group]
            group, ends = [], []
        lane = next((n for n, end in enumerate(ends) if end <= one.event["start"]), len(ends))
        ends[lane : lane + 1] = [one.event["end"]]
        group.append((one, lane))
    return found + [(other, lane, len(ends)) for other, lane in group]


def free(records: Mapping[str, Any], day: str, length: int, guest: str = "") -> list[tuple[str, str]]:
    """List the times of a day within working hours that are free for `length` minutes, (from, to) each.

    guest: key of a person who has to be free too, "" for none.
    """
    settings = records["settings"]
    if not settings["work_days"][str(date.fromisoformat(day).weekday())]:
        return []
    mine = {key: one for key, one in records["events"].items() if one["answer"] != "no" and not one["all_day"]}
    busy = [(one.event["start"], one.event["end"]) for one in occurrences(mine, [day])]
    busy += [tuple(one) for one in records["_people"].get(guest, {"busy": {}})["busy"].get(day, [])]
    begin, end = minutes(settings["work_from"]), minutes(settings["work_to"])
    slots = [(clock(time), clock(time + length)) for time in range(begin, end - length + 1, STEP)]
    return [(a, b) for a, b in slots if all(b <= start or stop <= a for start, stop in busy)]


def week_of(day: str, start: str) -> str:
    """Return the first day of the week that `day` is in. start: "monday" or "sunday"."""
    this = date.fromisoformat(day)
    back = this.weekday() if start == "monday" else (this.weekday() + 1) % 7
    return (this - timedelta(days=min(back, this.toordinal() - 1))).isoformat()


def shift(day: str, by: int) -> str:
    """Return the day `by` days later, clipped to the years 1 to 9999."""
    number = min(max(date.fromisoformat(day).toordinal() + by, 1), date.max.toordinal())
    return date.fromordinal(number).isoformat()


def shift_month(month: str, by: int) -> str:
    """Return the month `by` months later, as 2026-06, clipped to the years 1 to 9999."""
    number = min(max(int(month[:4]) * 12 + int(month[5:7]) - 1 + by, 12), 9999 * 12 + 11)
    return f"{number // 12:04d}-{number % 12 + 1:02d}"
