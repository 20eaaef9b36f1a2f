"""Keep the queries that people saved, a file each: `queries/NAME.sql`, which git tracks.

The file is SQL as it stands, so DuckDB's shell runs it too. Its first line is a comment that holds what is known of the
query as JSON; without that line, as in a file that somebody wrote by hand, only the SQL is known.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from flywheel.config.workspace import Workspace, folder_slug
from flywheel.store import labels
from flywheel.utils.errors import BadInput, DataError, did_you_mean
from flywheel.utils.files import file_lock, write_text

MAX_DESCRIPTION_CHARACTERS = 300
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")  # the same on every file system, and in an address without escapes
_HEAD = "-- "
_WAIT_S = 10.0


@dataclass(frozen=True)
class SavedQuery:
    """Hold a query that a person saved under a name.

    description: one line. author: key of the person who saved it last. at: when, ISO 8601 with a zone. All three are ""
    where they are not known.
    """

    name: str
    sql: str
    description: str = ""
    author: str = ""
    at: str = ""


def list_saved_queries(ws: Workspace) -> list[SavedQuery]:
    """List the saved queries by name; files with another kind of name are left out.

    Raises DataError for a file that is no text.
    """
    return [_read(ws, path) for path in sorted(_folder(ws).glob("*.sql")) if _NAME.fullmatch(path.stem)]


def read_saved_query(ws: Workspace, name: str) -> SavedQuery:
    """Read the saved query `name`. Raises BadInput where there is none, DataError for a file that is no text."""
    return _read(ws, _existing_path(ws, name))


def save_query(ws: Workspace, query: SavedQuery, *, replace: bool = False) -> None:
    """Save a query, whose SQL the caller has checked, to `queries/NAME.sql`.

    replace: whether it takes the place of one of the same name. Raises BadInput for a name, author or description that
    is not valid, and for a name that is taken (without `replace`); DataError where another process has been saving for
    10 seconds, or the file of that name is no text; DiskFull.
    """
    path, author = _path(ws, query.name), labels.normalise_reviewer(query.author)
    description = " ".join(query.description.split())
    if (length := len(description)) > MAX_DESCRIPTION_CHARACTERS:
        what = f"a description may have {MAX_DESCRIPTION_CHARACTERS} characters, this one has {length:,}"
        raise BadInput(what, fix="shorten it")
    known = json.dumps({"description": description, "author": author, "at": query.at}, ensure_ascii=False)
    with _lock(ws):
        if not replace:
            _refuse_taken(ws, path)
        path.parent.mkdir(exist_ok=True)
        write_text(path, f"{_HEAD}{known}\n{query.sql.strip()}\n")


def rename_saved_query(ws: Workspace, name: str, new: str) -> None:
    """Give the saved query `name` the name `new`.

    Raises BadInput where there is none of that name, or the new one is taken or not valid; DataError where another
    process has been saving for 10 seconds, or what has the new name is no text.
    """
    with _lock(ws):
        path, target = _existing_path(ws, name), _path(ws, new)
        _refuse_taken(ws, target)
        path.rename(target)


def delete_saved_query(ws: Workspace, name: str) -> None:
    """Delete the saved query `name`; once an iteration was committed with it, git still has it.

    Raises BadInput where there is none, DataError where another process has been saving for 10 seconds.
    """
    with _lock(ws):
        _existing_path(ws, name).unlink()


def _folder(ws: Workspace) -> Path:
    return ws.root / "queries"


def _path(ws: Workspace, name: str) -> Path:
    if not _NAME.fullmatch(name):
        fix = f"take 1 to 40 small letters, digits, dashes and underscores, such as {folder_slug(Path(name[:60]))}"
        raise BadInput(f"no name of a query: {name[:60]!r}", fix=fix)
    return _folder(ws) / f"{name}.sql"


def _existing_path(ws: Workspace, name: str) -> Path:
    path = _path(ws, name)
    if not path.is_file():
        known = [one.stem for one in _folder(ws).glob("*.sql")]
        fix = did_you_mean(name, known) if known else "none is saved yet"
        raise BadInput(f"no query is saved as {name}", fix=fix)
    return path


def _refuse_taken(ws: Workspace, path: Path) -> None:
    if path.exists():
        by = f" by {author}" if (author := _read(ws, path).author) else ""
        raise BadInput(f"a query is saved as {path.stem} already{by}", fix="take another name, or replace that one")


def _read(ws: Workspace, path: Path) -> SavedQuery:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"not a saved query: {error}", where=ws.relative(path), fix="restore it from git") from None
    head, _, rest = text.partition("\n")
    try:
        known = json.loads(head.removeprefix(_HEAD))
        return SavedQuery(path.stem, rest.strip(), *(str(known[name]) for name in ("description", "author", "at")))
    except (ValueError, TypeError, KeyError):
        return SavedQuery(path.stem, text.strip())


def _lock(ws: Workspace):
    return file_lock(ws.state / "queries.lock", _WAIT_S, "saving a query")
