"""Define the board's task templates that only look things up: pages, lists, filters, questions."""

from __future__ import annotations

from typing import Any

from flywheel.envs.suites.board import data, draws, nav
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask

Records = dict[str, Any]
_TABS = {"list": "the list of cards", "sprints": "the sprints", "report": "the report", "settings": "the settings"}
_SORTS = {
    "title": "by title",
    "-priority": "by priority, the most urgent first",
    "due": "by due date, the earliest first",
    "-due": "by due date, the latest first",
    "-number": "by key, the highest number first",
}
_SHOWN = {"backlog": "the backlog", "done": "the cards that are done", "archived": "the archived cards"}


# -- pages -------------------------------------------------------------------------------------------------------------
def _draw_tab(d: Draw) -> Params:
    tab = d.rng.choice(list(_TABS))
    return {**draws.project(d), "tab": tab, "what": _TABS[tab]}


def _draw_sort(d: Draw) -> Params:
    sort = d.rng.choice(list(_SORTS))
    return {**draws.project(d), "sort": sort, "order": _SORTS[sort]}


def _draw_show(d: Draw) -> Params:
    show = d.rng.choice(list(_SHOWN))
    return {**draws.project(d), "show": show, "what": _SHOWN[show]}


def _steps_show(screen: Screen, p: Params) -> Move | None:
    move = nav.open_project(screen, p["project"], "list")
    return move or screen.click(f"show {p['show']}", "I look at these cards.", "I click here.")


def _draw_word(d: Draw) -> Params:
    _, one = d.pick("cards")
    return {"word": one["title"].split(" the ", 1)[1]}


def _draw_filter(d: Draw) -> Params:
    drawn = {**draws.project(d), **draws.member(d)}
    cards = data.cards_of(d.records, drawn["project"]).values()
    labels = sorted({label for one in cards if one["assignee"] == drawn["member"] for label in one["labels"]})
    if not labels:
        raise Redraw
    label = d.rng.choice(labels)
    return {**drawn, "label": label, "wanted": {"who": drawn["member"], "label": label}}


# -- questions ---------------------------------------------------------------------------------------------------------
def _steps_on_card(fact: str, answer):
    def steps(screen: Screen, p: Params) -> Move | None:
        move = nav.open_card(screen, p["key"]) or screen.seen(f"fact {fact}")
        return move or screen.answer(str(answer(screen.records, p)))

    return steps


def _who(records: Records, p: Params) -> str:
    return records["members"][records["cards"][p["key"]]["assignee"]]["name"]


def _due(records: Records, p: Params) -> str:
    return records["cards"][p["key"]]["due"]


def _labels(records: Records, p: Params) -> list[str]:
    return records["cards"][p["key"]]["labels"]


def _in_report(place: str, answer):
    """Return the expert's steps: read the answer in the report of the project.

    place: the element that shows it, a format string over the params. answer(records, params): returns it.
    """

    def steps(screen: Screen, p: Params) -> Move | None:
        move = nav.open_project(screen, p["project"], "report") or screen.seen(place.format(**p))
        return move or screen.answer(str(answer(screen.records, p)))

    return steps


def _draw_column(d: Draw) -> Params:
    drawn = draws.project(d)
    return {**drawn, "column": d.rng.choice(d.records["projects"][drawn["project"]]["columns"])}


def _count(records: Records, p: Params) -> int:
    return sum(one["column"] == p["column"] for one in data.cards_of(records, p["project"]).values())


def _load(records: Records, p: Params) -> int:
    return len(data.open_cards(records, p["project"], p["member"]))


def _busiest(records: Records, p: Params) -> str:
    """Return the name of the member with most open cards. Raises Redraw where two have as many."""
    load = {key: len(data.open_cards(records, p["project"], key)) for key in records["members"]}
    first, second = sorted(load.values(), reverse=True)[:2]
    if first == second:
        raise Redraw
    return records["members"][max(load, key=load.__getitem__)]["name"]


def _draw_busiest(d: Draw) -> Params:
    drawn = draws.project(d)
    _busiest(d.records, drawn)
    return drawn


def _late(records: Records, p: Params) -> int:
    return sum(data.is_late(records, one) for one in data.cards_of(records, p["project"]).values())


def _earliest(records: Records, p: Params) -> str:
    cards = data.cards_of(records, p["project"]).values()
    dated = [one for one in cards if one["due"] and not data.is_done(records, one)]
    if not dated:
        raise Redraw
    return min(dated, key=lambda one: one["due"])["title"]


def _draw_earliest(d: Draw) -> Params:
    drawn = draws.project(d)
    _earliest(d.records, drawn)
    return drawn


def _steps_earliest(screen: Screen, p: Params) -> Move | None:
    move = nav.open_sorted_list(screen, p["project"], "due")
    return move or screen.answer(_earliest(screen.records, p), "The first one is the answer.", "It is at the top.")


