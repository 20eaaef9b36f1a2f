"""Read and change the tree of a session's folders and files."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from flywheel.envs.suites.files.data import ROOT, TODAY, Records, node

Node = dict[str, Any]


def alive(records: Records, key: str) -> bool:
    """Tell whether a node exists, and neither it nor a folder above it is in the trash."""
    one = records["nodes"].get(key)
    return one is not None and not one["trashed"] and (one["parent"] in (ROOT, "") or alive(records, one["parent"]))


def children(records: Records, folder: str) -> list[tuple[str, Node]]:
    """List what lies in a folder, (key, node) each, without what is in the trash."""
    return [(key, one) for key, one in records["nodes"].items() if one["parent"] == folder and not one["trashed"]]


def below(records: Records, key: str) -> Iterator[str]:
    """Yield the keys of a node and of everything in it, the trash included."""
    yield key
    for inner, one in list(records["nodes"].items()):
        if one["parent"] == key:
            yield from below(records, inner)


def path(records: Records, key: str) -> list[str]:
    """Return the keys of the folders down to a node, and its own; ROOT is left out."""
    found: list[str] = []
    while key in records["nodes"]:
        found.insert(0, key)
        key = records["nodes"][key]["parent"]
    return found


def size(records: Records, key: str) -> int:
    """Return the size of a file in kB, or the sum of what is in a folder."""
    one = records["nodes"][key]
    if one["kind"] == "folder":
        return sum(size(records, inner) for inner, _ in children(records, key))
    return one.get("_size", 1 + len(one.get("text", "").encode()) // 1024)


def used(records: Records) -> int:
    """Return the size in kB of all files of the user's own, those in the trash too."""
    nodes = records["nodes"].items()
    return sum(size(records, key) for key, one in nodes if one["owner"] == "me" and one["kind"] != "folder")


def taken(records: Records, folder: str, name: str, but: str = "") -> bool:
    """Tell whether a folder holds something of this name, other than the key `but`."""
    return any(one["name"].casefold() == name.casefold() for key, one in children(records, folder) if key != but)


def fresh(records: Records) -> str:
    """Return the first free key: making, deleting for good and making again ends with the same records."""
    number = 1
    while f"f{number}" in records["nodes"]:
        number += 1
    return f"f{number}"


def make(records: Records, name: str, folder: str, kind: str, text: str = "") -> str:
    key = fresh(records)
    records["nodes"][key] = node(name, folder, kind, text)
    return key


def free_name(records: Records, folder: str, name: str) -> str:
    """Return a name that is free in a folder: `name`, or that with a number before its ending."""
    stem, dot, ending = name.rpartition(".") if "." in name else (name, "", "")
    tried, number = name, 2
    while taken(records, folder, tried):
        tried, number = f"{stem} ({number}){dot}{ending}", number + 1
    return tried


def copy_to(records: Records, key: str, folder: str) -> str:
    """Copy a node and all that is in it into a folder; return the key of the copy.

    Shares, links, stars and versions are not copied.
    """
    one, new = records["nodes"][key], fresh(records)
    records["nodes"][new] = copy.deepcopy(one) | {
        "name": free_name(records, folder, one["name"]),
        "parent": folder,
        "starred": False,
        "link": False,
        "shared": {},
        "owner": "me",
        "day": TODAY,
    }
    if "versions" in one:
        records["nodes"][new]["versions"] = []
    for inner, _ in children(records, key):
        copy_to(records, inner, new)
    return new


def write(records: Records, key: str, text: str) -> None:
    """Replace the text of a file; the old one becomes a version."""
    one = records["nodes"][key]
    if one["text"] != text:
        one["versions"].insert(0, {"text": one["text"], "day": one["day"]})
        one |= {"text": text, "day": TODAY}


def bring_back(records: Records, key: str) -> None:
    """Restore a node from the trash to its folder, or to the top where that is gone; rename it if its name is taken."""
    one = records["nodes"][key]
    one["trashed"] = False
    if one["parent"] != ROOT and not alive(records, one["parent"]):
        one["parent"] = ROOT
    one["name"] = free_name(
        records | {"nodes": {k: v for k, v in records["nodes"].items() if k != key}}, one["parent"], one["name"]
    )


def purge(records: Records, key: str) -> None:
    """Delete a node for good, with everything in it."""
    for gone in list(below(records, key)):
        del records["nodes"][gone]


def empty_trash(records: Records) -> None:
    for key in [key for key, one in records["nodes"].items() if one["trashed"]]:
        if key in records["nodes"]:
            purge(records, key)
