"""Serve the pages of the board that only show: projects, boards, lists, report, search."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

from flywheel.envs.suites.board import data
from flywheel.envs.suites.board.data import LABELS, ME, PRIORITIES, cards_of, is_done, is_late, make_records, tag
from flywheel.envs.suites.site import Page, Site, Visit

A_PAGE = 10
SORTS = ("number", "title", "column", "assignee", "priority", "due", "points")
SHOWN = ("open", "backlog", "done", "archived")


def _menu(visit: Visit) -> list[tuple[str, str, str]]:
    return [
        ("", visit.t("Projects"), ""),
        ("mine", visit.t("My work"), str(len(list_my_cards(visit)) or "")),
        ("members", visit.t("Members"), ""),
    ]


def _common(visit: Visit) -> dict[str, Any]:
    records = visit.records
    return {
        "accent": "#4338a8",
        "accent_soft": "#e8e6fa",
        "records": records,
        "members": records["members"],
        "me": ME,
        "labels": LABELS,
        "named": lambda card: tag(records, card),
        "late": lambda card: is_late(records, card),
        "done": lambda card: is_done(records, card),
        "short": short,
        "steps_of": lambda key: steps_of(records, key),
    }


site = Site(Path(__file__).parent, make_records, menu=_menu, common=_common)


def short(day: str) -> str:
    """Format a day as tiles show it: 14 Feb."""
    return f"{int(day[8:])} {date.fromisoformat(day):%b}"


def steps_of(records: data.Records, card: str) -> dict[str, dict[str, Any]]:
    """Return the checklist of a card."""
    return {key: step for key, step in records["steps"].items() if step["card"] == card}


def list_my_cards(visit: Visit) -> dict[str, data.Card]:
    """Return the user's open cards in projects that are not archived, by due date, those without one last."""
    open_ones = {
        key: card
        for project, one in visit.records["projects"].items()
        if not one["archived"]
        for key, card in data.open_cards(visit.records, project, ME).items()
    }
    return dict(sorted(open_ones.items(), key=lambda item: item[1]["due"] or "9"))


def project_page(visit: Visit, template: str, key: str, **values: Any) -> Page | None:
    """Return a page under the tabs of a project; None where there is no such project."""
    if (one := visit.records["projects"].get(key)) is None:
        return None
    around = {"heading": one["name"], "key": key, "project": one, "current": ""}
    return Page.of(template, **{**around, **values})


def people(visit: Visit, *before: tuple[str, str]) -> list[tuple[str, str]]:
    """List the members as options of a `<select>`, after those in `before`."""
    return [*before, *((key, one["name"]) for key, one in visit.records["members"].items())]


# -- projects ----------------------------------------------------------------------------------------------------------
@site.page("")
def home(visit: Visit) -> Page:
    projects = {key: (one, _progress(visit.records, key)) for key, one in visit.records["projects"].items()}
    soon = [
        (key, card)
        for project, one in visit.records["projects"].items()
        if not one["archived"]
        for key, card in cards_of(visit.records, project).items()
        if card["due"] and not is_done(visit.records, card)
    ]
    soon.sort(key=lambda item: item[1]["due"])
    return Page.of("home.html", heading=visit.t("Projects"), projects=projects, soon=soon[:5])


def _progress(records: data.Records, project: str) -> dict[str, Any]:
    cards = cards_of(records, project).values()
    over = sum(is_done(records, card) for card in cards)
    return {"open": len(cards) - over, "share": over / len(cards) if cards else 0.0}


@site.form("projects/<key>/star")
def star(visit: Visit, key: str) -> str | None:
    if (one := visit.records["projects"].get(key)) is None:
        return None
    one["starred"] = not one["starred"]
    return ""


@site.page("mine")
def my_work(visit: Visit) -> Page:
    return Page.of("mine.html", heading=visit.t("My work"), rows=list(list_my_cards(visit).items()))


