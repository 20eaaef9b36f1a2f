"""Read and write the labels that people give to trajectories (`reviews/<reviewer>.jsonl`), and who is to give one.

People label at any time, also trajectories of closed iterations, so labels are not a partition that a stage writes and
DVC records. Each reviewer has a file that only grows: two people never write the same file, and git merges them. The
catalogue reads the files with each query (`label_history_sql`); the view `labels` has the labels that count.

A sample may have an owner, who alone labels it until that is done. Who gave it to whom is a line in
`reviews/owners/<who gave it>.jsonl`; the newest line of a trajectory counts.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from flywheel.config.workspace import Workspace
from flywheel.store.routing_decisions import NOT_SOLVED, SOLVED
from flywheel.utils.errors import BadInput, DataError, did_you_mean
from flywheel.utils.files import disk_full_errors, file_lock

LABELS = (SOLVED, NOT_SOLVED, "cannot tell")
MAX_COMMENT_CHARACTERS = 2000
DAMAGED_FILE_MARK = "damaged file: "  # begins an SQL error that reports a damaged file; its fields follow as JSON
MAX_REVIEWER_LENGTH = 60  # characters of a name, which in UTF-8 is a file name
# The pattern of a reviewer's name in a form: no control character, and of ASCII's punctuation only dot, dash,
# underscore and apostrophe, not at the beginning. Browsers and Python read the pattern alike.
REVIEWER_INPUT_PATTERN = r"^ *[^\s\x00-/:-@\[-`{-\x9f][^\x00-\x1f!-&(-,/:-@\[-^`{-\x9f]{0,59}$"
_FOLDER = "reviews"
_REVIEWER = re.compile(REVIEWER_INPUT_PATTERN)
_NAME = re.compile(r"[\w.:@-]{1,200}")  # a trajectory_id
_VERSION = 1
_WAIT_S = 10.0
_FIX_DAMAGED_LINE = "remove the line, or restore the file from git"
_FIELDS = ("trajectory_id", "label", "comment", "reviewer", "at", "queue")


@dataclass(frozen=True)
class Label:
    """Hold a reviewer's label of a trajectory.

    iteration: of the trajectory. label: one of `LABELS`. comment: at most `MAX_COMMENT_CHARACTERS` characters. at: time
    of the label, ISO 8601 with a zone. queue: how the trajectory was chosen (`random`, `decide`), or the review of
    routes that asked for it. version: of this format.
    """

    trajectory_id: str
    iteration: int
    label: str
    comment: str
    reviewer: str
    at: str
    queue: str = ""
    version: int = _VERSION


def labels_folder(ws: Workspace) -> Path:
    """Return the folder of the labels, `reviews`, which need not exist."""
    return ws.root / _FOLDER


def labels_stamp(ws: Workspace) -> list[tuple[str, int]]:
    """Return a value that changes (`!=`) when a label is added; [] where there are no labels.

    It is name and size in bytes of each reviewer's file.
    """
    return sorted((path.name, path.stat().st_size) for path in labels_folder(ws).glob("*.jsonl"))


def normalise_reviewer(name: str) -> str:
    """Return the key of a reviewer's `name`, equal for all spellings in case and spacing: `Ada Byron` is `ada byron`.

    The key is in any script, in lower case, composed (NFC), with single spaces. Raises BadInput where the name is
    empty, longer than MAX_REVIEWER_LENGTH, or has characters that a name must not have.
    """
    key = unicodedata.normalize("NFC", re.sub(" +", " ", name.casefold()).strip())
    if not key:
        raise BadInput("the reviewer has no name", fix="give yours")
    if len(key) > MAX_REVIEWER_LENGTH or not _REVIEWER.fullmatch(key) or not key.isprintable():
        raise BadInput(
            f"no name of a reviewer: {name[:60]!r}",
            fix=f"take 1 to {MAX_REVIEWER_LENGTH} letters, digits, spaces, dots, dashes, a letter or digit first",
        )
    return key


def append_label(ws: Workspace, label: Label, seen: Collection[str] | None = None) -> None:
    """Append a label to its reviewer's file, completely or not at all.

    label: with the reviewer as typed; the key is stored. seen: keys of the others whose labels of the trajectory the
    reviewer knows to be there; None: any. Waits up to 10 seconds for other writers. Raises BadInput for a reviewer,
    label, comment, trajectory or queue that is not valid, for a sample that another person owns, and where somebody
    who is not in `seen` has labelled it; DiskFull; DataError after the 10 seconds, for a damaged file, or where the
    line was not written completely; OSError where the file is a link or cannot be written.
    """
    label = replace(label, reviewer=normalise_reviewer(label.reviewer))
    if label.label not in LABELS:
        raise BadInput(f"no label {label.label[:60]!r}", fix=did_you_mean(label.label[:60], LABELS))
    if (length := len(label.comment)) > MAX_COMMENT_CHARACTERS:
        what = f"a comment may have {MAX_COMMENT_CHARACTERS:,} characters, this one has {length:,}"
        raise BadInput(what, fix="shorten it")
    if not _NAME.fullmatch(label.trajectory_id) or len(label.queue) > 40:
        raise BadInput("no trajectory has such a name", where=label.trajectory_id[:80])
    with lock_reviews(ws):
        owner = read_sample_owners(ws).get(label.trajectory_id)
        if owner and owner.owner != label.reviewer:
            raise BadInput(f"{owner.owner} is to label this sample", fix="label another one, or take it over first")
        others = set(reviewers_of(ws, label.trajectory_id)) - {label.reviewer} if seen is not None else set()
        if new := sorted(others.difference(seen or ())):
            what = f"{' and '.join(new)} labelled this sample while you looked at it"
            raise BadInput(what, fix="give your label again if it is to be one more, or go on to the next")
        append_review_lines(ws, reviewer_file(labels_folder(ws), label.reviewer), [asdict(label)])


def reviewers_of(ws: Workspace, trajectory_id: str) -> list[str]:
    """Return the keys of the reviewers who labelled the trajectory `trajectory_id`, sorted.

    Raises DataError for a damaged file.
    """
    found: set[str] = set()
    for path in labels_folder(ws).glob("*.jsonl"):
        names = {line.get("reviewer") for line in read_review_lines(ws, path) if line["trajectory_id"] == trajectory_id}
        if not all(isinstance(name, str) for name in names):
            raise damaged_line_error(ws, path)
        found |= names
    return sorted(found)


@dataclass(frozen=True)
class SampleOwner:
    """Hold who is to label a trajectory.

    owner: key of the person; "": nobody. by: key of the person who said so. at: when, ISO 8601 with a zone. iteration:
    of the trajectory.
    """

    trajectory_id: str
    iteration: int
    owner: str
    by: str
    at: str


_OWNER_FIELDS = tuple(one.name for one in fields(SampleOwner))


def read_sample_owners(ws: Workspace) -> dict[str, SampleOwner]:
    """Return trajectory_id -> its owner, of the samples that their owners have not labelled yet.

    Raises DataError for a damaged file.
    """
    newest: dict[str, SampleOwner] = {}
    for path in _owners_folder(ws).glob("*.jsonl"):
        for line in read_review_lines(ws, path):
            try:  # a field more is of a later version
                one = SampleOwner(**{name: line[name] for name in _OWNER_FIELDS})
                before = newest.get(one.trajectory_id)
                if before is None or datetime.fromisoformat(before.at) <= datetime.fromisoformat(one.at):
                    newest[one.trajectory_id] = one
            except (KeyError, TypeError, ValueError):
                raise damaged_line_error(ws, path) from None
    done = {(name, key) for name in {one.owner for one in newest.values() if one.owner} for key in _labelled(ws, name)}
    return {key: one for key, one in newest.items() if one.owner and (one.owner, key) not in done}


def assign_samples(ws: Workspace, samples: Mapping[str, int], owner: str, *, by: str, take_over: bool = False) -> None:
    """Give samples to an owner, or release them, all of them or none.

    samples: trajectory_id -> its iteration. owner: the person who is to label them, as typed; "" releases them. by: the
    person who says so. take_over: also those of a third person. Waits up to 10 seconds for other writers. Raises
    BadInput for a name that is not valid, for a sample that the owner has labelled, and without `take_over` for one
    that another person owns; otherwise as `append_label`.
    """
    by, owner = normalise_reviewer(by), normalise_reviewer(owner) if owner else ""
    with lock_reviews(ws):
        there = read_sample_owners(ws)
        theirs = [there[key] for key in samples if key in there and there[key].owner not in (by, owner)]
        if theirs and not take_over:
            what = f"{theirs[0].owner} is to label {theirs[0].trajectory_id}"
            more = f" and {len(theirs) - 1} more are others'" if len(theirs) > 1 else ""
            raise BadInput(what + more, fix="take samples of nobody, or take them over")
        if owner and (labelled := sorted(samples.keys() & _labelled(ws, owner))):
            raise BadInput(f"{owner} has labelled {labelled[0]} already", fix="give them to somebody else")
        at = datetime.now(UTC).isoformat()
        lines = [asdict(SampleOwner(key, iteration, owner, by, at)) for key, iteration in samples.items()]
        append_review_lines(ws, reviewer_file(_owners_folder(ws), by), lines)


def _owners_folder(ws: Workspace) -> Path:
    return labels_folder(ws) / "owners"


def reviewer_file(folder: Path, reviewer: str) -> Path:
    """Return the file of a reviewer in a folder of reviews. reviewer: the key (`normalise_reviewer`)."""
    return folder / f"{reviewer.replace(' ', '_')}.jsonl"


def _labelled(ws: Workspace, reviewer: str) -> set[str]:
    lines = read_review_lines(ws, reviewer_file(labels_folder(ws), reviewer))  # `ada b` and `ada_b` share a file
    return {line["trajectory_id"] for line in lines if line.get("reviewer") == reviewer}


def read_review_lines(ws: Workspace, path: Path, key: str = "trajectory_id") -> list[dict[str, Any]]:
    """Read the lines of a reviewer's file; [] where there is none.

    path: as `reviewer_file` gives it. key: a field that each line has, a text. Raises DataError for a damaged file.
    """
    try:
        lines = [json.loads(text) for text in path.read_text(encoding="utf-8").split("\n") if text.strip()]
        if all(isinstance(line, dict) and isinstance(line[key], str) for line in lines):
            return lines
    except FileNotFoundError:
        return []
    except (ValueError, KeyError):
        pass
    raise damaged_line_error(ws, path)


def damaged_line_error(ws: Workspace, path: Path) -> DataError:
    """Return (not raise) the error for a reviewer's file `path` with a line that cannot be read."""
    return DataError("a line cannot be read", where=ws.relative(path), fix=_FIX_DAMAGED_LINE)


