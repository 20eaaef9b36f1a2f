"""Define the calendar's task templates that only look things up: views, searches, questions."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.calendar import draws, nav, times
from flywheel.envs.suites.calendar.data import MONTHS, VIEWS
from flywheel.envs.suites.calendar.draws import Records
from flywheel.envs.suites.calendar.pages import view_path
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask


# -- views -------------------------------------------------------------------------------------------------------------
def _draw_view(d: Draw) -> Params:
    view = d.rng.choice([one for one in VIEWS if one != "month"])
    return {"view": view, "title": d.t(VIEWS[view]), "path": view_path(d.records, view, d.records["_today"])}


def _draw_month(d: Draw) -> Params:
    month = times.shift_month(d.records["_today"][:7], d.rng.choice((-2, -1, 1, 2, 3)))
    return {"month": month, "title": f"{d.t(MONTHS[int(month[5:]) - 1])} {month[:4]}"}


def _draw_day(d: Draw) -> Params:
    day = times.shift(d.records["_today"], d.rng.choice((-9, -5, -2, 3, 6, 11, 17, 24, 33)))
    return {"day": day, "when": draws.words(d, day)}


def _draw_week(d: Draw) -> Params:
    drawn = _draw_day(d)
    return drawn | {"path": view_path(d.records, "week", drawn["day"])}


def _steps_week(screen: Screen, p: Params) -> Move | None:
    if screen.page == p["path"]:
        return None
    return nav.open_day(screen, p["day"]) or screen.click("view week", "Now the week.", "I want to see the week.")


def _steps_go(screen: Screen, p: Params) -> Move | None:
    """Type the day into the field below a day view."""
    if not screen.page.startswith("day/"):
        return screen.click("view day", "First the day view.", "I change the view.")
    return screen.fill({"go to": p["day"]}, "go button", {"go to": ("I type the day.",)})


def _draw_far(d: Draw) -> Params:
    month = times.shift_month(d.records["_today"][:7], d.rng.choice((5, 7, 9, 14)))
    return {"day": f"{month}-{d.rng.randint(1, 28):02d}"}


def _steps_search(screen: Screen, p: Params) -> Move | None:
    return screen.fill({"search": p["title"]}, "", {"search": ("I type it here.", "I search for it.")})


# -- questions ---------------------------------------------------------------------------------------------------------
def _draw_place(d: Draw) -> Params:
    return draws.event(d, lambda one: one["place"])


def _fact(name: str):
    return lambda records, p: records["events"][p["key"]][name]


def _steps_fact(name: str, element: str):
    """Return the expert's steps: open the event, scroll to `element`, answer with the field `name`."""

    def steps(screen: Screen, p: Params) -> Move | None:
        move = nav.open_event(screen, p["key"]) or screen.seen(element)
        return move or screen.answer(screen.records["events"][p["key"]][name])

    return steps


def _on(records: Records, day: str) -> list[times.Occurrence]:
    return times.occurrences(times.shown(records), [day])


def _draw_count(d: Draw) -> Params:
    days = [day for day in times.days(d.records["_today"], 21) if 1 < len(_on(d.records, day)) < 7]
    if not days:
        raise Redraw
    day = d.rng.choice(days)
    return {"day": day, "when": draws.words(d, day)}


def _steps_count(screen: Screen, p: Params) -> Move | None:
    """Count in the agenda of the day, which lists all events below one another."""
    records: Any = screen.records
    if screen.page != f"agenda/{p['day']}":
        return nav.open_day(screen, p["day"]) or screen.click(
            "view agenda", "I open the list.", "I want to see a list."
        )
    last = _on(records, p["day"])[-1]
    return screen.seen(f"event {last.key} {p['day']}") or screen.answer(
        str(len(_on(records, p["day"]))), "I count them."
    )


def _first(records: Records, p: Params) -> times.Occurrence:
    return next(one for one in _on(records, p["day"]) if not one.event["all_day"])


def _draw_first(d: Draw) -> Params:
    drawn = _draw_count(d)
    timed = [one for one in _on(d.records, drawn["day"]) if not one.event["all_day"]]
    if len(timed) < 2 or timed[0].event["start"] == timed[1].event["start"]:
        raise Redraw
    return drawn


def _steps_first(screen: Screen, p: Params) -> Move | None:
    records: Any = screen.records
    one = _first(records, p)
    move = nav.open_day(screen, p["day"]) or screen.seen(f"event {one.key} {p['day']}")
    return move or screen.answer(one.event["title"], "The first one is the answer.")


def _draw_host(d: Draw) -> Params:
    key, one = d.pick("events", lambda one: one["answer"])
    return {"key": key, "title": one["title"]}


def _steps_host(screen: Screen, p: Params) -> Move | None:
    move = nav.open_menu_page(screen, "invitations") or screen.seen(f"invitation {p['key']}")
    return move or screen.answer(screen.records["events"][p["key"]]["_from"])


def _draw_guests(d: Draw) -> Params:
    return draws.event(d, lambda one: one["guests"])


