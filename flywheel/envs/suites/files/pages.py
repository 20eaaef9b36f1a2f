"""Serve the pages of the file manager: folders, lists, search, a file. The package's other modules add to this site."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

from flywheel.envs.suites.files import texts, tree
from flywheel.envs.suites.files.data import RIGHTS, ROOM, ROOT, make_records
from flywheel.envs.suites.site import Page, Site, Visit

A_PAGE = 10
SORTS = ("name", "-name", "size", "-size", "day", "-day")
KINDS = {"folder": "Folder", **{kind: title for kind, title in texts.KINDS.values()}}


def _menu(visit: Visit) -> list[tuple[str, str, str]]:
    return [
        ("", visit.t("My files"), ""),
        ("recent", visit.t("Recent"), ""),
        ("starred", visit.t("Starred"), ""),
        ("shared", visit.t("Shared"), ""),
        ("trash", visit.t("Trash"), ""),
    ]


def _common(visit: Visit) -> dict[str, Any]:
    records = visit.records
    used = tree.used(records)
    return {
        "accent": "#0b6b63",
        "accent_soft": "#dff2ef",
        "people": records["_people"],
        "nodes": records["nodes"],
        "size": lambda key: shown_size(tree.size(records, key)),
        "shown": shown_day,
        "rights": RIGHTS,
        "kinds": KINDS,
        "used": shown_size(used),
        "room": shown_size(ROOM),
        "share": used / ROOM,
        "root": ROOT,
        "folders": _tree(visit),
        "view": records["settings"]["view"],
        "where": lambda key: where(visit, key),
        "address": home_of,
    }


site = Site(Path(__file__).parent, make_records, menu=_menu, common=_common)


def shown_size(size: int) -> str:
    """Format a size in kB: as kB below 1,000, then as MB with one decimal, from 1,000,000 on as GB with two."""
    if size < 1_000_000:
        return f"{size} kB" if size < 1000 else f"{size / 1000:.1f} MB"
    return f"{size / 1_000_000:.2f} GB"


def shown_day(text: str) -> str:
    """Format a day: 2026-01-01 as 1 Jan 2026."""
    day = date.fromisoformat(text)
    return f"{day.day} {day:%b} {day.year}"


def home_of(folder: str) -> str:
    """Return the path of a folder's page."""
    return "" if folder == ROOT else "shared" if folder == "" else f"folder/{folder}"


def where(visit: Visit, key: str) -> str:
    """Return the name of the folder that a file or folder lies in."""
    parent = visit.records["nodes"][key]["parent"]
    if parent in (ROOT, ""):
        return visit.t("Shared") if parent == "" else visit.t("My files")
    return visit.records["nodes"][parent]["name"] if parent in visit.records["nodes"] else visit.t("My files")


def trail(visit: Visit, key: str, last: bool = True) -> list[tuple[str, str]]:
    """Return the breadcrumbs down to `key`, (path, name) each; without itself where `last` is False."""
    nodes, keys = visit.records["nodes"], tree.path(visit.records, key)
    top = ("shared", visit.t("Shared")) if keys and nodes[keys[0]]["parent"] == "" else ("", visit.t("My files"))
    return [top, *((f"folder/{one}", nodes[one]["name"]) for one in (keys if last else keys[:-1]))]


def _tree(visit: Visit) -> list[tuple[str, str, int]]:
    """List the folders beside the page, (key, name, depth) each: those at the top, and those in the open ones."""
    first, _, key = visit.path.partition("/")
    here = set(tree.path(visit.records, key)) if first in ("folder", "item", "place") else set()
    rows: list[tuple[str, str, int]] = []

    def grow(folder: str, depth: int) -> None:
        for inner, one in sorted(tree.children(visit.records, folder), key=lambda pair: pair[1]["name"]):
            if one["kind"] == "folder":
                rows.append((inner, one["name"], depth))
                if inner in here:
                    grow(inner, depth + 1)

    grow(ROOT, 0)
    return rows


def ordered(visit: Visit, rows: list[tuple[str, tree.Node]], sort: str) -> list[tuple[str, tree.Node]]:
    """Sort rows: folders first, then by `sort`."""
    measure = {
        "name": lambda row: row[1]["name"].casefold(),
        "size": lambda row: tree.size(visit.records, row[0]),
        "day": lambda row: row[1]["day"],
    }[sort.lstrip("-")]
    rows = sorted(rows, key=measure, reverse=sort.startswith("-"))
    return sorted(rows, key=lambda row: row[1]["kind"] != "folder")