def _draw_sprint(d: Draw) -> Params:
    return draws.sprint(d, "Done", "Active", "Planned")


def _points(records: Records, p: Params) -> int:
    cards = data.cards_of(records, p["project"]).values()
    return sum(one["points"] for one in cards if one["sprint"] == p["sprint"])


def _steps_points(screen: Screen, p: Params) -> Move | None:
    move = nav.open_project(screen, p["project"], "sprints") or screen.seen(f"facts {p['sprint']}")
    return move or screen.answer(str(_points(screen.records, p)), "It says how many.")


TASKS = (
    SiteTask(
        "open",
        "Open the board of the project “{where}”.",
        {1: 3},
        draws.project,
        lambda s, p: nav.open_project(s, p["project"]),
        page=lambda p: (f"board/{p['project']}", {}),
    ),
    SiteTask(
        "tab",
        "Open {what} of the project “{where}”.",
        {1: 5},
        _draw_tab,
        lambda s, p: nav.open_project(s, p["project"], p["tab"]),
        page=lambda p: (f"{p['tab']}/{p['project']}", {}),
    ),
    SiteTask(
        "open_card",
        "Open the card “{title}”.",
        {2: 6},
        draws.card,
        lambda s, p: nav.open_card(s, p["key"]),
        page=lambda p: (f"card/{p['key']}", {}),
    ),
    SiteTask(
        "find",
        "Search all cards for “{word}”.",
        {1: 4},
        _draw_word,
        lambda s, p: s.fill({"search": p["word"]}, "", {"search": ("I type the words.",)}),
        page=lambda p: ("search", {"q": p["word"]}),
    ),
    SiteTask(
        "sort",
        "Show the list of the project “{where}”, sorted {order}.",
        {2: 8},
        _draw_sort,
        lambda s, p: nav.open_sorted_list(s, p["project"], p["sort"]),
        page=lambda p: (f"list/{p['project']}", {"sort": p["sort"]}),
    ),
    SiteTask(
        "show",
        "In the list of the project “{where}”, show {what}.",
        {2: 6},
        _draw_show,
        _steps_show,
        page=lambda p: (f"list/{p['project']}", {"show": p["show"]}),
    ),
    SiteTask(
        "filter",
        "On the board “{where}”, show only cards of {who} with the label “{label}”.",
        {3: 12},
        _draw_filter,
        lambda s, p: nav.filter_board(s, p["project"], p["wanted"]),
        page=lambda p: (f"board/{p['project']}", p["wanted"]),
    ),
    SiteTask(
        "who",
        "Who is the assignee of the card “{title}”? Answer with the name.",
        {2: 8},
        lambda d: draws.card(d, lambda one: one["assignee"]),
        _steps_on_card("assignee", _who),
        answer=_who,
    ),
    SiteTask(
        "when",
        "When is the card “{title}” due? Answer with the day, such as 2026-01-31.",
        {2: 8},
        lambda d: draws.card(d, lambda one: one["due"]),
        _steps_on_card("due", _due),
        answer=_due,
    ),
    SiteTask(
        "which_labels",
        "Which labels has the card “{title}”? Answer with both, with a comma between.",
        {3: 8},
        lambda d: draws.card(d, lambda one: len(one["labels"]) == 2),
        _steps_on_card("labels", lambda records, p: ", ".join(_labels(records, p))),
        answer=_labels,
    ),
    SiteTask(
        "count",
        "How many cards are in the column “{column}” of the project “{where}”? Answer with the number.",
        {2: 6},
        _draw_column,
        _in_report("cards {column}", _count),
        answer=_count,
    ),
    SiteTask(
        "load",
        "How many open cards has {who} in the project “{where}”? Answer with the number.",
        {3: 8},
        lambda d: {**draws.project(d), **draws.member(d)},
        _in_report("load {member}", _load),
        answer=_load,
    ),
    SiteTask(
        "busiest",
        "Which member has most open cards in the project “{where}”? Answer with the name.",
        {4: 8},
        _draw_busiest,
        _in_report("load nobody", _busiest),
        answer=_busiest,
    ),
    SiteTask(
        "overdue",
        "How many cards of the project “{where}” are overdue? Answer with the number.",
        {3: 8},
        draws.project,
        _in_report("overdue", _late),
        answer=_late,
    ),
    SiteTask(
        "earliest",
        "Which open card of the project “{where}” is due first? Answer with its title.",
        {4: 8},
        _draw_earliest,
        _steps_earliest,
        answer=_earliest,
    ),
    SiteTask(
        "points",
        "How many points are in “{name}” of the project “{where}”? Answer with the number.",
        {3: 7},
        _draw_sprint,
        _steps_points,
        answer=_points,
    ),
)