def _guests(records: Records, p: Params) -> list[str]:
    return [records["_people"][key]["name"] for key in records["events"][p["key"]]["guests"]]


def _steps_guests(screen: Screen, p: Params) -> Move | None:
    records: Any = screen.records
    move = nav.open_event(screen, p["key"]) or screen.seen("fact guests")
    return move or screen.answer(", ".join(_guests(records, p)))


# -- free time ---------------------------------------------------------------------------------------------------------
def _draw_free(d: Draw) -> Params:
    """Draw a person, and a day on which both they and the user have time."""
    guest, name = draws.person(d)
    length = d.rng.choice((60, 90))
    days = [
        day for day in times.days(times.shift(d.records["_today"], 1), 14) if times.free(d.records, day, length, guest)
    ]
    if not days:
        raise Redraw
    day = d.rng.choice(days)
    return {"guest": guest, "name": name, "length": length, "day": day, "when": draws.words(d, day)}


def searched(screen: Screen, p: Params) -> Move | None:
    """Search for the free times of a day together with somebody."""
    if screen.page == "free" and screen.query.get("guest") == p["guest"] and screen.query.get("from") == p["day"]:
        return None
    said = {"guest": ("I choose who comes.",), "length": ("I choose how long.",), "from": ("I type the day.",)}
    wanted = {"guest": p["guest"], "length": str(p["length"]), "from": p["day"]}
    return nav.open_menu_page(screen, "free") or screen.fill(wanted, "find times", said)


def _free(records: Records, p: Params) -> str:
    return times.free(records, p["day"], p["length"], p["guest"])[0][0]


def _steps_free(screen: Screen, p: Params) -> Move | None:
    records: Any = screen.records
    begin = _free(records, p)
    move = searched(screen, p) or screen.seen(f"free {p['day']} {begin}")
    return move or screen.answer(begin, "The first one is the answer.")


TASKS = (
    SiteTask(
        "view",
        "Change to the view “{title}”.",
        {1: 4},
        _draw_view,
        lambda s, p: s.click(f"view {p['view']}", "I click the view.", "This one."),
        page=lambda p: (p["path"], {}),
    ),
    SiteTask(
        "month",
        "Show the month {title}.",
        {1: 6},
        _draw_month,
        lambda s, p: nav.open_month(s, p["month"]),
        page=lambda p: (f"month/{p['month']}", {}),
    ),
    SiteTask(
        "day",
        "Show the day view of {when}.",
        {2: 6},
        _draw_day,
        lambda s, p: nav.open_day(s, p["day"]),
        page=lambda p: (f"day/{p['day']}", {}),
    ),
    SiteTask(
        "week",
        "Show the week that has {when} in it, in the week view.",
        {3: 8},
        _draw_week,
        _steps_week,
        page=lambda p: (p["path"], {}),
    ),
    SiteTask(
        "go", "Show the day view of {day}.", {3: 11}, _draw_far, _steps_go, page=lambda p: (f"day/{p['day']}", {})
    ),
    SiteTask(
        "search",
        "Search the events for “{title}”.",
        {1: 5},
        draws.event,
        _steps_search,
        page=lambda p: ("search", {"q": p["title"]}),
    ),
    SiteTask(
        "open",
        "Open the event “{title}”.",
        {2: 7},
        draws.event,
        lambda s, p: nav.open_event(s, p["key"]),
        page=lambda p: (f"event/{p['key']}", {}),
    ),
    SiteTask(
        "begin",
        "At what time does “{title}” on {when} begin? Answer with the time, such as 09:30.",
        {2: 8},
        draws.event,
        _steps_fact("start", "fact time"),
        answer=_fact("start"),
    ),
    SiteTask(
        "place",
        "Where does “{title}” take place? Answer with the place.",
        {2: 8},
        _draw_place,
        _steps_fact("place", "fact place"),
        answer=_fact("place"),
    ),
    SiteTask(
        "guests",
        "Who are the guests of “{title}”? Answer with their names, with commas.",
        {3: 8},
        _draw_guests,
        _steps_guests,
        answer=_guests,
    ),
    SiteTask(
        "count",
        "How many events are there on {when}? Answer with the number.",
        {3: 8},
        _draw_count,
        _steps_count,
        answer=lambda records, p: len(_on(records, p["day"])),
    ),
    SiteTask(
        "first",
        "Which event with a time is the first on {when}? Answer with its title.",
        {3: 7},
        _draw_first,
        _steps_first,
        answer=lambda records, p: _first(records, p).event["title"],
    ),
    SiteTask(
        "host",
        "Who invites you to “{title}”? Answer with the name.",
        {2: 8},
        _draw_host,
        _steps_host,
        answer=lambda records, p: records["events"][p["key"]]["_from"],
    ),
    SiteTask(
        "free",
        "Use “Find a time” to look for {length} minutes with {name}. When is the first free time on "
        "{day}? Answer with the time at which it begins.",
        {4: 13},
        _draw_free,
        _steps_free,
        answer=_free,
    ),
)