def sheet(visit: Visit, rows: list[Any], a_page: int = A_PAGE) -> dict[str, Any]:
    """Return the rows of the page that the query asks for, and what the page bar needs."""
    count = max(1, -(-len(rows) // a_page))
    number = visit.number("page", 1, 1, count)
    return {"rows": rows[(number - 1) * a_page : number * a_page], "number": number, "count": count, "total": len(rows)}


# -- folders and lists -----------------------------------------------------------------------------------------------
@site.page("")
def home(visit: Visit) -> Page:
    return _folder(visit, ROOT, visit.t("My files"))


@site.page("folder/<key>")
def folder(visit: Visit, key: str) -> Page | None:
    if not tree.alive(visit.records, key) or visit.records["nodes"][key]["kind"] != "folder":
        return None
    return _folder(visit, key, visit.records["nodes"][key]["name"])


def _folder(visit: Visit, key: str, title: str) -> Page:
    sort = visit.option("sort", SORTS)
    rows = ordered(visit, tree.children(visit.records, key), sort)
    return Page.of(
        "folder.html",
        heading=title,
        key=key,
        sort=sort,
        ask=visit.query.get("ask", ""),
        current="",
        trail=trail(visit, key),
        **sheet(visit, rows),
    )


@site.page("recent")
def recent(visit: Visit) -> Page:
    return _list(visit, "Recent", lambda one: one["kind"] != "folder" and one["owner"] == "me", "-day")


@site.page("starred")
def starred(visit: Visit) -> Page:
    return _list(visit, "Starred", lambda one: one["starred"], "name")


def _list(visit: Visit, title: str, fits: Any, sort: str) -> Page:
    rows = [(key, one) for key, one in visit.records["nodes"].items() if fits(one) and tree.alive(visit.records, key)]
    return Page.of("list.html", heading=visit.t(title), **sheet(visit, ordered(visit, rows, sort)))


@site.page("shared")
def shared(visit: Visit) -> Page:
    tab = visit.option("tab", ("with", "by"))
    rows = [
        (key, one)
        for key, one in visit.records["nodes"].items()
        if tree.alive(visit.records, key)
        and ((one["owner"] != "me") if tab == "with" else (one["owner"] == "me" and (one["shared"] or one["link"])))
    ]
    return Page.of("shared.html", heading=visit.t("Shared"), tab=tab, **sheet(visit, ordered(visit, rows, "name")))


@site.page("trash")
def trash(visit: Visit) -> Page:
    rows = [(key, one) for key, one in visit.records["nodes"].items() if one["trashed"]]
    return Page.of(
        "trash.html",
        heading=visit.t("Trash"),
        ask=visit.query.get("ask", ""),
        **sheet(visit, ordered(visit, rows, "name")),
    )


@site.page("storage")
def storage(visit: Visit) -> Page:
    """Show the user's files, the largest first, and the size of each kind."""
    nodes = visit.records["nodes"]
    files = [(key, one) for key, one in nodes.items() if one["kind"] != "folder" and one["owner"] == "me"]
    kinds: dict[str, int] = {}
    for key, one in files:
        kinds[one["kind"]] = kinds.get(one["kind"], 0) + tree.size(visit.records, key)
    rows = [row for row in ordered(visit, files, "-size") if tree.alive(visit.records, row[0])]
    by_kind = [(kind, shown_size(size), size / ROOM) for kind, size in sorted(kinds.items(), key=lambda one: -one[1])]
    return Page.of("storage.html", heading=visit.t("Storage"), by_kind=by_kind, **sheet(visit, rows))


@site.page("search")
def search(visit: Visit) -> Page:
    """Show everything with all the words in its name or, of texts, in the content; narrowed to a kind."""
    asked = {
        "q": visit.query.get("q", ""),
        "kind": visit.option("kind", ("", *KINDS)),
        "sort": visit.option("sort", SORTS),
    }
    words = asked["q"].casefold().split()

    def holds(text: str) -> bool:
        return all(word in text.casefold() for word in words)

    rows = [
        (key, one)
        for key, one in visit.records["nodes"].items()
        if (words or asked["kind"])
        and asked["kind"] in ("", one["kind"])
        and holds(f"{one['name']} {one.get('text', '')}")
        and tree.alive(visit.records, key)
    ]
    rows = sorted(ordered(visit, rows, asked["sort"]), key=lambda row: not holds(row[1]["name"]))
    options = [("", visit.t("Anything")), *((kind, visit.t(title)) for kind, title in KINDS.items())]
    return Page.of("search.html", heading=visit.t("Search"), asked=asked, options=options, **sheet(visit, rows))


# -- one thing -------------------------------------------------------------------------------------------------------
@site.page("item/<key>")
def item(visit: Visit, key: str) -> Page | None:
    if (one := visit.records["nodes"].get(key)) is None:
        return None
    tabs = ["about"] + (["sharing"] if one["owner"] == "me" else []) + (["versions"] if "text" in one else [])
    return Page.of(
        "item.html",
        heading=one["name"],
        key=key,
        item=one,
        tab=visit.option("tab", tabs),
        tab_names=tabs,
        ask=visit.query.get("ask", ""),
        alive=tree.alive(visit.records, key),
        mine=one["owner"] == "me",
        editable="text" in one and may_edit(one),
        trail=trail(visit, key, last=False),
        current="",
        inside=len(tree.children(visit.records, key)),
        options=[(name, visit.t(text)) for name, text in RIGHTS.items()],
    )


def may_edit(one: tree.Node) -> bool:
    return one["owner"] == "me" or one["shared"].get("me") == "edit"


@site.page("item/<key>/edit")
def edit(visit: Visit, key: str) -> Page | None:
    one = visit.records["nodes"].get(key)
    if one is None or "text" not in one or not may_edit(one) or not tree.alive(visit.records, key):
        return None
    return Page.of("edit.html", heading=one["name"], key=key, item=one, trail=trail(visit, key, last=False), current="")