def lock_reviews(ws: Workspace) -> AbstractContextManager[None]:
    """Hold the lock of all files of reviews within the block.

    Raises DataError where others have been writing for 10 seconds, OSError where the lock file cannot be made.
    """
    return file_lock(ws.state / "labels.lock", _WAIT_S, "writing labels")


def append_review_lines(ws: Workspace, path: Path, lines: Collection[Mapping[str, Any]]) -> None:
    """Append lines to a reviewer's file, all of them or none; call it under `lock_reviews`.

    No lines make an empty file. Raises BadInput for half a character (a lone surrogate), DiskFull, DataError where it
    was not written whole, OSError for a link, or where the file cannot be written.
    """
    try:
        data = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)
    except UnicodeEncodeError:
        raise BadInput("the comment has half a character", fix="type it again") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    with disk_full_errors(path):
        # O_NOFOLLOW: a link would lead out of the folder.
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(file).st_size
            cut = size and os.pread(file, 1, size - 1) != b"\n"  # after a loss of power: keep the new line readable
            data = b"\n" + data if cut else data
            if os.write(file, data) < len(data):
                os.ftruncate(file, size)
                raise DataError("the label was not written whole", where=ws.relative(path), fix="say it again")
        finally:
            os.close(file)


def label_history_sql(ws: Workspace) -> str:
    """Return SQL of all labels, outdated ones too: `iteration`, the fields of `Label`, and `file` and `line` of each.

    The files are read when it runs; a damaged line is an error like a damaged file.
    """
    kinds = {"iteration": "INTEGER"} | {name: "VARCHAR" for name in _FIELDS}
    needed = ("iteration", "trajectory_id", "label", "reviewer")
    return review_lines_sql(ws, _FOLDER, kinds, needed, "a label cannot be read")


def review_lines_sql(
    ws: Workspace, folder: str, kinds: Mapping[str, str], needed: Collection[str], damaged: str
) -> str:
    """Return SQL of the lines of all reviewers' files in a folder, with the `file` and `line` of each.

    folder: relative to the workspace. kinds: field of a line -> its SQL type; `at` is read as a time. needed: fields
    that must not be null, besides `at`. damaged: what is said of a line that does not hold.
    """
    facts = f"{{'what': '{damaged}', 'where': file || ', line ' || line, 'fix': '{_FIX_DAMAGED_LINE}'}}"
    sql = resources.files("flywheel.store").joinpath("review_lines.sql").read_text(encoding="utf-8")
    return sql.format(
        pattern=str(ws.root / folder / "*.jsonl").replace("'", "''"),
        folder=folder,
        kinds=json.dumps(dict(kinds)),
        columns=", ".join(f"said.{name}" for name in kinds if name != "at"),
        needed=" AND ".join(f"parsed.{name} IS NOT NULL" for name in needed),
        damaged=f"error('{DAMAGED_FILE_MARK}' || to_json({facts})::VARCHAR)",
    )
