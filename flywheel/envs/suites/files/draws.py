"""Draw what several task templates of the file manager need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flywheel.envs.suites.files import texts, tree
from flywheel.envs.suites.files.data import ROOT, Records
from flywheel.envs.suites.site_tasks import Draw, Params, Redraw

NAMES = ("Plans", "Old things", "For Emil", "Summer", "Drafts", "To print", "Garden", "Spare parts", "Birthday")
LINES = (
    "Call the plumber on Friday.",
    "The key is under the mat.",
    "Bring cake and two chairs.",
    "All done, nothing left.",
    "Ask Dora for the other half.",
    "Paid in cash.",
    "Moved to next week.",
)
Fits = Callable[[dict[str, Any]], Any]


def usable(records: Records, key: str, one: dict[str, Any]) -> bool:
    """Tell whether a node is the user's own, not in the trash, and the only one of its name."""
    same = [other for other in records["nodes"].values() if other["name"].casefold() == one["name"].casefold()]
    return one["owner"] == "me" and len(same) == 1 and tree.alive(records, key)


def draw_file(d: Draw, fits: Fits = lambda one: True) -> Params:
    """Draw a usable file that `fits`."""
    found = [
        key
        for key, one in d.records["nodes"].items()
        if one["kind"] != "folder" and usable(d.records, key, one) and fits(one)
    ]
    if not found:
        raise Redraw
    key = d.rng.choice(found)
    return {"key": key, "name": d.records["nodes"][key]["name"]}


def draw_folder(d: Draw, fits: Fits = lambda one: True) -> Params:
    """Draw a usable folder that `fits`."""
    found = [
        key
        for key, one in d.records["nodes"].items()
        if one["kind"] == "folder" and usable(d.records, key, one) and fits(one)
    ]
    if not found:
        raise Redraw
    key = d.rng.choice(found)
    return {"folder": key, "title": d.records["nodes"][key]["name"]}


def top(one: dict[str, Any]) -> bool:
    return one["parent"] == ROOT


def inner(one: dict[str, Any]) -> bool:
    return one["parent"] != ROOT


def files_in(records: Records, folder: str) -> list[str]:
    return [key for key, one in tree.children(records, folder) if one["kind"] != "folder"]


def largest(records: Records, keys: list[str]) -> str:
    """Return the key of the largest file. Raises Redraw where there is none, or the next one is within two per cent."""
    ranked = sorted(keys, key=lambda key: tree.size(records, key))
    if not ranked or (len(ranked) > 1 and tree.size(records, ranked[-2]) * 1.02 >= tree.size(records, ranked[-1])):
        raise Redraw
    return ranked[-1]


def draw_person(d: Draw, but: Any = ()) -> Params:
    who, person = d.pick("_people")
    if who in but:
        raise Redraw
    return {"who": who, "person": person["name"], "mail": person["mail"]}


def question(name: str) -> tuple[str, str]:
    """Return the question about a note, and the name of the fact that answers it; "" each where there is none."""
    return texts.NOTES.get(name, ("", "", ""))[1:]
