"""Read and write the labels that people give to trajectories (`reviews/<reviewer>.jsonl`).

People label at any time, also trajectories of closed iterations, so labels are not a partition that a stage writes and
DVC records. Each reviewer has a file that only grows: two people never write the same file, and git merges them. The
catalogue reads the files with each query (`label_history_sql`); the view `labels` has the labels that count.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path

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
    """Return a value that changes (`!=`) when a label is added; [] where there are no labels."""
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


def append_label(ws: Workspace, label: Label) -> None:
    """Append a label to its reviewer's file, completely or not at all.

    label: with the reviewer as typed; the key is stored. Waits up to 10 seconds for other writers. Raises BadInput for
    a reviewer, label, comment, trajectory or queue that is not valid; DiskFull; DataError after the 10 seconds, or
    where the line was not written completely; OSError where the file is a link.
    """
    label = replace(label, reviewer=normalise_reviewer(label.reviewer))
    path = labels_folder(ws) / f"{label.reviewer.replace(' ', '_')}.jsonl"
    if label.label not in LABELS:
        raise BadInput(f"no label {label.label[:60]!r}", fix=did_you_mean(label.label[:60], LABELS))
    if (length := len(label.comment)) > MAX_COMMENT_CHARACTERS:
        what = f"a comment may have {MAX_COMMENT_CHARACTERS:,} characters, this one has {length:,}"
        raise BadInput(what, fix="shorten it")
    if not _NAME.fullmatch(label.trajectory_id) or len(label.queue) > 40:
        raise BadInput("no trajectory has such a name", where=label.trajectory_id[:80])
    try:
        line = json.dumps(asdict(label), ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        raise BadInput("the comment has half a character", fix="type it again") from None
    path.parent.mkdir(exist_ok=True)
    with file_lock(ws.state / "labels.lock", _WAIT_S, "writing labels"), disk_full_errors(path):
        # O_NOFOLLOW: a link would lead out of the folder.
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(file).st_size
            cut = size and os.pread(file, 1, size - 1) != b"\n"  # after a loss of power: keep the new line readable
            data = b"\n" + line if cut else line
            if os.write(file, data) < len(data):
                os.ftruncate(file, size)
                raise DataError("the label was not written whole", where=ws.relative(path), fix="say it again")
        finally:
            os.close(file)


def label_history_sql(ws: Workspace) -> str:
    """Return SQL of all labels, also outdated ones: `iteration`, the fields of `Label`, and their `file` and `line`.

    The files are read when it runs; a damaged line is an error like a damaged file.
    """
    pattern = str(labels_folder(ws) / "*.jsonl").replace("'", "''")
    facts = f"{{'what': 'a label cannot be read', 'where': file || ', line ' || line, 'fix': '{_FIX_DAMAGED_LINE}'}}"
    damaged = f"error('{DAMAGED_FILE_MARK}' || to_json({facts})::VARCHAR)"
    kinds = json.dumps({name: "VARCHAR" for name in _FIELDS} | {"iteration": "INTEGER"})
    sql = resources.files("flywheel.store").joinpath("label_history.sql").read_text(encoding="utf-8")
    return sql.format(pattern=pattern, folder=_FOLDER, kinds=kinds, damaged=damaged)
