"""Read and write what reviewers say of recordings (`reviews/recordings/<reviewer>.jsonl`).

A subject is a recorded session, by its folder's name, or a trajectory, by its id. Two reviewers answer the same
questions, neither seeing the other's answers; where one would take it and the other not, a third decides. Files only
grow, one a reviewer, as those of labels (`labels.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Literal

from flywheel.config.workspace import Workspace
from flywheel.store import labels
from flywheel.utils.errors import BadInput

# Question -> what is asked. Only what has a yes to all of them is taken.
QUESTIONS = {
    "correct": "Is each step right for the task?",
    "complete": "Is it whole: does it begin at the beginning, and end with the task done?",
    "safe": "Is nothing private or dangerous in it?",
}
ReviewState = Literal["waiting", "disputed", "accepted", "refused"]
_FOLDER = "reviews/recordings"


@dataclass(frozen=True)
class RecordingVerdict:
    """Hold one reviewer's answers about one subject.

    subject: name of a session's folder, or a trajectory_id. iteration: of the trajectory; 0 for a session. sha256: the
    session's `folder_digest` when it was looked at, "" of a trajectory: of a session that changed since, the verdict
    does not count. correct, complete, safe: answers to `QUESTIONS`; None in all three where the reviewer only asks for
    a review of a trajectory. at: ISO 8601 with a zone.
    """

    subject: str
    iteration: int
    sha256: str
    correct: bool | None
    complete: bool | None
    safe: bool | None
    comment: str
    reviewer: str
    at: str

    @property
    def answers(self) -> dict[str, bool | None]:
        """Return the answer to each of `QUESTIONS`."""
        return {name: getattr(self, name) for name in QUESTIONS}

    @property
    def takes(self) -> bool:
        """Tell whether the reviewer would take the subject: yes to every question."""
        return all(self.answers.values())


_KINDS = {field.name: field.type.removesuffix(" | None") for field in fields(RecordingVerdict)}
_SQL_KINDS = {"str": "VARCHAR", "int": "INTEGER", "bool": "BOOLEAN"}


def read_recording_verdicts(ws: Workspace) -> dict[str, list[RecordingVerdict]]:
    """Read what reviewers said of recordings; returns subject -> the verdicts about it, oldest first.

    A subject is the name of a session's folder, or a trajectory_id. Raises DataError for a damaged file.
    """
    found = defaultdict(list)
    for path in sorted((ws.root / _FOLDER).glob("*.jsonl")):
        for line in labels.read_review_lines(ws, path, "subject"):
            try:  # a field more is of a later version
                one = RecordingVerdict(**{name: line[name] for name in _KINDS})
                datetime.fromisoformat(one.at)
            except (KeyError, TypeError, ValueError):
                raise labels.damaged_line_error(ws, path) from None
            if not all(answer in (None, True, False) for answer in one.answers.values()):
                raise labels.damaged_line_error(ws, path)
            found[one.subject].append(one)
    return {subject: sorted(said, key=lambda one: one.at) for subject, said in found.items()}


def append_recording_verdict(ws: Workspace, verdict: RecordingVerdict) -> None:
    """Append a verdict to its reviewer's file; call it under `labels.lock_reviews`.

    verdict: with the reviewer's key. Raises BadInput for a comment that is too long, and as
    `labels.append_review_lines`.
    """
    if len(verdict.comment) > labels.MAX_COMMENT_CHARACTERS:
        raise BadInput(f"a comment may have {labels.MAX_COMMENT_CHARACTERS:,} characters", fix="shorten it")
    path: Path = labels.reviewer_file(ws.root / _FOLDER, verdict.reviewer)
    labels.append_review_lines(ws, path, [asdict(verdict)])


def review_state(verdicts: Sequence[RecordingVerdict], needed: int) -> ReviewState:
    """Tell whether a review waits for reviewers, is disputed, or has accepted or refused its subject.

    verdicts: with answers, oldest first. needed: reviewers, 1 or 2: of one the first verdict counts, and between two
    who disagree a third decides.
    """
    if len(verdicts) < needed:
        return "waiting"
    said = [one.takes for one in verdicts]
    if needed == 2 and said[0] != said[1]:
        if len(said) == 2:
            return "disputed"
        said = said[2:]
    return "accepted" if said[0] else "refused"


def recording_verdicts_sql(ws: Workspace) -> str:
    """Return SQL of all verdicts: the fields of `RecordingVerdict`, and the `file` and `line` of each.

    The files are read when it runs, as of `labels.review_lines_sql`.
    """
    kinds = {name: _SQL_KINDS[kind] for name, kind in _KINDS.items()}
    return labels.review_lines_sql(ws, _FOLDER, kinds, ("subject", "reviewer"), "a verdict cannot be read")
