"""Generate the data of the calendar anew for each session: calendars and events. Today is a working day of 2026."""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import Any

COLOURS = ("blue", "green", "orange", "purple", "red", "pink", "gray")
REPEATS = {"none": "Does not repeat", "daily": "Every day", "weekly": "Every week", "monthly": "Every month"}
REMINDERS = {
    "none": "No reminder",
    "0": "When it begins",
    "10": "10 minutes before",
    "30": "30 minutes before",
    "60": "1 hour before",
    "1440": "1 day before",
}
VIEWS = {"month": "Month", "week": "Week", "day": "Day", "agenda": "Agenda"}
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
LENGTHS = (30, 60, 90, 120)
# calendar -> (title, minutes) of its events
TITLES = {
    "Work": (
        ("Interview", 60),
        ("Budget review", 90),
        ("Project call", 30),
        ("Workshop", 120),
        ("Customer visit", 60),
        ("Training", 120),
        ("Planning", 60),
        ("Presentation", 60),
        ("Report to the board", 90),
        ("Lunch talk", 60),
    ),
    "Private": (
        ("Dentist", 60),
        ("Hairdresser", 60),
        ("Cinema", 120),
        ("Bank appointment", 30),
        ("Car repair", 60),
        ("Book club", 90),
        ("Concert", 120),
        ("Doctor", 30),
        ("Flat viewing", 30),
        ("Cooking class", 120),
    ),
    "Family": (
        ("School play", 120),
        ("Birthday party", 120),
        ("Parents' evening", 90),
        ("Zoo", 120),
        ("Picnic", 120),
        ("Swimming lesson", 60),
        ("Museum", 90),
        ("Dinner at home", 90),
    ),
    "Sport": (("Football", 90), ("Tennis", 60), ("Running", 60), ("Climbing", 120), ("Bike tour", 120), ("Gym", 60)),
}
_SERIES = (
    ("Team meeting", "Work", 60, "weekly"),
    ("Yoga", "Sport", 60, "weekly"),
    ("Piano lesson", "Family", 30, "weekly"),
    ("Pay the rent", "Private", 30, "monthly"),
    ("Stand-up", "Work", 30, "daily"),
)
_WHOLE_DAYS = (
    ("Anna's birthday", "Family"),
    ("Trade fair", "Work"),
    ("Moving day", "Private"),
    ("Marathon", "Sport"),
    ("School holiday", "Family"),
)
_INVITATIONS = (
    "Product launch",
    "Design review",
    "Farewell party",
    "Safety training",
    "Sales meeting",
    "Summer party",
    "Website review",
    "Team lunch",
)
NEW_TITLES = (
    "Visit the bakery",
    "Talk with Sam",
    "Choir",
    "Spanish class",
    "Call the plumber",
    "Garden work",
    "Chess evening",
    "Tax papers",
    "Eye test",
    "Photo walk",
)
PLACES = ("Room 12", "Main Hall", "Cafe Luna", "12 Mill Lane", "Park", "Office", "Station", "Library", "Studio 3")
_PEOPLE = (
    "Anna Hill",
    "Ben Wood",
    "Clara Stone",
    "David Lake",
    "Emma Field",
    "Frank Marsh",
    "Grace Ford",
    "Henry Park",
    "Iris West",
    "Jack Moore",
    "Kate Brook",
    "Leo Reed",
)
_NOTES = ("", "", "Bring the papers.", "Ask about the price.", "Take the bus.", "Do not be late.")


def make_records(rng: random.Random, language: str) -> dict[str, Any]:
    """Draw the records of a session: events, calendars, settings, and `_people` to invite, with their busy times."""
    today = date(2026, 2, 2) + timedelta(days=rng.randrange(36) * 7 + rng.randrange(5))
    colours = rng.sample(COLOURS, len(TITLES))
    calendars = {f"c{n}": {"name": name, "colour": colours[n - 1], "shown": True} for n, name in enumerate(TITLES, 1)}
    me, *others = rng.sample(_PEOPLE, 8)
    people = {f"p{n}": {"name": name, "busy": _busy(rng, today)} for n, name in enumerate(others[:6], 1)}
    events = _Events(rng, today, {one["name"]: key for key, one in calendars.items()}, people)
    begin = rng.choice(("08:00", "08:30", "09:00", "09:30"))
    return {
        "_today": today.isoformat(),
        "_me": me,
        "_people": people,
        "_count": 1000,
        "calendars": calendars,
        "events": events.all(),
        "settings": {
            "work_from": begin,
            "work_to": rng.choice(("16:30", "17:00", "17:30", "18:00")),
            "work_days": {str(day): day < 5 for day in range(7)},
            "week_start": "monday",
            "remind": "10",
            "length": "60",
        },
    }


