"""Define the file manager's task templates that only look things up: folders, orders, search, questions."""

from __future__ import annotations

from flywheel.envs.suites.files import draws, nav, texts, tree
from flywheel.envs.suites.files.data import RIGHTS, Records
from flywheel.envs.suites.files.pages import KINDS, shown_day, shown_size
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask

_WORDS = ("notes", "jpg", "budget", "song", "list", "project", "rain", "party", "day", "plan", "boots")
_PLACES = {"recent": "Recent", "starred": "Starred", "shared": "Shared", "trash": "Trash"}
_ORDERS = {"-size": "the largest first", "-day": "the last changed first", "day": "the oldest first"}


def _draw_place(d: Draw) -> Params:
    place = d.rng.choice(list(_PLACES))
    return {"place": place, "title": d.t(_PLACES[place])}


def _draw_view(d: Draw) -> Params:
    view = "grid" if d.records["settings"]["view"] == "list" else "list"
    return {"view": view}


def _view(records: Records, p: Params) -> None:
    records["settings"]["view"] = p["view"]


def _draw_order(d: Draw) -> Params:
    sort = d.rng.choice(list(_ORDERS))
    return {**draws.draw_folder(d), "sort": sort, "order": d.t(_ORDERS[sort])}


def _draw_kind(d: Draw) -> Params:
    kind = d.rng.choice(("image", "sound", "table", "archive", "film"))
    return {"word": d.rng.choice(("a", "e", "o")), "kind": kind, "title": d.t(KINDS[kind])}


def _steps_kind(screen: Screen, p: Params) -> Move | None:
    if screen.page != "search" or screen.query.get("q") != p["word"]:
        return screen.fill({"search": p["word"]}, "", {"search": ("I search for it.",)})
    return screen.fill({"kind": p["kind"]}, "narrow", {"kind": ("I choose the kind.", "I choose from the list.")})


# -- questions -------------------------------------------------------------------------------------------------------
def _draw_size(d: Draw) -> Params:
    drawn = draws.draw_file(d, lambda one: "_size" in one)
    size = shown_size(tree.size(d.records, drawn["key"]))
    return {**drawn, "unit": size.split()[1]}


def _size(records: Records, p: Params) -> float:
    return float(shown_size(tree.size(records, p["key"])).split()[0])


def _steps_size(screen: Screen, p: Params) -> Move | None:
    """Read the size in the results of a search."""
    if screen.page == "search" and screen.has(f"more {p['key']}"):
        size = shown_size(tree.size(screen.records, p["key"]))
        return screen.seen(f"more {p['key']}") or screen.answer(size)
    return nav.open_item(screen, p["key"])


def _where(records: Records, p: Params) -> str:
    return records["nodes"][records["nodes"][p["key"]]["parent"]]["name"]


def _steps_where(screen: Screen, p: Params) -> Move | None:
    if screen.page == "search" and screen.has(f"more {p['key']}"):
        return screen.seen(f"more {p['key']}") or screen.answer(_where(screen.records, p), "It says where it is.")
    return nav.open_item(screen, p["key"])


def _changed(records: Records, p: Params) -> str:
    return shown_day(records["nodes"][p["key"]]["day"])


def _steps_changed(screen: Screen, p: Params) -> Move | None:
    move = nav.open_item(screen, p["key"]) or screen.seen("fact changed")
    return move or screen.answer(_changed(screen.records, p))


def _draw_count(d: Draw) -> Params:
    kind = d.rng.choice(("image", "text", "pdf", "sound"))
    drawn = draws.draw_folder(d)
    if not any(d.records["nodes"][key]["kind"] == kind for key in draws.files_in(d.records, drawn["folder"])):
        raise Redraw
    endings = {kind: f".{ending}" for ending, (kind, _) in texts.KINDS.items()}
    return {**drawn, "kind": kind, "ending": endings[kind]}


def _count(records: Records, p: Params) -> int:
    keys = draws.files_in(records, p["folder"])
    return sum(records["nodes"][key]["kind"] == p["kind"] for key in keys)


def _steps_count(screen: Screen, p: Params) -> Move | None:
    """Go to the folder and scroll to its last row, so that all of it was seen."""
    if (move := nav.open_folder(screen, p["folder"])) is not None:
        return move
    last = screen.order("open ")[-1]
    if not screen.in_view(last):
        return screen.click(last)
    return screen.answer(str(_count(screen.records, p)), "I have counted them.")


def _draw_largest(d: Draw) -> Params:
    drawn = draws.draw_folder(d, draws.inner)
    keys = draws.files_in(d.records, drawn["folder"])
    if len(keys) < 3:
        raise Redraw
    return {**drawn, "key": draws.largest(d.records, keys)}


def _steps_largest(screen: Screen, p: Params) -> Move | None:
    name = screen.records["nodes"][p["key"]]["name"]
    move = nav.open_sorted_folder(screen, p["folder"], "-size") or screen.seen(f"open {p['key']}")
    return move or screen.answer(name, "The first one is the largest.")


def _draw_note(d: Draw) -> Params:
    drawn = draws.draw_file(d, lambda one: draws.question(one["name"])[0])
    asked, fact = draws.question(drawn["name"])
    return {**drawn, "question": asked, "fact": fact}


def _note(records: Records, p: Params) -> str | int:
    return records["_facts"][p["name"]][p["fact"]]


def _steps_note(screen: Screen, p: Params) -> Move | None:
    move = nav.open_item(screen, p["key"]) or screen.seen("text")
    return move or screen.answer(str(_note(screen.records, p)), "It is written here.")


