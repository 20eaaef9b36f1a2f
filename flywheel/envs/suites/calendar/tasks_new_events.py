"""Define the calendar's task templates that create events."""

from __future__ import annotations

from flywheel.envs.suites.calendar import draws, nav, times
from flywheel.envs.suites.calendar.data import blank
from flywheel.envs.suites.calendar.draws import Records
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Draw, Params, SiteTask

_FIRST = "c1"  # the form's default calendar of a new event


def _draw_new(d: Draw) -> Params:
    """Draw a new event. `wanted`: the fields to type; all others keep the form's defaults."""
    start, end = draws.span(d)
    day = draws.coming(d, 20)
    wanted = {"title": draws.title(d), "start": start, "end": end}
    return {"wanted": wanted, "day": day, "when": draws.words(d, day), **wanted}


def _draw_placed(d: Draw) -> Params:
    drawn, place = _draw_new(d), draws.place(d)
    calendar = d.rng.choice([key for key in d.records["calendars"] if key != _FIRST])
    name = d.records["calendars"][calendar]["name"]
    return drawn | {
        "wanted": drawn["wanted"] | {"place": place, "calendar": calendar},
        "place": place,
        "calendar": name,
    }


def _draw_weekly(d: Draw) -> Params:
    drawn = _draw_new(d)
    until = times.shift(drawn["day"], 7 * d.rng.randint(3, 12))
    return drawn | {"wanted": drawn["wanted"] | {"repeat": "weekly", "until": until}, "until": until}


def _draw_whole(d: Draw) -> Params:
    day = draws.coming(d, 20)
    wanted = {"title": draws.title(d), "all_day": True}
    return {"wanted": wanted, "day": day, "when": draws.words(d, day), "title": wanted["title"]}


def _create(records: Records, p: Params) -> None:
    start = {"calendar": _FIRST, "remind": records["settings"]["remind"], "day": p["day"]}
    records["events"]["new"] = blank(**start | p["wanted"])


def _steps_new(screen: Screen, p: Params) -> Move | None:
    return nav.open_new_form(screen, p["day"]) or nav.fill_event_form(screen, p["wanted"])


def _draw_guest(d: Draw) -> Params:
    drawn = _draw_new(d)
    key, name = draws.person(d)
    return drawn | {"guest": key, "name": name}


def _create_guest(records: Records, p: Params) -> None:
    _create(records, p | {"wanted": {**p["wanted"], "guests": {p["guest"]: True}}})


def _steps_guest(screen: Screen, p: Params) -> Move | None:
    return nav.open_new_form(screen, p["day"]) or nav.fill_event_form(screen, p["wanted"] | {"guests": p["name"]})


TASKS = (
    SiteTask(
        "create", "Make an event “{title}” on {when}, from {start} to {end}.", {3: 21}, _draw_new, _steps_new, _create
    ),
    SiteTask(
        "create_place",
        "Make an event “{title}” on {when}, from {start} to {end}, in the calendar {calendar}, at the place “{place}”.",
        {4: 26},
        _draw_placed,
        _steps_new,
        _create,
    ),
    SiteTask(
        "create_whole",
        "Make an event “{title}” that takes all day on {when}.",
        {3: 13},
        _draw_whole,
        _steps_new,
        _create,
    ),
    SiteTask(
        "create_weekly",
        "Make an event “{title}” on {when}, from {start} to {end}, that repeats every week until {until}.",
        {5: 25},
        _draw_weekly,
        _steps_new,
        _create,
    ),
    SiteTask(
        "create_guest",
        "Make an event “{title}” on {when}, from {start} to {end}, with {name} as guest.",
        {5: 22},
        _draw_guest,
        _steps_guest,
        _create_guest,
    ),
)