@site.page("search")
def search(visit: Visit) -> Page:
    """Show the cards whose name, title or text contains every word; archived ones too."""
    words = visit.query.get("q", "").casefold().split()
    rows = [
        (key, card)
        for key, card in visit.records["cards"].items()
        if words and all(word in _text(visit.records, card) for word in words)
    ]
    count = max(1, -(-len(rows) // A_PAGE))
    number = visit.number("page", 1, 1, count)
    shown = rows[(number - 1) * A_PAGE : number * A_PAGE]
    return Page.of(
        "search.html",
        heading=visit.t("Search"),
        rows=shown,
        total=len(rows),
        number=number,
        count=count,
        asked=visit.query.get("q", ""),
    )


def _text(records: data.Records, card: data.Card) -> str:
    return f"{tag(records, card)} {card['title']} {card['text']}".casefold()


# -- one project -------------------------------------------------------------------------------------------------------
def _asked(visit: Visit) -> dict[str, str]:
    """Read the filters of a board from the query."""
    return {
        "q": visit.query.get("q", ""),
        "who": visit.option("who", ("", "nobody", *visit.records["members"])),
        "label": visit.option("label", ("", *LABELS)),
        "priority": visit.option("priority", ("", *PRIORITIES)),
    }


def _fits(visit: Visit, card: data.Card, asked: dict[str, str]) -> bool:
    return (
        all(word in _text(visit.records, card) for word in asked["q"].casefold().split())
        and (not asked["who"] or card["assignee"] == (asked["who"] if asked["who"] != "nobody" else ""))
        and (not asked["label"] or asked["label"] in card["labels"])
        and (not asked["priority"] or card["priority"] == asked["priority"])
    )


def _filters(visit: Visit) -> dict[str, list[tuple[str, str]]]:
    """Map the name of each filter to its options."""
    return {
        "who": people(visit, ("", visit.t("Anyone")), ("nobody", visit.t("Nobody"))),
        "label": [("", visit.t("Any label")), *((label, visit.t(label)) for label in LABELS)],
        "priority": [("", visit.t("Any priority")), *((one, visit.t(one)) for one in PRIORITIES)],
    }


@site.page("board/<key>")
def board(visit: Visit, key: str) -> Page | None:
    if (one := visit.records["projects"].get(key)) is None:
        return None
    asked = _asked(visit)
    lanes: dict[str, list[tuple[str, data.Card]]] = {column: [] for column in one["columns"]}
    for name, card in cards_of(visit.records, key).items():
        if _fits(visit, card, asked):
            lanes[card["column"]].append((name, card))
    first = next((column for column, cards in lanes.items() if cards), one["columns"][0])
    return project_page(
        visit,
        "board.html",
        key,
        lanes=lanes,
        shown=visit.option("column", (first, *one["columns"])),
        asked=asked,
        filters=_filters(visit),
        filtered=any(asked.values()),
        ask=visit.query.get("ask"),
    )


@site.page("list/<key>")
def table(visit: Visit, key: str) -> Page | None:
    """Show the cards of a project as a table: the open ones, the backlog (in no sprint), the done, or the archived."""
    if key not in visit.records["projects"]:
        return None
    show = visit.option("show", SHOWN)
    sort = visit.option("sort", ("number", *SORTS, *(f"-{name}" for name in SORTS)))
    words = visit.query.get("q", "")
    rows = [
        (name, card)
        for name, card in visit.records["cards"].items()
        if card["project"] == key
        and _is_shown(visit.records, card, show)
        and all(word in _text(visit.records, card) for word in words.casefold().split())
    ]
    rows.sort(key=lambda row: _rank(visit.records, row[1], sort.lstrip("-")), reverse=sort.startswith("-"))
    if sort == "-due":
        rows.sort(key=lambda row: not row[1]["due"])  # cards without a date come last in both orders
    count = max(1, -(-len(rows) // A_PAGE))
    number = visit.number("page", 1, 1, count)
    return project_page(
        visit,
        "list.html",
        key,
        rows=rows[(number - 1) * A_PAGE : number * A_PAGE],
        total=len(rows),
        number=number,
        count=count,
        sort=sort,
        show=show,
        asked=words,
    )


def _is_shown(records: data.Records, card: data.Card, show: str) -> bool:
    if card["archived"] or show == "archived":
        return card["archived"] and show == "archived"
    if show == "backlog":
        return not card["sprint"] and not is_done(records, card)
    return is_done(records, card) == (show == "done")


def _rank(records: data.Records, card: data.Card, name: str) -> Any:
    """Return what a card sorts by in the list's column `name`."""
    if name == "column":
        return records["projects"][card["project"]]["columns"].index(card["column"])
    if name == "assignee":
        return records["members"][card["assignee"]]["name"] if card["assignee"] else "~"
    ranks = {"number": card["_number"], "due": card["due"] or "9", "priority": PRIORITIES.index(card["priority"])}
    return ranks.get(name, card.get(name))


@site.page("report/<key>")
def report(visit: Visit, key: str) -> Page | None:
    records = visit.records
    if (one := records["projects"].get(key)) is None:
        return None
    cards = cards_of(records, key)
    columns = {column: [card for card in cards.values() if card["column"] == column] for column in one["columns"]}
    load = {name: list(data.open_cards(records, key, name).values()) for name in (*records["members"], "")}
    sprints = {
        sprint["name"]: sum(card["points"] for card in cards.values() if card["sprint"] == name)
        for name, sprint in records["sprints"].items()
        if sprint["project"] == key
    }
    late = [(name, card) for name, card in cards.items() if is_late(records, card)]
    late.sort(key=lambda item: item[1]["due"])
    return project_page(visit, "report.html", key, columns=columns, load=load, sprints=sprints, overdue=late)
