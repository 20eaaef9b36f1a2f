"""Task templates of the calendar: invitations, guests, free time, calendars, settings."""

from __future__ import annotations

from flywheel.worlds.calendar import draws, nav, times
from flywheel.worlds.calendar.data import COLOURS, LENGTHS, REMINDERS, WEEKDAYS, blank, clock, minutes
from flywheel.worlds.calendar.draws import Records
from flywheel.worlds.calendar.editing import ANSWERS, drop_calendar
from flywheel.worlds.calendar.tasks_lookup import searched
from flywheel.worlds.screen import Move, Screen
from flywheel.worlds.site_tasks import Draw, Params, Redraw, SiteTask

_COMMENTS = (
    "I come a little later.",
    "Thank you for asking.",
    "I have another meeting.",
    "Please send me the notes.",
    "I am on a trip that day.",
)
_NEW_CALENDARS = ("Travel", "Music", "Garden", "Birthdays", "School", "Courses")
_SAVE = {"save": ("I save it.", "Now I save.")}


# -- invitations -------------------------------------------------------------------------------------------------------
def _draw_invitation(d: Draw) -> Params:
    key, one = d.pick("events", lambda one: one["answer"] == "open")
    answer = d.rng.choice(list(ANSWERS))
    return {"key": key, "title": one["title"], "answer": answer, "what": d.t(ANSWERS[answer])}


def _answer(records: Records, p: Params) -> None:
    for key in p["keys"] if "keys" in p else [p["key"]]:
        records["events"][key]["answer"] = p["answer"]
        if "comment" in p:
            records["events"][key]["comment"] = p["comment"]


def _steps_answer(screen: Screen, p: Params) -> Move | None:
    element = f"{p['answer']} {p['key']}"
    return nav.to(screen, "invitations") or screen.click(element, "I answer it.", "That is my answer.")


def _draw_comment(d: Draw) -> Params:
    return _draw_invitation(d) | {"comment": d.rng.choice(_COMMENTS)}


