"""Define the file manager's task templates that make, rename, move, copy, star and trash."""

from __future__ import annotations

from flywheel.envs.suites.files import draws, nav, tree
from flywheel.envs.suites.files.data import ROOT, Records
from flywheel.envs.suites.screen import Move, Screen
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw, SiteTask


# -- making and naming -----------------------------------------------------------------------------------------------
def _draw_new(d: Draw) -> Params:
    return {**draws.draw_folder(d, draws.top), "new": d.rng.choice(draws.NAMES)}


def _new(records: Records, p: Params) -> None:
    tree.make(records, p["new"], p["folder"], "folder")


def _steps_new(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"folder/{p['folder']}" and screen.query.get("ask") == "folder":
        return screen.fill({"name": p["new"]}, "make", {"name": ("I type the name.",), "make": ("I make it.",)})
    if (move := nav.open_folder(screen, p["folder"])) is not None:
        return move
    return screen.click("new folder" if screen.has("new folder") else "new", "I make a new folder.", "I click new.")


def _renamed(d: Draw, name: str) -> str:
    """Draw a new name with the same ending."""
    dot, ending = name.rpartition(".")[1:]
    return f"{d.rng.choice(draws.NAMES).lower()} {d.rng.randint(2, 99)}{dot}{ending}"


def _draw_rename(d: Draw) -> Params:
    drawn = draws.draw_file(d)
    return {**drawn, "new": _renamed(d, drawn["name"])}


def _rename(records: Records, p: Params) -> None:
    records["nodes"][p["key"]]["name"] = p["new"]


def _steps_rename(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"item/{p['key']}" and screen.query.get("ask") == "rename":
        return screen.fill({"name": p["new"]}, "confirm", {"name": ("I type the new name.",)})
    return nav.click_item_action(screen, p["key"], "rename", "I want another name.", "I click it.")


def _draw_rename_folder(d: Draw) -> Params:
    drawn = draws.draw_folder(d, draws.inner)
    return {"key": drawn["folder"], "name": drawn["title"], "new": d.rng.choice(draws.NAMES)}


def _draw_starring(starred: bool):
    return lambda d: draws.draw_file(d, lambda one: one["starred"] == starred)


def _star(records: Records, p: Params) -> None:
    records["nodes"][p["key"]]["starred"] = not records["nodes"][p["key"]]["starred"]


def _steps_star(screen: Screen, p: Params) -> Move | None:
    return nav.open_item(screen, p["key"]) or screen.click("star", "I click the star.")


def _steps_unstar(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"item/{p['key']}":
        return screen.click("star", "I click the star.", "I take the star away.")
    return nav.open_files_page(screen, "starred") or screen.click(f"more {p['key']}", "I open it.", "Here it is.")


# -- the trash -------------------------------------------------------------------------------------------------------
def _trash(records: Records, p: Params) -> None:
    for key in p.get("keys", [p.get("key")]):
        records["nodes"][key]["trashed"] = True


def _steps_trash(screen: Screen, p: Params) -> Move | None:
    return nav.click_item_action(screen, p["key"], "trash", "I delete it.", "I throw it away.")


def _draw_trashed(d: Draw) -> Params:
    """Draw a file in the trash that can go back to where it was."""
    key, one = d.pick("nodes", lambda one: one["trashed"])
    if not tree.alive(d.records, one["parent"]) or tree.taken(d.records, one["parent"], one["name"], key):
        raise Redraw
    return {"key": key, "name": one["name"]}


def _restore(records: Records, p: Params) -> None:
    tree.bring_back(records, p["key"])


def _steps_restore(screen: Screen, p: Params) -> Move | None:
    return nav.open_files_page(screen, "trash") or screen.click(
        f"restore {p['key']}", "I bring it back.", "I click restore."
    )


def _purge(records: Records, p: Params) -> None:
    tree.purge(records, p["key"])


def _confirmed(screen: Screen, button: str, *said: str) -> Move:
    if screen.has("confirm"):
        return screen.click("confirm", "Yes, I am sure.", "I confirm.")
    return screen.click(button, *said)


def _steps_purge(screen: Screen, p: Params) -> Move | None:
    return nav.open_files_page(screen, "trash") or _confirmed(
        screen, f"purge {p['key']}", "I delete it.", "Away with it."
    )


def _steps_empty(screen: Screen, p: Params) -> Move | None:
    return nav.open_files_page(screen, "trash") or _confirmed(screen, "empty", "I empty the trash.")


def _draw_largest(d: Draw) -> Params:
    files = [key for key, one in d.records["nodes"].items() if one["kind"] != "folder" and one["owner"] == "me"]
    return {"key": draws.largest(d.records, [key for key in files if tree.alive(d.records, key)])}


def _steps_largest(screen: Screen, p: Params) -> Move | None:
    if screen.page == f"item/{p['key']}":
        return _steps_trash(screen, p)
    if screen.page == "storage":
        return screen.click(f"more {p['key']}", "The first one is the largest.")
    return screen.click("storage" if screen.has("storage") else "foot storage", "I look at the storage.")


# -- moving and copying ----------------------------------------------------------------------------------------------
def _draw_move(d: Draw) -> Params:
    drawn, target = draws.draw_file(d), draws.draw_folder(d)
    if d.records["nodes"][drawn["key"]]["parent"] == target["folder"]:
        raise Redraw
    return {**drawn, **target}


def _move(records: Records, p: Params) -> None:
    for key in p.get("keys", [p.get("key")]):
        records["nodes"][key]["parent"] = p["folder"]


def _steps_move(screen: Screen, p: Params) -> Move | None:
    return nav.choose_target_folder(screen, p["folder"]) or nav.click_item_action(
        screen, p["key"], "move", "I move it.", "It shall move."
    )


def _copy(records: Records, p: Params) -> None:
    tree.copy_to(records, p["key"], p["folder"])


def _steps_copy(screen: Screen, p: Params) -> Move | None:
    return nav.choose_target_folder(screen, p["folder"]) or nav.click_item_action(
        screen, p["key"], "copy", "I copy it.", "I need a copy."
    )


def _draw_copy_as(d: Draw) -> Params:
    drawn = _draw_move(d)
    return {**drawn, "new": _renamed(d, drawn["name"])}


def _copy_as(records: Records, p: Params) -> None:
    records["nodes"][tree.copy_to(records, p["key"], p["folder"])]["name"] = p["new"]


def _steps_copy_as(screen: Screen, p: Params) -> Move | None:
    """Copy the file, then rename the copy: the file of this name in the target folder."""
    inside = tree.children(screen.records, p["folder"])
    made = next((key for key, one in inside if one["name"] == p["name"]), None)
    if made is None:
        return _steps_copy(screen, p)
    if screen.page.startswith("item/") and screen.page != f"item/{made}":
        return nav.open_files_page(screen, "")
    if screen.page == f"item/{made}":
        return _steps_rename(screen, {"key": made, "new": p["new"]})
    move = nav.open_folder(screen, p["folder"])
    return move or nav.click_row_element(screen, made, "more", "I open the copy.", "Here is the copy.")


def _draw_selection(d: Draw, count: int) -> Params:
    """Draw `count` files of a folder that is shown on one page."""
    source = draws.draw_folder(d, lambda one: True)
    keys = draws.files_in(d.records, source["folder"])
    if len(keys) <= count or not nav.fits_one_page(d.records, source["folder"]):
        raise Redraw
    chosen = d.rng.sample(keys, count)
    names = [f"“{d.records['nodes'][key]['name']}”" for key in chosen]
    return {
        "keys": chosen,
        "source": source["folder"],
        "title": source["title"],
        "names": f"{', '.join(names[:-1])} and {names[-1]}",
    }


def _draw_move_several(d: Draw) -> Params:
    drawn, target = _draw_selection(d, 2 if d.level < 5 else 3), draws.draw_folder(d)
    if target["folder"] == drawn["source"]:
        raise Redraw
    return {**drawn, "folder": target["folder"], "target": target["title"]}


def _steps_move_several(screen: Screen, p: Params) -> Move | None:
    if (move := nav.choose_target_folder(screen, p["folder"]) or nav.open_folder(screen, p["source"])) is not None:
        return move
    return nav.tick_files(screen, p["keys"], "bar move", "I move them.", "They shall move.")


def _steps_trash_several(screen: Screen, p: Params) -> Move | None:
    move = nav.open_folder(screen, p["source"])
    return move or nav.tick_files(screen, p["keys"], "bar trash", "I delete them.", "Away with them.")


def _draw_pictures(d: Draw) -> Params:
    """Draw a folder with two to four files of a kind, and others."""
    source = draws.draw_folder(d)
    keys = draws.files_in(d.records, source["folder"])
    kind = d.rng.choice(sorted({d.records["nodes"][key]["kind"] for key in keys}) or ["text"])
    mine = [key for key in keys if d.records["nodes"][key]["kind"] == kind]
    if not 2 <= len(mine) <= 4 or len(mine) == len(keys) or not nav.fits_one_page(d.records, source["folder"]):
        raise Redraw
    ending = d.records["nodes"][mine[0]]["name"].rpartition(".")[2]
    return {"keys": mine, "source": source["folder"], "title": source["title"], "ending": f".{ending}"}


def _draw_tidy(d: Draw) -> Params:
    return {**_draw_selection(d, 2), "new": d.rng.choice(draws.NAMES)}


def _tidy(records: Records, p: Params) -> None:
    _move(records, {"keys": p["keys"], "folder": tree.make(records, p["new"], p["source"], "folder")})


def _steps_tidy(screen: Screen, p: Params) -> Move | None:
    inside = tree.children(screen.records, p["source"])
    made = next((key for key, one in inside if one["name"] == p["new"]), None)
    if made is None:
        return _steps_new(screen, {"folder": p["source"], "new": p["new"]})
    return _steps_move_several(screen, {**p, "folder": made})


def _draw_to_top(d: Draw) -> Params:
    return {**draws.draw_file(d, draws.inner), "folder": ROOT}


TASKS = (
    SiteTask("new_folder", "Make a folder “{new}” in the folder {title}.", {2: 12}, _draw_new, _steps_new, _new),
    SiteTask("rename", "Rename the file “{name}” to “{new}”.", {3: 14}, _draw_rename, _steps_rename, _rename),
    SiteTask(
        "rename_folder", "Rename the folder {name} to “{new}”.", {3: 14}, _draw_rename_folder, _steps_rename, _rename
    ),
    SiteTask("star", "Star the file “{name}”.", {2: 7}, _draw_starring(False), _steps_star, _star),
    SiteTask("unstar", "Take the star off the file “{name}”.", {2: 6}, _draw_starring(True), _steps_unstar, _star),
    SiteTask("delete", "Move the file “{name}” to the trash.", {2: 8}, draws.draw_file, _steps_trash, _trash),
    SiteTask(
        "restore", "Bring the file “{name}” back from the trash.", {1: 5}, _draw_trashed, _steps_restore, _restore
    ),
    SiteTask(
        "purge",
        "Delete the file “{name}” for good, which is in the trash.",
        {2: 6},
        _draw_trashed,
        _steps_purge,
        _purge,
    ),
    SiteTask(
        "empty_trash",
        "Empty the trash.",
        {2: 6},
        lambda d: {},
        _steps_empty,
        lambda records, p: tree.empty_trash(records),
    ),
    SiteTask(
        "delete_largest",
        "Move the largest of all your files to the trash.",
        {4: 10},
        _draw_largest,
        _steps_largest,
        _trash,
    ),
    SiteTask("move", "Move the file “{name}” to the folder {title}.", {3: 14}, _draw_move, _steps_move, _move),
    SiteTask(
        "move_up",
        "Move the file “{name}” out of its folder, to the top of My files.",
        {3: 12},
        _draw_to_top,
        _steps_move,
        _move,
    ),
    SiteTask(
        "copy", "Make a copy of the file “{name}” in the folder {title}.", {3: 14}, _draw_move, _steps_copy, _copy
    ),
    SiteTask(
        "copy_as",
        "Make a copy of the file “{name}” in the folder {title}, and name the copy “{new}”.",
        {5: 26},
        _draw_copy_as,
        _steps_copy_as,
        _copy_as,
    ),
    SiteTask(
        "move_several",
        "Move {names} from the folder {title} to the folder {target}.",
        {4: 20, 5: 24},
        _draw_move_several,
        _steps_move_several,
        _move,
    ),
    SiteTask(
        "delete_several",
        "Move {names} in the folder {title} to the trash.",
        {3: 16},
        lambda d: _draw_selection(d, 3),
        _steps_trash_several,
        _trash,
    ),
    SiteTask(
        "delete_kind",
        "Move all files that end in {ending} in the folder {title} to the trash, without those in other folders.",
        {4: 15},
        _draw_pictures,
        _steps_trash_several,
        _trash,
    ),
    SiteTask(
        "tidy",
        "In the folder {title}, make a folder “{new}” and move {names} into it.",
        {5: 26},
        _draw_tidy,
        _steps_tidy,
        _tidy,
    ),
)
