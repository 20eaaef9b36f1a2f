"""Generate the data of the file manager from a seed: folders, files, their shares and versions, the trash."""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import Any

from flywheel.envs.suites.files import texts

Records = dict[str, Any]
TODAY = "2026-01-01"
ROOT = "root"
ROOM = 2_000_000  # kB
RIGHTS = {"view": "May look", "edit": "May edit"}
_LARGE = {  # size in kB, lowest and highest
    "image": (300, 9_000),
    "table": (12, 700),
    "sound": (1_500, 14_000),
    "film": (30_000, 260_000),
    "pdf": (60, 6_000),
    "archive": (9_000, 320_000),
}


def make_records(rng: random.Random, language: str) -> Records:
    """Draw the records of a session. A node's parent is a node's key, ROOT, or "" for what others share."""
    people = {
        f"c{n}": {"name": name, "mail": f"{name.split()[0].lower()}@example.com"}
        for n, name in enumerate(texts.PEOPLE, 1)
    }
    records: Records = {
        "_people": people,
        "_facts": _facts(rng),
        "_taken": set(),
        "nodes": {},
        "settings": {"view": "list" if rng.random() < 0.75 else "grid"},
    }
    for title, (inner, files) in texts.FOLDERS.items():
        folder = _add(rng, records, title, ROOT, "folder")
        for name, more in inner.items():
            _fill(rng, records, more, _add(rng, records, name, folder, "folder"))
        _fill(rng, records, files, folder)
    for name in rng.sample(texts.TRASHED, 4):
        key = _add(rng, records, name, rng.choice(_folders(records)))
        records["nodes"][key]["trashed"] = True
    for name in rng.sample(texts.OTHERS, 4):
        key = _add(rng, records, name, "")
        records["nodes"][key] |= {"owner": rng.choice(list(people)), "shared": {"me": rng.choice(list(RIGHTS))}}
    _mark(rng, records)
    del records["_taken"]
    return records


def days_ago(count: int) -> str:
    return (date.fromisoformat(TODAY) - timedelta(days=count)).isoformat()


def kind_of(name: str) -> str:
    """Return the kind of a file by the ending of its name."""
    return texts.KINDS.get(name.rpartition(".")[2].lower(), ("text", ""))[0]


def node(name: str, parent: str, kind: str, text: str = "", day: str = TODAY) -> dict[str, Any]:
    """Return the record of a folder or file of the user's own."""
    made = {
        "name": name,
        "parent": parent,
        "kind": kind,
        "day": day,
        "owner": "me",
        "starred": False,
        "link": False,
        "shared": {},
        "trashed": False,
    }
    return made | ({"text": text, "versions": []} if kind == "text" else {})


def _facts(rng: random.Random) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "name": rng.choice(texts.PEOPLE),
            "price": rng.randint(110, 890),
            "day": rng.randint(3, 29),
            "code": rng.randint(1000, 9999),
            "year": rng.randint(2027, 2034),
            "minutes": rng.randint(31, 90),
            "phone": f"555{rng.randint(100_000, 999_999)}",
            "hour": rng.randint(6, 11),
            "month": rng.choice(texts.MONTHS),
            "town": rng.choice(texts.TOWNS),
        }
        for name in texts.NOTES
    }


def _fill(rng: random.Random, records: Records, names: tuple[str, ...], parent: str) -> None:
    for name in names:
        _add(rng, records, name, parent)


def _add(rng: random.Random, records: Records, name: str, parent: str, kind: str = "") -> str:
    """Add a file or folder and return its key. All sizes differ as they are shown, so that the largest is unique."""
    kind = kind or kind_of(name)
    text = texts.NOTES.get(name, ("Nothing of importance.",))[0].format(**records["_facts"].get(name, {}))
    made = node(name, parent, kind, text, days_ago(rng.randint(3, 700)))
    if kind in _LARGE:
        size = rng.randint(*_LARGE[kind])
        while (shown := size if size < 1000 else round(size / 100) * 100) in records["_taken"]:
            size += 101
        records["_taken"].add(shown)
        made["_size"] = size
    elif kind == "text":
        made["versions"] = [
            {"text": f"{text}\n{more}", "day": days_ago(rng.randint(*span))}
            for more, span in (("Ask somebody.", (750, 1400)), ("To be checked.", (1500, 2000)))
        ][: rng.randint(0, 2)]
    key = f"f{len(records['nodes']) + 1}"
    records["nodes"][key] = made
    return key


def _folders(records: Records) -> list[str]:
    return [key for key, one in records["nodes"].items() if one["kind"] == "folder"]


def _mark(rng: random.Random, records: Records) -> None:
    nodes, people = records["nodes"], list(records["_people"])
    mine = [key for key, one in nodes.items() if one["owner"] == "me" and not one["trashed"]]
    files = [key for key in mine if nodes[key]["kind"] != "folder"]
    for key in rng.sample(files, 5):
        nodes[key]["starred"] = True
    for key in (*rng.sample(files, 6), *rng.sample(_folders(records), 2)):
        nodes[key]["shared"] = {one: rng.choice(list(RIGHTS)) for one in rng.sample(people, rng.randint(1, 3))}
    for key in rng.sample(files, 2):
        nodes[key]["link"] = True