def _steps_comment(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"event/{p['key']}":
        said = {"comment": ("I type the comment.",), p["answer"]: ("I answer it.", "That is my answer.")}
        return screen.fill({"comment": p["comment"]}, p["answer"], said)
    move = nav.to(screen, "invitations")
    return move or screen.click(f"invitation {p['key']}", "I open the invitation.", "This one.")


def _draw_all(d: Draw) -> Params:
    keys = [key for key, one in d.records["events"].items() if one["answer"] == "open"]
    answer = d.rng.choice(list(ANSWERS))
    return {"keys": keys, "answer": answer, "what": d.t(ANSWERS[answer])}


def _steps_all(screen: Screen, p: Params) -> Move | None:
    left = [name for name in screen.order(f"{p['answer']} ") if name.split(" ", 1)[1] in p["keys"]]
    if (move := nav.to(screen, "invitations")) is not None:
        return move
    return screen.click(left[0], "I answer this one.", "The next one.") if left else None


def _draw_clash(d: Draw) -> Params:
    """An invitation that is on the day of an event of one's own: which one, is to be found out."""
    events = d.records["events"]
    asked = [key for key, one in events.items() if one["answer"] == "open"]
    days = [events[key]["day"] for key in asked]
    fits = [key for key in asked if days.count(events[key]["day"]) == 1]
    if not fits:
        raise Redraw
    key = d.rng.choice(fits)
    return {"key": key, "answer": "no", "when": draws.words(d, events[key]["day"])}


# -- guests and free time ----------------------------------------------------------------------------------------------
def _draw_invite(d: Draw) -> Params:
    p = draws.event(d)
    guests = d.records["events"][p["key"]]["guests"]
    key, name = draws.person(d, *guests)
    names = [d.records["_people"][one]["name"] for one in guests] + [name]
    return p | {"guest": key, "name": name, "typed": ", ".join(names)}


def _invite(records: Records, p: Params) -> None:
    records["events"][p["key"]]["guests"][p["guest"]] = True


def _steps_guests(screen: Screen, p: Params) -> Move | None:
    return nav.editing(screen, p["key"]) or nav.filled(screen, {"guests": p["typed"]})


def _draw_uninvite(d: Draw) -> Params:
    p = draws.event(d, lambda one: one["guests"])
    guests = list(d.records["events"][p["key"]]["guests"])
    out = d.rng.choice(guests)
    left = [d.records["_people"][one]["name"] for one in guests if one != out]
    return p | {"guest": out, "name": d.records["_people"][out]["name"], "typed": ", ".join(left)}


def _uninvite(records: Records, p: Params) -> None:
    del records["events"][p["key"]]["guests"][p["guest"]]


def _draw_booking(d: Draw) -> Params:
    guest, name = draws.person(d)
    length = d.rng.choice((60, 90))
    days = times.days(times.shift(d.records["_today"], 1), 14)
    days = [day for day in days if times.free(d.records, day, length, guest)]
    if not days:
        raise Redraw
    day = d.rng.choice(days)
    start = times.free(d.records, day, length, guest)[0][0]
    return {
        "guest": guest,
        "name": name,
        "length": length,
        "day": day,
        "start": start,
        "title": draws.title(d),
        "end": clock(minutes(start) + length),
    }


def _book(records: Records, p: Params) -> None:
    records["events"]["new"] = blank(
        title=p["title"],
        calendar="c1",
        day=p["day"],
        start=p["start"],
        end=p["end"],
        guests={p["guest"]: True},
        remind=records["settings"]["remind"],
    )


def _steps_book(screen: Screen, p: Params) -> Move | None:
    if screen.page == "new":
        return nav.filled(screen, {"title": p["title"]})
    return searched(screen, p) or screen.click(
        f"free {p['day']} {p['start']}", "The first free time.", "I take this one."
    )


# -- calendars ---------------------------------------------------------------------------------------------------------
def _draw_calendar(d: Draw) -> Params:
    key, one = d.pick("calendars")
    return {"key": key, "name": one["name"]}


def _hide(records: Records, p: Params) -> None:
    records["calendars"][p["key"]]["shown"] = False


def _steps_hide(screen: Screen, p: Params) -> Move | None:
    if screen.has(f"show {p['key']}"):
        return screen.click(f"show {p['key']}", "I take it off.", "I hide this one.")
    return nav.to(screen, "calendars") or screen.click(f"toggle {p['key']}", "I turn it off.", "I hide this one.")


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
    return nav.to(screen, "calendars") or screen.click("add calendar", "A new calendar.")


def _calendar(screen: Screen, key: str) -> Move | None:
    if screen.page == f"calendars/{key}":
        return None
    return nav.to(screen, "calendars") or screen.click(f"edit calendar {key}", "I open this one.", "I change this one.")


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
    return nav.to(screen, "settings") or screen.fill({p["name"]: p["value"]}, "save", said)


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
    return nav.to(screen, "settings") or screen.fill(wanted, "save hours", _HOURS)


def _draw_days(d: Draw) -> Params:
    off, on = str(d.rng.randrange(5)), str(d.rng.randrange(5, 7))
    return {"off": off, "on": on, "no": d.t(WEEKDAYS[int(off)]), "yes": d.t(WEEKDAYS[int(on)])}


def _days(records: Records, p: Params) -> None:
    records["settings"]["work_days"] |= {p["off"]: False, p["on"]: True}


def _steps_days(screen: Screen, p: Params) -> Move | None:
    wanted = {f"day_{p['off']}": False, f"day_{p['on']}": True}
    said = _HOURS | {f"day_{p['off']}": ("Not this day.",), f"day_{p['on']}": ("But this day.",)}
    return nav.to(screen, "settings") or screen.fill(wanted, "save hours", said)


_LENGTHS = {str(one): f"{one} minutes" for one in LENGTHS}
TASKS = (
    SiteTask(
        "answer", "Answer the invitation “{title}” with “{what}”.", {2: 8}, _draw_invitation, _steps_answer, _answer
    ),
    SiteTask(
        "comment",
        "Answer the invitation “{title}” with “{what}” and the comment “{comment}”",
        {3: 10},
        _draw_comment,
        _steps_comment,
        _answer,
    ),
    SiteTask("answer_all", "Answer all open invitations with “{what}”.", {4: 14}, _draw_all, _steps_all, _answer),
    SiteTask("decline_day", "Say “No” to the invitation for {when}.", {3: 8}, _draw_clash, _steps_answer, _answer),
    SiteTask(
        "invite", "Add {name} to the guests of “{title}” on {when}.", {4: 14}, _draw_invite, _steps_guests, _invite
    ),
    SiteTask(
        "uninvite",
        "Take {name} off the guests of “{title}” on {when}.",
        {4: 14},
        _draw_uninvite,
        _steps_guests,
        _uninvite,
    ),
    SiteTask(
        "book",
        "Use “Find a time” to find {length} minutes with {name}, and make an event “{title}” at the first "
        "free time on {day}, with {name} as guest.",
        {5: 21},
        _draw_booking,
        _steps_book,
        _book,
    ),
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
