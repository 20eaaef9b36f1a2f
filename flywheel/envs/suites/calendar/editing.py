"""Serve the pages and forms that change events, answers to invitations, calendars and settings."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.calendar import times
from flywheel.envs.suites.calendar.data import COLOURS, LENGTHS, REMINDERS, REPEATS, WEEKDAYS, blank, clock, minutes
from flywheel.envs.suites.calendar.pages import is_day, site, view_path
from flywheel.envs.suites.forms import Field, Invalid, day, one_of
from flywheel.envs.suites.forms import clock as time_of_day
from flywheel.envs.suites.site import Page, Records, Visit, site_address

ANSWERS = {"yes": "Yes", "maybe": "Maybe", "no": "No"}
_LAST = 24 * 60 - 1


# -- one event ---------------------------------------------------------------------------------------------------------
@site.page("event/<key>")
def event(visit: Visit, key: str) -> Page | None:
    if (one := visit.records["events"].get(key)) is None:
        return None
    asked = visit.query.get("day", "")
    on = asked if is_day(asked) and times.occurs(one, asked) else one["day"]
    return Page.of(
        "event.html", heading=one["title"], key=key, event=one, day=on, ask=visit.query.get("ask"), answers=ANSWERS
    )


@site.page("new")
def new(visit: Visit) -> Page:
    """Show the form of a new event. Its query fills in fields (day, start, end, guest) or copies an event (copy)."""
    records, query = visit.records, visit.query
    begin = query.get("start", "")
    begin = begin if not time_of_day(begin) else "09:00"
    end = query.get("end", "")
    length = int(records["settings"]["length"])
    one = blank(
        calendar=next(iter(records["calendars"]), ""),
        start=begin,
        remind=records["settings"]["remind"],
        day=query["day"] if is_day(query.get("day", "")) else records["_today"],
        end=end if not time_of_day(end) else clock(min(minutes(begin) + length, _LAST)),
        guests={query["guest"]: True} if query.get("guest") in records["_people"] else {},
    )
    one = dict(records["events"].get(query.get("copy", ""), one))
    return _editor(visit, visit.t("New event"), "event/new/save", one, {})


@site.page("event/<key>/edit")
def edit(visit: Visit, key: str) -> Page | None:
    if (one := visit.records["events"].get(key)) is None:
        return None
    on = visit.query.get("day", "")
    if visit.query.get("only") == "1" and is_day(on) and times.occurs(one, on):
        one = {**one, "day": on, "repeat": "none", "until": ""}
        return _editor(visit, visit.t("Edit this one"), f"event/{key}/save", one, {"only": on})
    return _editor(visit, visit.t("Edit"), f"event/{key}/save", one, {})


def _editor(visit: Visit, heading: str, action: str, one: dict[str, Any], hidden: dict[str, str]) -> Page:
    people = visit.records["_people"]
    return Page.of(
        "edit.html",
        heading=heading,
        action=action,
        event=one,
        hidden=hidden,
        guests=", ".join(people[key]["name"] for key in one["guests"] if key in people),
        choices={
            "calendar": [(key, other["name"]) for key, other in visit.records["calendars"].items()],
            "repeat": [(key, visit.t(text)) for key, text in REPEATS.items()],
            "remind": [(key, visit.t(text)) for key, text in REMINDERS.items()],
        },
    )


def _read(visit: Visit) -> dict[str, Any]:
    """Read and check the posted event. Raises Invalid."""
    whole = bool(visit.form.get("all_day"))
    values: dict[str, Any] = visit.read(
        Field("title", longest=100),
        Field("calendar", check=one_of(visit.records["calendars"])),
        Field("day", check=day),
        Field("start", required=not whole, check=None if whole else time_of_day),
        Field("end", required=not whole, check=None if whole else time_of_day),
        Field("place", required=False),
        Field("repeat", check=one_of(REPEATS)),
        Field("until", required=False, check=day),
        Field("remind", check=one_of(REMINDERS)),
        Field("guests", required=False),
        Field("notes", required=False, longest=1000),
    )
    if whole:
        values |= {"start": "", "end": ""}
    elif values["end"] <= values["start"]:
        raise Invalid(end="The end is not after the start.")
    if values["repeat"] == "none":
        values["until"] = ""
    elif values["until"] and values["until"] < values["day"]:
        raise Invalid(until="This is before the first day.")
    known = {one["name"].casefold(): key for key, one in visit.records["_people"].items()}
    names = [name.strip() for name in values["guests"].split(",") if name.strip()]
    for name in names:
        if name.casefold() not in known:
            raise Invalid(guests=("Nobody is called {name}.", {"name": name}))
    return values | {"all_day": whole, "guests": {known[name.casefold()]: True for name in names}}


@site.form("event/new/save")
def save_new(visit: Visit) -> str:
    key = _new_key(visit.records, "e")
    visit.records["events"][key] = blank(**_read(visit)) | {"_from": ""}
    visit.notice("The event is saved.")
    return f"event/{key}"


@site.form("event/<key>/save")
def save(visit: Visit, key: str) -> str | None:
    events = visit.records["events"]
    if (one := events.get(key)) is None:
        return None
    values, only = _read(visit), visit.form.get("only", "")
    if only:
        if not is_day(only) or not times.occurs(one, only):
            return None
        key, _ = part(visit.records, key, only, values)
    else:
        one |= values
    visit.notice("The event is saved.")
    return f"event/{key}"


def part(records: Records, key: str, on: str, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Split the day `on` off a series, into an event of its own with these `values`; return its key and fields."""
    series = records["events"][key]
    series["skipped"][on] = True
    alone = series | {"day": on, "repeat": "none", "until": "", "skipped": {}} | values
    new = _new_key(records, "e")
    records["events"][new] = alone
    return new, alone


