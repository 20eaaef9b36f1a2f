"""Serve the forms of the file manager: make, rename, move, copy, trash, share, write."""

from __future__ import annotations

from flywheel.envs.suites.files import tree
from flywheel.envs.suites.files.data import RIGHTS, ROOM, ROOT
from flywheel.envs.suites.files.pages import home_of, may_edit, site
from flywheel.envs.suites.forms import Field, Invalid, Wrong, one_of
from flywheel.envs.suites.site import Page, Visit

_MOST = 400  # files and folders at most


def _name(text: str) -> Wrong:
    if any(sign in text for sign in '/\\:*?"<>|') or not text.isprintable():
        return 'A name has none of / \\ : * ? " < > |'
    return "Choose another name." if text in (".", "..") else ""


_NAME = Field("name", longest=60, check=_name)


def _own(visit: Visit, key: str, trashed: bool = False) -> tree.Node | None:
    """Return a node of the user's own that is in the trash if `trashed`, else out of it; None where it is not so."""
    one = visit.records["nodes"].get(key)
    if one is None or one["owner"] != "me" or one["trashed"] != trashed:
        return None
    return one if trashed or tree.alive(visit.records, key) else None


def _is_folder(visit: Visit, key: str) -> bool:
    return key == ROOT or ((one := _own(visit, key)) is not None and one["kind"] == "folder")


@site.form("view/<what>")
def view(visit: Visit, what: str) -> str | None:
    if what not in ("list", "grid"):
        return None
    visit.records["settings"]["view"] = what
    folder = visit.form.get("folder", ROOT)
    return home_of(folder) if _is_folder(visit, folder) else ""


# -- making and naming -----------------------------------------------------------------------------------------------
@site.form("make/<folder>/<kind>")
def make(visit: Visit, folder: str, kind: str) -> str | None:
    if kind not in ("folder", "text") or not _is_folder(visit, folder):
        return None
    name = visit.read(_NAME)["name"]
    if tree.taken(visit.records, folder, name):
        raise Invalid(name="There is something of this name here already.")
    if len(visit.records["nodes"]) >= _MOST:
        raise Invalid(name="There is no room for more.")
    key = tree.make(visit.records, name, folder, kind)
    visit.notice("{name} is made.", name=name)
    return home_of(folder) if kind == "folder" else f"item/{key}/edit"


@site.form("item/<key>/rename")
def rename(visit: Visit, key: str) -> str | None:
    if (one := _own(visit, key)) is None:
        return None
    name = visit.read(_NAME)["name"]
    if tree.taken(visit.records, one["parent"], name, key):
        raise Invalid(name="There is something of this name here already.")
    one["name"] = name
    visit.notice("Its name is now {name}.", name=name)
    return f"item/{key}"


@site.form("item/<key>/write")
def write(visit: Visit, key: str) -> str | None:
    one = visit.records["nodes"].get(key)
    if one is None or "text" not in one or not may_edit(one) or not tree.alive(visit.records, key):
        return None
    tree.write(visit.records, key, visit.read(Field("text", required=False, longest=2000))["text"])
    visit.notice("Saved.")
    return f"item/{key}"


@site.form("item/<key>/versions/<number>")
def bring_version(visit: Visit, key: str, number: str) -> str | None:
    one = visit.records["nodes"].get(key)
    if one is None or "text" not in one or not may_edit(one) or not tree.alive(visit.records, key):
        return None
    if not number.isdecimal() or len(number) > 4 or int(number) >= len(one["versions"]):
        return None
    tree.write(visit.records, key, one["versions"][int(number)]["text"])
    visit.notice("The version is back.")
    return f"item/{key}"


@site.form("item/<key>/star")
def star(visit: Visit, key: str) -> str | None:
    if not tree.alive(visit.records, key):
        return None
    one = visit.records["nodes"][key]
    one["starred"] = not one["starred"]
    return "starred" if visit.form.get("back") == "starred" else f"item/{key}"


# -- moving and copying: choose what, then where ---------------------------------------------------------------------
@site.form("selection")
def selection(visit: Visit) -> str | None:
    """Act on what is ticked in a folder: trash, star, move or copy. The boxes are called "pick KEY"."""
    what = visit.form.get("what", "")
    picked = [name.removeprefix("pick ") for name in visit.form if name.startswith("pick ")]
    keys = [key for key in picked if _own(visit, key) is not None]
    folder = visit.form.get("folder", ROOT)
    back = home_of(folder) if _is_folder(visit, folder) else ""
    if not keys:
        visit.notice("Nothing is selected.")
        return back
    if what == "trash":
        for key in keys:
            visit.records["nodes"][key]["trashed"] = True
        visit.notice("In the trash: {n}", n=len(keys))
        return back
    if what == "star":
        for key in keys:
            visit.records["nodes"][key]["starred"] = True
        return back
    return _choose(visit, what, keys)


