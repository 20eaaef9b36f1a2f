"""Define the calendar's task templates on the user's calendars and on settings."""

from __future__ import annotations

from flywheel.envs.suites.calendar import nav
from flywheel.envs.suites.calendar.data import COLOURS, LENGTHS, REMINDERS, WEEKDAYS, clock
from flywheel.envs.suites.calendar.draws import Records
from flywheel.envs.suites.calendar.editing import drop_calendar
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Draw, Params, SiteTask

_NEW_CALENDARS = ("Travel", "Music", "Garden", "Birthdays", "School", "Courses")
_SAVE = {"save": ("I save it.", "Now I save.")}
_LENGTHS = {str(one): f"{one} minutes" for one in LENGTHS}


# -- calendars ---------------------------------------------------------------------------------------------------------
def _draw_calendar(d: Draw) -> Params:
    key, one = d.pick("calendars")
    return {"key": key, "name": one["name"]}


def _hide(records: Records, p: Params) -> None:
    records["calendars"][p["key"]]["shown"] = False


def _steps_hide(screen: Screen, p: Params) -> Move | None:
    if screen.has(f"show {p['key']}"):
        return screen.click(f"show {p['key']}", "I take it off.", "I hide this one.")
    return nav.open_menu_page(screen, "calendars") or screen.click(
        f"toggle {p['key']}", "I turn it off.", "I hide this one."
    )


def _only(records: Records, p: Params) -> None:
    for key, one in records["calendars"].items():
        one["shown"] = key == p["key"]


def _steps_only(screen: Screen, p: Params) -> Move | None:
    calendars = screen.records["calendars"]
    left = [key for key in calendars if calendars[key]["shown"] and key != p["key"]]
    return _steps_hide(screen, {"key": left[0]}) if left else None


def _draw_new_calendar(d: Draw) -> Params:
    colour = d.rng.choice(COLOURS[1:])
    return {"name": d.rng.choice(_NEW_CALENDARS), "colour": colour}


def _add_calendar(records: Records, p: Params) -> None:
    records["calendars"]["new"] = {"name": p["name"], "colour": p["colour"], "shown": True}


def _steps_add_calendar(screen: Screen, p: Params) -> Move | None:
    if screen.page == "calendars/new":
        said = {"name": ("I type the name.",), "colour": ("I choose the color.",)}
        return screen.fill({"name": p["name"], "colour": p["colour"]}, "save", said | _SAVE)
    return nav.open_menu_page(screen, "calendars") or screen.click("add calendar", "A new calendar.")


def _calendar(screen: Screen, key: str) -> Move | None:
    if screen.page == f"calendars/{key}":
        return None
    return nav.open_menu_page(screen, "calendars") or screen.click(
        f"edit calendar {key}", "I open this one.", "I change this one."
    )


def _draw_colour(d: Draw) -> Params:
    p = _draw_calendar(d)
    colour = d.rng.choice([one for one in COLOURS if one != d.records["calendars"][p["key"]]["colour"]])
    return p | {"colour": colour}


def _colour(records: Records, p: Params) -> None:
    records["calendars"][p["key"]]["colour"] = p["colour"]


def _steps_colour(screen: Screen, p: Params) -> Move | None:
    said = {"colour": ("I choose the color.",)} | _SAVE
    return _calendar(screen, p["key"]) or screen.fill({"colour": p["colour"]}, "save", said)


def _steps_drop(screen: Screen, p: Params) -> Move | None:
    if screen.has("confirm"):
        return screen.click("confirm", "Yes, I am sure.", "I confirm.")
    return _calendar(screen, p["key"]) or screen.click("delete", "I delete this calendar.")


# -- settings ----------------------------------------------------------------------------------------------------------
def _draw_setting(name: str, options: dict[str, str]):
    def draw(d: Draw) -> Params:
        value = d.rng.choice([one for one in options if one != d.records["settings"][name]])
        return {"name": name, "value": value, "what": d.t(options[value])}

    return draw


def _set(records: Records, p: Params) -> None:
    records["settings"][p["name"]] = p["value"]


def _steps_set(screen: Screen, p: Params) -> Move | None:
    said = {p["name"]: ("I choose from the list.",)} | _SAVE
    return nav.open_menu_page(screen, "settings") or screen.fill({p["name"]: p["value"]}, "save", said)


def _draw_hours(d: Draw) -> Params:
    begin = d.rng.randrange(6 * 60, 11 * 60, 30)
    return {"begin": clock(begin), "end": clock(begin + d.rng.randrange(5 * 60, 9 * 60, 30))}


def _hours(records: Records, p: Params) -> None:
    records["settings"] |= {"work_from": p["begin"], "work_to": p["end"]}


_HOURS = {
    "work_from": ("I type when it begins.",),
    "work_to": ("I type when it ends.",),
    "save hours": ("I save it.", "Now I save."),
}


def _steps_hours(screen: Screen, p: Params) -> Move | None:
    wanted = {"work_from": p["begin"], "work_to": p["end"]}
    return nav.open_menu_page(screen, "settings") or screen.fill(wanted, "save hours", _HOURS)


def _draw_days(d: Draw) -> Params:
    off, on = str(d.rng.randrange(5)), str(d.rng.randrange(5, 7))
    return {"off": off, "on": on, "no": d.t(WEEKDAYS[int(off)]), "yes": d.t(WEEKDAYS[int(on)])}


def _days(records: Records, p: Params) -> None:
    records["settings"]["work_days"] |= {p["off"]: False, p["on"]: True}


def _steps_days(screen: Screen, p: Params) -> Move | None:
    wanted = {f"day_{p['off']}": False, f"day_{p['on']}": True}
    said = _HOURS | {f"day_{p['off']}": ("Not this day.",), f"day_{p['on']}": ("But this day.",)}
    return nav.open_menu_page(screen, "settings") or screen.fill(wanted, "save hours", said)


TASKS = (
    SiteTask("hide", "Hide the calendar {name}.", {1: 6}, _draw_calendar, _steps_hide, _hide),
    SiteTask(
        "only",
        "Show the events of the calendar {name} alone: hide the other calendars.",
        {3: 9},
        _draw_calendar,
        _steps_only,
        _only,
    ),
    SiteTask(
        "add_calendar",
        "Make a calendar “{name}” with the color {colour}.",
        {3: 13},
        _draw_new_calendar,
        _steps_add_calendar,
        _add_calendar,
    ),
    SiteTask("colour", "Give the calendar {name} the color {colour}.", {3: 10}, _draw_colour, _steps_colour, _colour),
    SiteTask(
        "drop",
        "Delete the calendar {name} with all of its events.",
        {3: 9},
        _draw_calendar,
        _steps_drop,
        lambda records, p: drop_calendar(records, p["key"]),
    ),
    SiteTask(
        "week_start",
        "Let the week begin on Sunday.",
        {2: 9},
        _draw_setting("week_start", {"monday": "Monday", "sunday": "Sunday"}),
        _steps_set,
        _set,
    ),
    SiteTask(
        "default_remind",
        "Set the reminder of new events to “{what}”.",
        {2: 9},
        _draw_setting("remind", REMINDERS),
        _steps_set,
        _set,
    ),
    SiteTask(
        "default_length", "Let new events be {what} long.", {2: 9}, _draw_setting("length", _LENGTHS), _steps_set, _set
    ),
    SiteTask("hours", "Set the working hours to {begin} until {end}.", {3: 15}, _draw_hours, _steps_hours, _hours),
    SiteTask(
        "work_days",
        "Take {no} off the working days, and make {yes} a working day.",
        {4: 11},
        _draw_days,
        _steps_days,
        _days,
    ),
)