@site.form("event/<key>/delete")
def delete(visit: Visit, key: str) -> str | None:
    events, on = visit.records["events"], visit.form.get("day", "")
    if (one := events.get(key)) is None or not is_day(on):
        return None
    if visit.form.get("what") == "one" and times.occurs(one, on):
        one["skipped"][on] = True
    else:
        del events[key]
    visit.notice("{name} is deleted.", name=one["title"])
    return view_path(visit.records, "day", on)


@site.form("event/<key>/answer")
def answer(visit: Visit, key: str) -> str | None:
    one, given = visit.records["events"].get(key), visit.form.get("do", "")
    if one is None or not one["answer"] or given not in ANSWERS:
        return None
    one["answer"] = given
    if "comment" in visit.form:
        one["comment"] = visit.read(Field("comment", required=False))["comment"]
    visit.notice("Your answer is sent: {answer}.", answer=visit.t(ANSWERS[given]))
    return "invitations"


def _new_key(records: Records, letter: str) -> str:
    records["_count"] += 1
    return f"{letter}{records['_count']}"


# -- calendars ---------------------------------------------------------------------------------------------------------
@site.page("calendars")
def calendars(visit: Visit) -> Page:
    events = visit.records["events"].values()
    counts = {key: sum(one["calendar"] == key for one in events) for key in visit.records["calendars"]}
    return Page.of("calendars.html", heading=visit.t("Calendars"), counts=counts)


@site.page("calendars/<key>")
def edit_calendar(visit: Visit, key: str) -> Page | None:
    if key != "new" and key not in visit.records["calendars"]:
        return None
    one = visit.records["calendars"].get(key, {"name": "", "colour": COLOURS[0]})
    return Page.of(
        "calendar.html",
        heading=visit.t("New calendar") if key == "new" else one["name"],
        key=key,
        one=one,
        colours=[(colour, visit.t(colour)) for colour in COLOURS],
        ask=visit.query.get("ask"),
    )


@site.form("calendars/<key>/save")
def save_calendar(visit: Visit, key: str) -> str | None:
    mine = visit.records["calendars"]
    if key != "new" and key not in mine:
        return None
    values = visit.read(Field("name", longest=30), Field("colour", check=one_of(COLOURS)))
    if any(one["name"] == values["name"] for other, one in mine.items() if other != key):
        raise Invalid(name="There is a calendar of this name.")
    if key == "new":
        mine[_new_key(visit.records, "c")] = values | {"shown": True}
    else:
        mine[key] |= values
    visit.notice("Saved.")
    return "calendars"


@site.form("calendars/<key>/toggle")
def toggle(visit: Visit, key: str) -> str | None:
    """Show or hide a calendar, then go back to the view that the button stood on."""
    if (one := visit.records["calendars"].get(key)) is None:
        return None
    one["shown"] = not one["shown"]
    path = visit.form.get("_at", "").partition("?")[0]
    back = path in ("", "calendars", "invitations", "settings") or is_view(path)
    return site_address(path if back else "")


def is_view(path: str) -> bool:
    view, _, when = path.partition("/")
    return view in ("month", "week", "day", "agenda") and is_day(f"{when}-01" if view == "month" else when)


@site.form("calendars/<key>/delete")
def delete_calendar(visit: Visit, key: str) -> str | None:
    if key not in visit.records["calendars"]:
        return None
    if len(visit.records["calendars"]) == 1:
        raise Invalid(name="The last calendar cannot be deleted.")
    drop_calendar(visit.records, key)
    visit.notice("The calendar is deleted.")
    return "calendars"


def drop_calendar(records: Records, key: str) -> None:
    """Delete a calendar with its events."""
    del records["calendars"][key]
    for name in [name for name, one in records["events"].items() if one["calendar"] == key]:
        del records["events"][name]


# -- settings ----------------------------------------------------------------------------------------------------------
@site.page("settings")
def settings(visit: Visit) -> Page:
    return Page.of(
        "settings.html",
        heading=visit.t("Settings"),
        settings=visit.records["settings"],
        weekdays=[(str(number), visit.t(name)) for number, name in enumerate(WEEKDAYS)],
        starts=[("monday", visit.t("Monday")), ("sunday", visit.t("Sunday"))],
        reminds=[(key, visit.t(text)) for key, text in REMINDERS.items()],
        lengths=[(str(one), visit.t("{n} minutes", n=one)) for one in LENGTHS],
    )


@site.form("settings")
def save_settings(visit: Visit) -> str:
    values = visit.read(
        Field("week_start", check=one_of(("monday", "sunday"))),
        Field("remind", check=one_of(REMINDERS)),
        Field("length", check=one_of(map(str, LENGTHS))),
    )
    visit.records["settings"] |= values
    visit.notice("Saved.")
    return "settings"


@site.form("hours")
def save_hours(visit: Visit) -> str:
    values = visit.read(Field("work_from", check=time_of_day), Field("work_to", check=time_of_day))
    if values["work_to"] <= values["work_from"]:
        raise Invalid(work_to="The end is not after the start.")
    chosen = {str(number): bool(visit.form.get(f"day_{number}")) for number in range(7)}
    visit.records["settings"] |= {**values, "work_days": chosen}
    visit.notice("Saved.")
    return "settings"
