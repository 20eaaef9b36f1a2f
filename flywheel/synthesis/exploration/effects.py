"""Find what an action changed on a page or its server, and write the reward that is 1 where that has come about."""

from __future__ import annotations

import difflib
import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flywheel.synthesis.exploration import folder_digest
from flywheel.synthesis.exploration.page_view import READING_PARTS, PageView, TextMasks, quote_script

_WHOLE_TEXT = 1500  # characters of a region up to which all of its text must be as it was
_MOVED_PX = 20  # a drag that moved something by less counts for nothing
MAX_REWARD = 9_000  # characters of a reward


@dataclass(frozen=True)
class Change:
    """Hold one change of a page, a server or a desktop.

    kind: address, control, text, storage, moved, database or file. where: which control, region, key, table or path.
    before, after: what it was and is, as text; "" where it was not or is no more.
    """

    kind: str
    where: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.kind} {self.where}: {_shorten(self.before)} -> {_shorten(self.after)}"


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= 100 else text[:97] + "...")


def find_new_text(change: Change) -> str:
    """Return the longest run of words that a change of text added; "" where it only took some away."""
    before, after = change.before.split(), change.after.split()
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes() if len(after) < 3000 else ()
    runs = [" ".join(after[low:high]) for kind, _, _, low, high in blocks if kind in ("insert", "replace")]
    return max(runs, key=len, default="")


def compare_views(start: PageView, entry: PageView, after: PageView, masks: TextMasks) -> list[Change]:
    """List what differs between two looks at a session's page, strongest first.

    start: the session's first look, for what outlives a page. entry: the look from which the page `after` was changed,
    or the page that led to it. masks: hide what changes without any action.
    """
    found: list[Change] = []
    if after.address != entry.address:
        found.append(Change("address", "", entry.address, after.address))
    for kept, before in (("local", start.local), ("session", start.session)):
        now = getattr(after, kept)
        for key in sorted(before.keys() | now.keys()):
            if masks.hide(before.get(key, "")) != masks.hide(now.get(key, "")):
                found.append(Change("storage", f"{kept}:{key}", before.get(key, ""), now.get(key, "")))
    if split_address(after.address)[0] != split_address(entry.address)[0]:
        return found  # another document: all else differs too
    states = {one.place: one.state for one in entry.controls}
    for one in after.controls:
        if one.place in states and one.state is not None and states[one.place] not in (None, one.state):
            found.append(Change("control", one.place, states[one.place], one.state))
    spots = {one["moved"]: one["spot"] for one in entry.moves}
    for one in after.moves:
        if (was := spots.get(one["moved"])) and max(
            abs(a - b) for a, b in zip(was, one["spot"], strict=True)
        ) >= _MOVED_PX:
            found.append(Change("moved", one["moved"], json.dumps(was), json.dumps(one["spot"])))
    for place in sorted(entry.regions.keys() | after.regions.keys()):
        before, now = (masks.hide(view.regions.get(place, "")) for view in (entry, after))
        if before != now:
            found.append(Change("text", place, before, now))
    return found


def split_address(address: str) -> tuple[str, str]:
    """Split an address into its path with the query, and its fragment, which leads to no other document."""
    path, _, fragment = address.partition("#")
    return path, fragment


def write_page_reward(changes: Sequence[Change], after: PageView, texts: Mapping[str, str], masks: TextMasks) -> str:
    """Write the JavaScript expression that is 1 where the changes have come about in the page, else 0.

    after: the page with the changes. texts: the regions' whole visible text, as `textOf` reads it, by place. masks:
    hide what changes by itself. Raises ValueError where it would be too long.
    """
    kinds = {change.kind for change in changes}
    path, _ = split_address(after.address)
    used, tests = ["address"], []
    wanted = after.address if "address" in kinds else path
    tests.append(f"address(){'' if '#' in wanted else '.split(`#`)[0]'} === {quote_script(wanted)}")
    for change in changes:
        if change.kind == "storage":
            store, _, key = change.where.partition(":")
            hidden = "".join(f'.replace(/{pattern}/g, "~")' for pattern in masks.patterns)
            said = quote_script(masks.hide(change.after))
            tests.append(f'(({store}Storage.getItem({quote_script(key)}) ?? ""){hidden}) === {said}')
        elif change.kind == "control":
            used.append("stateOf")
            tests.append(
                f"stateOf(document.querySelector({quote_script(change.where)})) === {quote_script(change.after)}"
            )
        elif change.kind == "moved":
            used.append("spotOf")
            was, now = json.loads(change.before), json.loads(change.after)
            for i, (old, new) in enumerate(zip(was, now, strict=True)):
                if abs(new - old) >= _MOVED_PX:
                    sign, half = (">=" if new > old else "<="), round((old + new) / 2)
                    tests.append(f"spotOf(document.querySelector({quote_script(change.where)}))[{i}] {sign} {half}")
        elif change.kind == "text":
            used.append("textOf")
            tests += _text_tests(change, masks.hide(texts.get(change.where, "")), masks.patterns)
    if "control" in kinds:  # and no other form control was changed with it
        used.append("modified")
        tests.append(f"modified() === {after.modified}")
    parts = "\n".join(text for name, text in READING_PARTS.items() if name in used)
    written = f"(() => {{ try {{\n{parts}\nreturn Number({' && '.join(tests)});\n}} catch {{ return 0; }} }})()"
    if len(written) > MAX_REWARD:
        raise ValueError("its end state takes too long a text")
    return written


