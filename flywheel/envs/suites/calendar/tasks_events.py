"""Define the calendar's task templates that change, move, repeat, copy and delete events."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.calendar import draws, nav, times
from flywheel.envs.suites.calendar.data import REMINDERS, clock, minutes
from flywheel.envs.suites.calendar.draws import Records
from flywheel.envs.suites.calendar.editing import part
from flywheel.envs.suites.screen import Move, Screen, take_first_move
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask


# -- changes of one event ----------------------------------------------------------------------------------------------
def _changed(draw):
    """Wrap `draw`, which returns `wanted` (fields to change) and words of the instruction, into a draw of an event."""

    def drawn(d: Draw) -> Params:
        p = draws.event(d)
        return p | draw(d, d.records["events"][p["key"]])

    return drawn


def _title(d: Draw, one: dict[str, Any]) -> Params:
    return {"wanted": {"title": draws.title(d)}}


def _time(d: Draw, one: dict[str, Any]) -> Params:
    start, end = draws.span(d)
    return {"wanted": {"start": start, "end": end}}


def _day(d: Draw, one: dict[str, Any]) -> Params:
    return {"wanted": {"day": times.shift(one["day"], d.rng.randint(1, 9))}}


def _later(d: Draw, one: dict[str, Any]) -> Params:
    """Draw one or two hours by which the event moves on the same day; start and end are to be worked out."""
    hours = d.rng.randint(1, 2)
    begin, end = minutes(one["start"]) + 60 * hours, minutes(one["end"]) + 60 * hours
    if end >= 23 * 60:
        raise Redraw
    return {
        "wanted": {"start": clock(begin), "end": clock(end)},
        "hours": d.t("an hour" if hours == 1 else "two hours"),
    }


def _place(d: Draw, one: dict[str, Any]) -> Params:
    return {"wanted": {"place": draws.place(d, one["place"])}}


def _calendar(d: Draw, one: dict[str, Any]) -> Params:
    key, other = d.pick("calendars", lambda other: other != d.records["calendars"][one["calendar"]])
    return {"wanted": {"calendar": key}, "name": other["name"]}


def _remind(d: Draw, one: dict[str, Any]) -> Params:
    key = d.rng.choice([key for key in REMINDERS if key != one["remind"]])
    return {"wanted": {"remind": key}, "what": d.t(REMINDERS[key])}


def _repeat(d: Draw, one: dict[str, Any]) -> Params:
    return {"wanted": {"repeat": "weekly", "until": times.shift(one["day"], 7 * d.rng.randint(2, 9))}}


def _move_all(d: Draw, one: dict[str, Any]) -> Params:
    start, end = draws.span(d)
    wanted = {
        "day": times.shift(one["day"], d.rng.randint(1, 9)),
        "start": start,
        "end": end,
        "place": draws.place(d, one["place"]),
    }
    return {"wanted": wanted}


def _apply(records: Records, p: Params) -> None:
    records["events"][p["key"]] |= p["wanted"]


def _steps_edit(screen: Screen, p: Params) -> Move | None:
    return nav.open_edit_form(screen, p["key"]) or nav.fill_event_form(screen, p["wanted"])


def _draw_copy(d: Draw) -> Params:
    p = draws.event(d, lambda one: not one["guests"])
    return p | {"wanted": {"day": times.shift(p["day"], d.rng.randint(1, 14))}}


def _copy(records: Records, p: Params) -> None:
    records["events"]["new"] = records["events"][p["key"]] | p["wanted"]


def _steps_copy(screen: Screen, p: Params) -> Move | None:
    if screen.page == "new" and screen.query.get("copy") == p["key"]:
        return nav.fill_event_form(screen, p["wanted"])
    return nav.open_event(screen, p["key"]) or screen.click("copy", "I copy it.", "One more of it.")


# -- deleting, and one of a series -------------------------------------------------------------------------------------
def _delete(records: Records, p: Params) -> None:
    for key in p["keys"] if "keys" in p else [p["key"]]:
        del records["events"][key]


def _draw_two(d: Draw) -> Params:
    one = draws.event(d)
    other = draws.event(d, lambda event: event["title"] != one["title"])
    return {"keys": [one["key"], other["key"]], "title": one["title"], "other": other["title"]}


def _steps_two(screen: Screen, p: Params) -> Move | None:
    return take_first_move(*(lambda key=key: nav.delete_event(screen, key) for key in p["keys"]))


def _draw_series(d: Draw) -> Params:
    key, one = d.pick("events", lambda one: one["repeat"] != "none")
    return {"key": key, "title": one["title"]}


def _skip(records: Records, p: Params) -> None:
    records["events"][p["key"]]["skipped"][p["day"]] = True


def _steps_skip(screen: Screen, p: Params) -> Move | None:
    if screen.has("delete one"):
        return screen.click("delete one", "Only this one.", "Not the whole series.")
    return nav.open_occurrence(screen, p["key"], p["day"]) or screen.click("delete", "I delete it.")


def _draw_part(d: Draw) -> Params:
    start, end = draws.span(d)
    return draws.series(d) | {"wanted": {"start": start, "end": end}}


def _part(records: Records, p: Params) -> None:
    part(records, p["key"], p["day"], p["wanted"])


def _steps_part(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"event/{p['key']}/edit":
        return nav.fill_event_form(screen, p["wanted"])
    if screen.has("edit one"):
        return screen.click("edit one", "Only this one.", "Not all of them.")
    return nav.open_occurrence(screen, p["key"], p["day"]) or screen.click("edit", "I change it.", "I click edit.")


def _draw_series_time(d: Draw) -> Params:
    start, end = draws.span(d)
    return _draw_series(d) | {"wanted": {"start": start, "end": end}}


def _draw_full_day(d: Draw) -> Params:
    """Draw a day with two or three events, each of which happens once and has a time."""
    found: dict[str, list[str]] = {}
    for key, one in d.records["events"].items():
        found.setdefault(one["day"], []).append(key)
    today = d.records["_today"]
    days = [
        day
        for day, keys in found.items()
        if day >= today
        and 1 < len(keys) < 4
        and all(draws.plain(d.records["events"][key]) for key in keys)
        and len(times.occurrences(d.records["events"], [day])) == len(keys)
    ]
    if not days:
        raise Redraw
    day = d.rng.choice(days)
    return {"keys": found[day], "day": day, "when": draws.words(d, day)}


def _steps_full_day(screen: Screen, p: Params) -> Move | None:
    left = [key for key in p["keys"] if key in screen.records["events"]]
    if not left:
        return None
    if screen.has("confirm"):
        return screen.click("confirm", "Yes, I am sure.", "I confirm.")
    if screen.page in [f"event/{key}" for key in left]:
        return screen.click("delete", "I delete it.", "Away with it.")
    seen = [key for key in left if screen.has(f"event {key} {p['day']}")]
    return nav.open_day(screen, p["day"]) or screen.click(
        f"event {seen[0]} {p['day']}", "I open this one.", "The next one."
    )


TASKS = (
    SiteTask(
        "rename",
        "Rename the event “{title}” on {when} to “{wanted[title]}”.",
        {3: 15},
        _changed(_title),
        _steps_edit,
        _apply,
    ),
    SiteTask(
        "time",
        "Let “{title}” on {when} go from {wanted[start]} to {wanted[end]}.",
        {3: 18},
        _changed(_time),
        _steps_edit,
        _apply,
    ),
    SiteTask(
        "later", "Let “{title}” on {when} begin and end {hours} later.", {4: 18}, _changed(_later), _steps_edit, _apply
    ),
    SiteTask(
        "move",
        "Move “{title}” from {when} to the day {wanted[day]}, at the same time.",
        {3: 15},
        _changed(_day),
        _steps_edit,
        _apply,
    ),
    SiteTask(
        "place_of",
        "Let “{title}” on {when} take place at “{wanted[place]}”.",
        {3: 16},
        _changed(_place),
        _steps_edit,
        _apply,
    ),
    SiteTask(
        "calendar_of",
        "Put “{title}” on {when} into the calendar {name}.",
        {3: 14},
        _changed(_calendar),
        _steps_edit,
        _apply,
    ),
    SiteTask(
        "remind",
        "Set the reminder of “{title}” on {when} to “{what}”.",
        {3: 14},
        _changed(_remind),
        _steps_edit,
        _apply,
    ),
    SiteTask(
        "repeat",
        "Let “{title}” on {when} repeat every week until {wanted[until]}.",
        {4: 17},
        _changed(_repeat),
        _steps_edit,
        _apply,
    ),
    SiteTask(
        "move_all",
        "Move “{title}” from {when} to {wanted[day]}, from {wanted[start]} to {wanted[end]}, at the "
        "place “{wanted[place]}”.",
        {5: 26},
        _changed(_move_all),
        _steps_edit,
        _apply,
    ),
    SiteTask(
        "copy", "Copy the event “{title}” on {when} to the day {wanted[day]}.", {4: 16}, _draw_copy, _steps_copy, _copy
    ),
    SiteTask(
        "delete",
        "Delete the event “{title}” on {when}.",
        {2: 9},
        draws.event,
        lambda s, p: nav.delete_event(s, p["key"]),
        _delete,
    ),
    SiteTask("delete_two", "Delete the events “{title}” and “{other}”.", {4: 17}, _draw_two, _steps_two, _delete),
    SiteTask(
        "delete_series",
        "Delete the whole series “{title}”.",
        {3: 9},
        _draw_series,
        lambda s, p: nav.delete_event(s, p["key"]),
        _delete,
    ),
    SiteTask(
        "skip", "Delete “{title}” on {when}, and only this one of the series.", {4: 9}, draws.series, _steps_skip, _skip
    ),
    SiteTask(
        "part",
        "Let “{title}” on {when} go from {wanted[start]} to {wanted[end]}, only this one of the series.",
        {5: 20},
        _draw_part,
        _steps_part,
        _part,
    ),
    SiteTask(
        "series_time",
        "Let the whole series “{title}” go from {wanted[start]} to {wanted[end]}.",
        {4: 19},
        _draw_series_time,
        _steps_edit,
        _apply,
    ),
    SiteTask("clear_day", "Delete all events on {when}.", {5: 19}, _draw_full_day, _steps_full_day, _delete),
)
