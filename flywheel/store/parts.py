"""The list of a partition's files: `_parts.json` beside them. What is not on it is not there.

It is written last and replaced in one step, so a reader finds the old rows or the new ones, never some of each: files
are named by their content, those of the old list go once the new one stands, and who then misses one begins again.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from flywheel.errors import DataError
from flywheel.files import known_sha256, write_json

E = TypeVar("E", bound=DataError)
NAME = "_parts.json"  # pandas, pyarrow and Spark read a folder without what begins so
_VERSION = 1
_TAIL = 8  # bytes: the footer's length, and the mark of a Parquet file
_LISTED = re.compile(r"part-\d{5}-[0-9a-f]{8}\.parquet")


class PartMissing(DataError):
    """A file that a list names is not there: it is lost, or the partition was replaced meanwhile. folder: its own."""

    folder: Path


@dataclass(frozen=True)
class Part:
    """A Parquet file of the folder. sha256: of all of it. footer: sha256 of its footer, which its page checksums do not
    cover; that and the size are looked at wherever it is read, at the cost of a few kB. kept: contracts that its rows
    were seen to keep when it was written (`kept.py`)."""

    name: str
    rows: int
    bytes: int
    sha256: str
    footer: str
    kept: tuple[str, ...] = ()


def part(path: Path, rows: int, sha256: str, kept: tuple[str, ...] = ()) -> Part:
    """Of a file as it is now. sha256: of its bytes."""
    return Part(path.name, rows, path.stat().st_size, sha256, _footer(path), kept)


def write(folder: Path, table: str, parts: list[Part]) -> None:
    """Make these the files of the partition. Files that the list before named are removed by the caller."""
    listed = [{name: value for name, value in asdict(one).items() if value != ()} for one in parts]
    write_json(folder / NAME, {"version": _VERSION, "table": table, "parts": listed})


def read(folder: Path) -> list[Part] | None:
    """The files of a partition in their order; None where there is none. One without a list, as earlier versions wrote
    them, has all files named `part-NNNNN.parquet`. Raises DataError for a list that is damaged."""
    path = folder / NAME
    try:
        status = path.stat()
    except FileNotFoundError:
        return _unlisted(folder)
    return list(_read(path, status.st_mtime_ns, status.st_ino, status.st_size))


@lru_cache(maxsize=4096)
def _read(path: Path, *_: int) -> tuple[Part, ...]:
    """Further arguments: what changes with the file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["version"] != _VERSION:
            raise ValueError(f"version {found['version']}")
        return tuple(Part(**{**one, "kept": tuple(one.get("kept", ()))}) for one in found["parts"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path, f"not a list of a partition's files: {error!r}") from None


def _unlisted(folder: Path) -> list[Part] | None:
    names = sorted(path.name for path in folder.glob("part-*.parquet"))
    old = [folder / name for name in names if not _LISTED.fullmatch(name)]  # the others are of a write that was killed
    found = []
    for path in old:
        try:
            rows = pq.read_metadata(path).num_rows
            found.append(part(path, rows, known_sha256(path)))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise damaged(path, f"not a whole Parquet file: {first_line(error)}") from error
    return found or None


def check(path: Path, of: Part) -> None:
    """Raises DataError where the file is missing, or its size or footer are not those of the list."""
    try:
        whole = path.stat().st_size == of.bytes and _footer(path) == of.footer
    except FileNotFoundError:
        raise missing(path) from None
    except (OSError, ValueError) as error:
        raise damaged(path, f"not a whole Parquet file: {first_line(error)}") from error
    if not whole:
        raise damaged(path, "not a whole Parquet file: its size or its footer changed since it was written")


def check_wholly(path: Path, of: Part) -> None:
    """As `check`, by all bytes; what this process has hashed is not hashed again while the file stays as it is."""
    check(path, of)
    try:
        whole = known_sha256(path) == of.sha256
    except FileNotFoundError:
        raise missing(path) from None
    if not whole:
        raise damaged(path, "not a whole Parquet file: its bytes changed since it was written")


def missing(path: Path) -> PartMissing:
    error = damaged(path, "a file of the partition is missing", PartMissing)
    error.folder = path.parent
    return error


def damaged(path: Path, what: str, kind: type[E] = DataError) -> E:
    where = "/".join(path.parts[-5:])  # from the workspace: data/<table>/iteration=NNN/stage=<stage>/<file>
    return kind(
        what,
        where=where,
        fix=f"type `dvc checkout --force {where.rpartition('/')[0]}` in the workspace (`flywheel run` does it too)",
    )


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _footer(path: Path) -> str:
    """sha256 of the footer with its length and mark."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL))
        length = int.from_bytes(file.read(4), "little")
        if size < length + _TAIL:
            raise ValueError("it is cut off")
        file.seek(size - _TAIL - length)
        return hashlib.sha256(file.read()).hexdigest()
