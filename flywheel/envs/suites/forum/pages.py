"""Serve the pages of the forum to read: boards, topics, tags, search. The package's other modules add to this site."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

from flywheel.envs.suites.forum import threads
from flywheel.envs.suites.forum.data import ME, REASONS, make_records
from flywheel.envs.suites.forum.texts import BOARDS
from flywheel.envs.suites.site import Page, Site, Visit

TOPICS_A_PAGE = 8
SORTS = {"active": "Active", "new": "Newest", "replies": "Most replies", "score": "Most votes"}
GROUPS = (("At home", ("kitchen", "garden", "house")), ("Free time", ("books", "photos", "music")))


def _menu(visit: Visit) -> list[tuple[str, str, str]]:
    waiting = len(threads.open_reports(visit.records))
    return [
        ("", visit.t("Boards"), ""),
        ("tags", visit.t("Tags"), ""),
        ("members", visit.t("Members"), ""),
        ("following", visit.t("Following"), ""),
        ("mine", visit.t("Mine"), ""),
        ("reports", visit.t("Reports"), str(waiting) if waiting else ""),
    ]


def _common(visit: Visit) -> dict[str, Any]:
    records = visit.records
    return {
        "accent": "#7a2e4d",
        "accent_soft": "#f7e6ed",
        "users": records["_users"],
        "me": ME,
        "records": records,
        "boards": BOARDS,
        "score": lambda key: threads.score(records, key),
        "shown": shown_day,
        "alerts_waiting": sum(one["unread"] for one in records["alerts"].values()),
        "reasons": REASONS,
        "letters_waiting": sum(1 for one in records["talks"].values() if one.get("_unread")),
    }


site = Site(Path(__file__).parent, make_records, menu=_menu, common=_common)


def shown_day(text: str) -> str:
    """Format a day: 2026-01-01 as 1 Jan 2026."""
    day = date.fromisoformat(text)
    return f"{day.day} {day:%b} {day.year}"


def sheet(visit: Visit, rows: list[Any], a_page: int) -> dict[str, Any]:
    """Return the rows of the page that the query asks for, and what the page bar needs."""
    count = max(1, -(-len(rows) // a_page))
    number = visit.number("page", 1, 1, count)
    return {"rows": rows[(number - 1) * a_page : number * a_page], "number": number, "count": count, "total": len(rows)}


def listed(visit: Visit, keys: Iterable[str], sort: str) -> list[dict[str, Any]]:
    """Return the rows of topics, sorted, highest first; equal ones stay in the order of `keys`."""
    replies, last = threads.counts(visit.records), threads.last_days(visit.records)
    rows = [
        {
            "key": key,
            "topic": visit.records["topics"][key],
            "replies": replies[key],
            "last": last[key],
            "score": threads.score(visit.records, key),
        }
        for key in keys
    ]
    order = {
        "active": lambda r: r["last"],
        "new": lambda r: r["topic"]["day"],
        "replies": lambda r: r["replies"],
        "score": lambda r: r["score"],
    }
    return sorted(rows, key=order[sort], reverse=True)


@site.page("")
def home(visit: Visit) -> Page:
    topics = visit.records["topics"]
    rows = listed(visit, topics, "active")
    latest = {board: next((row for row in rows if row["topic"]["board"] == board), None) for board in BOARDS}
    number = {board: sum(one["board"] == board for one in topics.values()) for board in BOARDS}
    return Page.of("home.html", groups=GROUPS, latest=latest, number=number, hot=listed(visit, topics, "score")[:5])


@site.page("board/<board>")
def board(visit: Visit, board: str) -> Page | None:
    if board not in BOARDS:
        return None
    sort = visit.option("sort", tuple(SORTS))
    topics = visit.records["topics"]
    rows = listed(visit, [key for key, one in topics.items() if one["board"] == board], sort)
    rows.sort(key=lambda row: not row["topic"]["pinned"])
    return Page.of(
        "board.html",
        heading=visit.t(BOARDS[board][0]),
        board=board,
        sort=sort,
        sorts=_named(visit, SORTS),
        **sheet(visit, rows, TOPICS_A_PAGE),
    )


@site.page("topic/<key>")
def topic(visit: Visit, key: str) -> Page | None:
    if (one := visit.records["topics"].get(key)) is None:
        return None
    return Page.of(
        "topic.html",
        heading=one["title"],
        key=key,
        topic=one,
        moderator=threads.moderates(visit.records, key),
        ask=visit.query.get("ask", ""),
        posts=visit.records["posts"],
        current=f"board/{one['board']}",
        boards_named=[(name, visit.t(facts[0])) for name, facts in BOARDS.items()],
        **sheet(visit, threads.replies(visit.records, key), threads.POSTS_A_PAGE),
    )


@site.page("tags")
def tags(visit: Visit) -> Page:
    number: dict[str, int] = {}
    for one in visit.records["topics"].values():
        for tag in one["tags"]:
            number[tag] = number.get(tag, 0) + 1
    return Page.of("tags.html", heading=visit.t("Tags"), tags=sorted(number.items()))


@site.page("tag/<tag>")
def tag(visit: Visit, tag: str) -> Page | None:
    keys = [key for key, one in visit.records["topics"].items() if tag in one["tags"]]
    if not keys:
        return None
    sort = visit.option("sort", tuple(SORTS))
    return Page.of(
        "tag.html",
        heading=f"#{tag}",
        sort=sort,
        sorts=_named(visit, SORTS),
        current="tags",
        **sheet(visit, listed(visit, keys, sort), TOPICS_A_PAGE),
    )


@site.page("search")
def search(visit: Visit) -> Page:
    """Show the topics with every word in the title or, unless `part` is titles, in their texts; titles first."""
    asked = {
        "q": visit.query.get("q", ""),
        "board": visit.option("board", ("", *BOARDS)),
        "part": visit.option("part", ("all", "titles")),
        "sort": visit.option("sort", tuple(SORTS)),
    }
    words = asked["q"].casefold().split()
    written = {key: [one["title"]] for key, one in visit.records["topics"].items()}
    if asked["part"] == "all":
        for key, one in visit.records["topics"].items():
            written[key] += [one["text"], *one["tags"]]
        for one in visit.records["posts"].values():
            written[one["topic"]].append(one["text"])

    def hits(texts: list[str]) -> bool:
        text = " ".join(texts).casefold()
        return all(word in text for word in words)

    topics = visit.records["topics"]
    keys = [key for key in topics if asked["board"] in ("", topics[key]["board"]) and words and hits(written[key])]
    rows = listed(visit, keys, asked["sort"])
    rows.sort(key=lambda row: not hits([row["topic"]["title"]]))
    boards = [("", visit.t("All boards")), *((board, visit.t(facts[0])) for board, facts in BOARDS.items())]
    parts = [("all", visit.t("Everything")), ("titles", visit.t("Titles alone"))]
    return Page.of(
        "search.html",
        heading=visit.t("Search"),
        asked=asked,
        board_options=boards,
        parts=parts,
        sorts=_named(visit, SORTS),
        **sheet(visit, rows, TOPICS_A_PAGE),
    )


@site.page("rules")
def rules(visit: Visit) -> Page:
    return Page.of("rules.html", heading=visit.t("Rules of the house"))


def _named(visit: Visit, options: dict[str, str]) -> list[tuple[str, str]]:
    return [(key, visit.t(text)) for key, text in options.items()]