def _text_tests(change: Change, text: str, patterns: Sequence[str]) -> list[str]:
    hidden = "".join(f'.replace(/{pattern}/g, "~")' for pattern in patterns if "~" in text)
    read = f"textOf({quote_script(change.where)}){hidden}"
    if len(text) <= _WHOLE_TEXT and change.where != "body":
        return [f"{read} === {quote_script(text)}"]
    if (new := find_new_text(change)[:300].strip()) and new in text:
        return [f"{read}.includes({quote_script(new)})"]
    lost = find_new_text(Change("text", "", change.after, change.before))[:300].strip()
    return (
        [f"!{read}.includes({quote_script(lost)})"]
        if lost and lost not in text
        else [f"{read} === {quote_script(text)}"]
    )


# What a server keeps in its session's folder: tables of SQLite, and other files.

_MAX_FILES, _MAX_ROWS = 1_000, 2_000
ServerState = dict[str, Any]  # "FILE table": [columns, rows] for databases; "FILE": hash for others


def read_server_state(folder: Path) -> ServerState:
    """Read the databases and files in a server's session folder; what is beyond the limits is left out."""
    found: ServerState = dict(folder_digest.list_file_hashes(str(folder)))
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())[:_MAX_FILES]:
        with path.open("rb") as file:
            if file.read(16) != b"SQLite format 3\0":
                continue
        try:
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
                tables = base.execute(
                    "select name from sqlite_master where type = 'table' and name not like 'sqlite_%'"
                )
                for (table,) in sorted(tables.fetchall()):
                    rows = base.execute(f"select * from {_sql_name(table)} limit {_MAX_ROWS + 1}")
                    columns = [one[0] for one in rows.description]
                    if len(held := rows.fetchall()) <= _MAX_ROWS:
                        found[f"{path.relative_to(folder).as_posix()} {table}"] = [
                            columns,
                            sorted(map(list, held), key=repr),
                        ]
        except sqlite3.Error:  # written to at this moment, or of a virtual table
            continue
    return found


def compare_server_states(before: ServerState, after: ServerState) -> list[Change]:
    """List the tables and files of a server that differ between two states."""
    found = []
    for place in sorted(before.keys() | after.keys()):
        was, now = before.get(place), after.get(place)
        if was == now:
            continue
        if isinstance(now, list) or isinstance(was, list):
            now = now or [[], []]
            old = was[1] if isinstance(was, list) else []
            gone, come = ([row for row in one if row not in other] for one, other in ((old, now[1]), (now[1], old)))
            found.append(Change("database", place, json.dumps(gone, default=str), json.dumps(come, default=str)))
        else:
            found.append(Change("file", place, str(was or ""), str(now or "")))
    return found


def hash_server_state(server: ServerState) -> str:
    """Hash what a server keeps; "" for nothing."""
    return hashlib.sha256(repr(sorted(server.items())).encode("utf-8", "replace")).hexdigest()[:8] if server else ""


def write_database_reward(changes: Sequence[Change], before: ServerState, after: ServerState) -> dict[str, str]:
    """Write the reading, for a page manifest, that is 1 where the changed tables hold just the rows of `after`, else 0.

    Where tables came or went, it asks only that the database has just the tables of `after`: a query cannot name one
    that is not there. changes: of kind database. Returns `sqlite` (the file) and `query`. Raises ValueError where the
    changes are in several databases, or their rows take too long a text.
    """
    files = {change.where.partition(" ")[0] for change in changes}
    if len(files) != 1:
        raise ValueError("several databases changed")
    tests, (file,) = [], files
    stay = [change for change in changes if change.where in before and change.where in after]
    if len(stay) < len(changes):
        names = sorted(place.partition(" ")[2] for place in after if place.startswith(f"{file} "))
        listed = "select name from sqlite_master where type = 'table' and name not like 'sqlite_%' order by 1"
        tests.append(f"(select group_concat(name, ',') from ({listed})) = {_sql_value(','.join(names))}")
    for change in stay:
        columns, rows = after[change.where]
        row = " || ',' || ".join(f"quote({_sql_name(column)})" for column in columns)
        table = _sql_name(change.where.partition(" ")[2])
        lines = sorted(",".join(_sql_value(value) for value in one) for one in rows)
        held = f"(select coalesce(group_concat(line, ';'), '') from (select {row} as line from {table} order by 1))"
        tests.append(f"{held} = {_sql_value(';'.join(lines))}")
    query = f"select {' and '.join(tests)}"
    if len(query) > MAX_REWARD:
        raise ValueError("the rows that changed stand in too long a table")
    return {"sqlite": file, "query": query}


def _sql_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _sql_value(value: Any) -> str:
    """Write a value as SQLite's `quote` does."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


def write_file_reward(after: ServerState) -> dict[str, list[str]]:
    """Write the reading, for a page manifest, whose `command` prints 1 where a server's files are those of `after`."""
    files = {name: value for name, value in after.items() if isinstance(value, str)}
    wanted = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    source = Path(folder_digest.__file__).read_text(encoding="utf-8")
    return {"command": ["python", "-I", "-c", source, wanted]}