def _choose(visit: Visit, what: str, keys: list[str]) -> str | None:
    if what not in ("move", "copy"):
        return None
    visit.records["_clip"] = {"what": what, "keys": keys}
    return f"place/{visit.records['nodes'][keys[0]]['parent'] or ROOT}"


@site.form("item/<key>/<what>")
def pick(visit: Visit, key: str, what: str) -> str | None:
    """Act on one file or folder: move, copy, trash, restore, or delete for good."""
    one = _own(visit, key, trashed=what in ("restore", "purge"))
    if one is None:
        return None
    if what == "trash":
        one["trashed"] = True
        visit.notice("{name} is in the trash.", name=one["name"])
        return home_of(one["parent"])
    if what == "restore":
        tree.bring_back(visit.records, key)
        visit.notice("{name} is back.", name=one["name"])
        return "trash"
    if what == "purge":
        tree.purge(visit.records, key)
        visit.notice("{name} is deleted for good.", name=one["name"])
        return "trash"
    return _choose(visit, what, [key])


@site.form("empty-trash")
def empty_trash(visit: Visit) -> str:
    tree.empty_trash(visit.records)
    visit.notice("The trash is empty.")
    return "trash"


def _clip(visit: Visit) -> tuple[str, list[str]]:
    """Return what waits to be moved or copied: move or copy, and the keys that still exist."""
    clip = visit.records.get("_clip") or {"what": "", "keys": []}
    return clip["what"], [key for key in clip["keys"] if _own(visit, key) is not None]


@site.page("place/<folder>")
def place(visit: Visit, folder: str) -> Page | None:
    if not _is_folder(visit, folder):
        return None
    what, keys = _clip(visit)
    nodes = visit.records["nodes"]
    rows = [(key, one) for key, one in tree.children(visit.records, folder) if one["kind"] == "folder"]
    title = visit.t("Copy to") if what == "copy" else visit.t("Move to")
    steps = [(f"place/{ROOT}", visit.t("My files"))]
    steps += [(f"place/{one}", nodes[one]["name"]) for one in tree.path(visit.records, folder)]
    return Page.of(
        "place.html",
        heading=title,
        key=folder,
        what=what,
        keys=keys,
        steps=steps,
        rows=rows,
        current="",
        name=nodes[folder]["name"] if folder != ROOT else visit.t("My files"),
        back=home_of(nodes[keys[0]]["parent"]) if keys else "",
    )


@site.form("place/<folder>")
def put(visit: Visit, folder: str) -> str | None:
    what, keys = _clip(visit)
    if not keys or not _is_folder(visit, folder):
        return None
    records = visit.records
    if any(folder in tree.below(records, key) for key in keys):
        raise Invalid(place="A folder cannot go into itself.")
    if what == "copy":
        more = sum(tree.size(records, key) for key in keys)
        if tree.used(records) + more > ROOM or len(records["nodes"]) + len(keys) > _MOST:
            raise Invalid(place="There is not enough room for this copy.")
        for key in keys:
            tree.copy_to(records, key, folder)
    else:
        _move(visit, keys, folder)
    records["_clip"] = None
    visit.notice("Copied: {n}" if what == "copy" else "Moved: {n}", n=len(keys))
    return home_of(folder)


def _move(visit: Visit, keys: list[str], folder: str) -> None:
    nodes = visit.records["nodes"]
    for key in keys:
        if nodes[key]["parent"] == folder:
            raise Invalid(place=("{name} is here already.", {"name": nodes[key]["name"]}))
        if tree.taken(visit.records, folder, nodes[key]["name"], key):
            raise Invalid(place=("There is a {name} here already.", {"name": nodes[key]["name"]}))
        nodes[key]["parent"] = folder


# -- sharing ---------------------------------------------------------------------------------------------------------
@site.form("share/<key>/add")
def share(visit: Visit, key: str) -> str | None:
    if (one := _own(visit, key)) is None:
        return None
    read = visit.read(Field("who"), Field("right", check=one_of(RIGHTS)))
    wanted = read["who"].casefold()
    people = visit.records["_people"].items()
    found = [who for who, person in people if wanted in (person["name"].casefold(), person["mail"])]
    if not found:
        raise Invalid(who="Nobody you know has this name or address.")
    one["shared"][found[0]] = read["right"]
    visit.notice("Shared with {name}.", name=visit.records["_people"][found[0]]["name"])
    return f"item/{key}?tab=sharing"


@site.form("share/<key>/link")
def link(visit: Visit, key: str) -> str | None:
    if (one := _own(visit, key)) is None:
        return None
    one["link"] = not one["link"]
    return f"item/{key}?tab=sharing"


@site.form("share/<key>/<who>/<what>")
def reshare(visit: Visit, key: str, who: str, what: str) -> str | None:
    """Change what a person may do with a file, or stop sharing it with them."""
    one = _own(visit, key)
    if one is None or who not in one["shared"] or what not in ("turn", "remove"):
        return None
    if what == "remove":
        del one["shared"][who]
    else:
        one["shared"][who] = "edit" if one["shared"][who] == "view" else "view"
    return f"item/{key}?tab=sharing"
