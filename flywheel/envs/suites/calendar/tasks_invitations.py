"""Define the calendar's task templates on invitations, guests and free time."""

from __future__ import annotations

from flywheel.envs.suites.calendar import draws, nav, times
from flywheel.envs.suites.calendar.data import blank, clock, minutes
from flywheel.envs.suites.calendar.draws import Records
from flywheel.envs.suites.calendar.editing import ANSWERS
from flywheel.envs.suites.calendar.tasks_lookup import searched
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask

_COMMENTS = (
    "I come a little later.",
    "Thank you for asking.",
    "I have another meeting.",
    "Please send me the notes.",
    "I am on a trip that day.",
)


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
    return nav.open_menu_page(screen, "invitations") or screen.click(element, "I answer it.", "That is my answer.")


def _draw_comment(d: Draw) -> Params:
    return _draw_invitation(d) | {"comment": d.rng.choice(_COMMENTS)}


def _steps_comment(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"event/{p['key']}":
        said = {"comment": ("I type the comment.",), p["answer"]: ("I answer it.", "That is my answer.")}
        return screen.fill({"comment": p["comment"]}, p["answer"], said)
    move = nav.open_menu_page(screen, "invitations")
    return move or screen.click(f"invitation {p['key']}", "I open the invitation.", "This one.")


def _draw_all(d: Draw) -> Params:
    keys = [key for key, one in d.records["events"].items() if one["answer"] == "open"]
    answer = d.rng.choice(list(ANSWERS))
    return {"keys": keys, "answer": answer, "what": d.t(ANSWERS[answer])}


def _steps_all(screen: Screen, p: Params) -> Move | None:
    left = [name for name in screen.order(f"{p['answer']} ") if name.split(" ", 1)[1] in p["keys"]]
    if (move := nav.open_menu_page(screen, "invitations")) is not None:
        return move
    return screen.click(left[0], "I answer this one.", "The next one.") if left else None


def _draw_clash(d: Draw) -> Params:
    """Draw an open invitation that is the only one on its day; the instruction names the day alone."""
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
    return nav.open_edit_form(screen, p["key"]) or nav.fill_event_form(screen, {"guests": p["typed"]})


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
        return nav.fill_event_form(screen, {"title": p["title"]})
    return searched(screen, p) or screen.click(
        f"free {p['day']} {p['start']}", "The first free time.", "I take this one."
    )


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
)