def blank(**values: Any) -> dict[str, Any]:
    """Return an event with these `values` and defaults in all other fields."""
    return {
        "title": "",
        "calendar": "",
        "day": "",
        "all_day": False,
        "start": "",
        "end": "",
        "place": "",
        "notes": "",
        "repeat": "none",
        "until": "",
        "remind": "none",
        "guests": {},
        "skipped": {},
        "answer": "",
        "comment": "",
        **values,
    }


def clock(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def minutes(time: str) -> int:
    return int(time[:2]) * 60 + int(time[3:])


def _busy(rng: random.Random, today: date) -> dict[str, list[list[str]]]:
    """Draw the times at which a person is busy: day -> (from, to) of each appointment, for some weeks around today."""
    busy = {}
    for number in range(-7, 35):
        times = sorted(rng.sample(range(8 * 60, 18 * 60, 30), 4))
        busy[(today + timedelta(days=number)).isoformat()] = [
            [clock(one), clock(one + rng.choice((60, 90)))] for one in times
        ]
    return busy


class _Events:
    """Draw the user's events so that few of them overlap."""

    def __init__(self, rng: random.Random, today: date, calendars: dict[str, str], people: dict[str, Any]) -> None:
        self.rng, self.today, self.calendars, self.people = rng, today, calendars, people
        self.taken: dict[str, list[tuple[int, int]]] = {}
        self.events: list[dict[str, Any]] = []

    def all(self) -> dict[str, dict[str, Any]]:
        rng = self.rng
        for title, calendar, length, repeat in rng.sample(_SERIES, 3):
            self._add(title, calendar, length, rng.randint(-12, -8), repeat=repeat)
        for title, calendar in rng.sample(_WHOLE_DAYS, 3):
            day = self._day(rng.randint(-3, 25))
            self.events.append(self._event(title, calendar, day, all_day=True))
        for calendar, titles in TITLES.items():
            for title, length in rng.sample(titles, min(len(titles), 8)):
                self._add(title, calendar, length, rng.randint(-6, 30))
        for title in rng.sample(_INVITATIONS, 4):
            host = rng.choice([one["name"] for one in self.people.values()])
            self._add(title, "Work", rng.choice((60, 90)), rng.randint(1, 12), answer="open", host=host, remind="10")
        days = [one for one in self.events if not one["all_day"] and one["repeat"] == "none" and not one["answer"]]
        for one in rng.sample(days, 5):
            one["guests"] = {key: True for key in rng.sample(list(self.people), rng.randint(1, 2))}
        self.events.sort(key=lambda one: (one["day"], one["start"]))
        return {f"e{n}": one for n, one in enumerate(self.events, 1)}

    def _day(self, offset: int) -> str:
        return (self.today + timedelta(days=offset)).isoformat()

    def _event(self, title: str, calendar: str, day: str, **values: Any) -> dict[str, Any]:
        rng = self.rng
        host = values.pop("host", "")
        values.setdefault("remind", rng.choice(("none", "10", "30", "60")))
        return blank(
            title=title,
            calendar=self.calendars[calendar],
            day=day,
            place=rng.choice(("", *PLACES)),
            notes=rng.choice(_NOTES),
            **values,
        ) | {"_from": host}

    def _add(self, title: str, calendar: str, length: int, offset: int, **values: Any) -> None:
        """Add an event of `length` minutes at a free time of the day `offset` days from today, or of a day after it."""
        for later in range(20):
            day = self._day(offset + later)
            if calendar == "Work" and date.fromisoformat(day).weekday() > 4:
                continue
            for start in self.rng.sample(range(8 * 60, 19 * 60, 30), 6):
                if all(end <= start or start + length <= begin for begin, end in self.taken.get(day, [])):
                    self.taken.setdefault(day, []).append((start, start + length))
                    event = self._event(title, calendar, day, start=clock(start), end=clock(start + length), **values)
                    self.events.append(event)
                    return