def _draw_shares(d: Draw) -> Params:
    drawn = draws.draw_file(d, lambda one: one["shared"])
    right = d.rng.choice(list(RIGHTS))
    if right not in d.records["nodes"][drawn["key"]]["shared"].values():
        raise Redraw
    return {**drawn, "right": right, "may": "edit" if right == "edit" else "look at, but not edit,"}


def _shares(records: Records, p: Params) -> list[str]:
    people = records["nodes"][p["key"]]["shared"].items()
    return [records["_people"][who]["name"] for who, right in people if right == p["right"]]


def _steps_shares(screen: Screen, p: Params) -> Move | None:
    last = list(screen.records["nodes"][p["key"]]["shared"])[-1]
    move = nav.open_item(screen, p["key"], "sharing") or screen.seen(f"turn {last}")
    return move or screen.answer(" and ".join(_shares(screen.records, p)))


def _draw_used(d: Draw) -> Params:
    return {"unit": shown_size(tree.used(d.records)).split()[1]}


def _used(records: Records, p: Params) -> float:
    return float(shown_size(tree.used(records)).split()[0])


def _steps_used(screen: Screen, p: Params) -> Move | None:
    if screen.page == "storage":
        return screen.answer(shown_size(tree.used(screen.records)))
    return screen.click("storage" if screen.has("storage") else "foot storage", "I look at the storage.")


def _owner(records: Records, p: Params) -> list[str]:
    return [records["_people"][records["nodes"][p["key"]]["owner"]]["name"]]


def _draw_owner(d: Draw) -> Params:
    key, one = d.pick("nodes", lambda one: one["owner"] != "me")
    return {"key": key, "name": one["name"]}


def _steps_owner(screen: Screen, p: Params) -> Move | None:
    move = nav.open_item(screen, p["key"]) or screen.seen("fact owner")
    return move or screen.answer(_owner(screen.records, p)[0], "It says whose it is.")


TASKS = (
    SiteTask(
        "place",
        "Open the page “{title}”.",
        {1: 3},
        _draw_place,
        lambda s, p: nav.open_files_page(s, p["place"]),
        page=lambda p: (p["place"], {}),
    ),
    SiteTask(
        "folder",
        "Open the folder {title}.",
        {1: 5},
        lambda d: draws.draw_folder(d, draws.top),
        lambda s, p: nav.open_folder(s, p["folder"]),
        page=lambda p: (f"folder/{p['folder']}", {}),
    ),
    SiteTask(
        "inner_folder",
        "Find and open the folder {title}.",
        {2: 7},
        lambda d: draws.draw_folder(d, draws.inner),
        lambda s, p: nav.open_folder(s, p["folder"]),
        page=lambda p: (f"folder/{p['folder']}", {}),
    ),
    SiteTask(
        "view", "Show the files as a {view}.", {1: 4}, _draw_view, lambda s, p: s.click("view", "I click it."), _view
    ),
    SiteTask(
        "search",
        "Search the files for “{word}”.",
        {1: 4},
        lambda d: {"word": d.rng.choice(_WORDS)},
        lambda s, p: s.fill({"search": p["word"]}, ""),
        page=lambda p: ("search", {"q": p["word"]}),
    ),
    SiteTask(
        "file",
        "Open the file “{name}”.",
        {2: 6},
        draws.draw_file,
        lambda s, p: nav.open_item(s, p["key"]),
        page=lambda p: (f"item/{p['key']}", {}),
    ),
    SiteTask(
        "order",
        "Show the folder {title} with {order}.",
        {3: 9},
        _draw_order,
        lambda s, p: nav.open_sorted_folder(s, p["folder"], p["sort"]),
        page=lambda p: (f"folder/{p['folder']}", {"sort": p["sort"]}),
    ),
    SiteTask(
        "kind",
        "Search for “{word}” and show only what is of the kind “{title}”.",
        {3: 11},
        _draw_kind,
        _steps_kind,
        page=lambda p: ("search", {"q": p["word"], "kind": p["kind"]}),
    ),
    SiteTask(
        "size",
        "How large is the file “{name}”, in {unit}? Answer with the number.",
        {2: 6},
        _draw_size,
        _steps_size,
        answer=_size,
    ),
    SiteTask(
        "where",
        "In which folder is the file “{name}”? Answer with the name of the folder.",
        {2: 6},
        draws.draw_file,
        _steps_where,
        answer=_where,
    ),
    SiteTask(
        "changed",
        "When was the file “{name}” changed? Answer with the day as it is shown.",
        {2: 8},
        draws.draw_file,
        _steps_changed,
        answer=_changed,
    ),
    SiteTask(
        "count",
        "How many files that end in {ending} are in the folder {title}, without the folders in it? "
        "Answer with the number.",
        {3: 12},
        _draw_count,
        _steps_count,
        answer=_count,
    ),
    SiteTask(
        "largest",
        "Which file of the folder {title} is the largest? Answer with its name.",
        {4: 11},
        _draw_largest,
        _steps_largest,
        answer=lambda records, p: records["nodes"][p["key"]]["name"],
    ),
    SiteTask(
        "note",
        "{question} It is written in one of the text files. Answer with what it says.",
        {4: 8},
        _draw_note,
        _steps_note,
        answer=_note,
    ),
    SiteTask(
        "shares",
        "Who may {may} your file “{name}”? Answer with their names.",
        {3: 10},
        _draw_shares,
        _steps_shares,
        answer=_shares,
    ),
    SiteTask(
        "owner",
        "Who shares the file “{name}” with you? Answer with the name.",
        {2: 8},
        _draw_owner,
        _steps_owner,
        answer=_owner,
    ),
    SiteTask(
        "used",
        "How many {unit} of your storage are used? Answer with the number.",
        {1: 7},
        _draw_used,
        _steps_used,
        answer=_used,
    ),
)
