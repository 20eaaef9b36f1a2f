"""Let people review recordings before an iteration takes them in, and trajectories that somebody asks for.

UI-TARS-2 report, section 2.4.1. Two reviewers look at each, blind; where they disagree, a third decides. Their verdicts
lie in `reviews/recordings` (`store/recording_verdicts.py`). A verdict is of the files as they were: a recording that
changed is to be reviewed again. With `curation.reviewers` an iteration takes in the accepted ones alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from flywheel.config import Settings
from flywheel.config.workspace import Workspace
from flywheel.recordings.agreement import Agreement, measure_agreement
from flywheel.recordings.selection import AcceptSession, folder_digest, list_session_folders, list_taken_sessions
from flywheel.recordings.session import load_session_meta
from flywheel.store import labels
from flywheel.store.catalog import database
from flywheel.store.recording_verdicts import (
    QUESTIONS,
    RecordingVerdict,
    ReviewState,
    append_recording_verdict,
    read_recording_verdicts,
    review_state,
)
from flywheel.utils.errors import BadInput, FlywheelError
from flywheel.utils.progress import announce

TAKES = "taken"  # the name of the question whether a reviewer would take it: yes to all of `QUESTIONS`
_SQL = """SELECT trajectory_id, iteration, instruction, annotator FROM trajectories
    WHERE trajectory_id IN (SELECT unnest($names)) ORDER BY iteration, trajectory_id"""


@dataclass(frozen=True)
class ReviewedSubject:
    """Hold a recording or a trajectory with the verdicts of its reviewers.

    name: of the session's folder, or the trajectory_id. iteration: of the trajectory; 0 for a recording. instruction,
    annotator: "" where they cannot be read. sha256: of the session's files; "" of a trajectory, and in a list where
    nothing was said of it. verdicts: those that count, oldest first. needed: how many reviewers.
    """

    name: str
    iteration: int
    instruction: str
    annotator: str
    sha256: str
    verdicts: tuple[RecordingVerdict, ...]
    needed: int

    @property
    def state(self) -> ReviewState:
        """Return where the review stands, such as `disputed` or `accepted`."""
        return review_state(self.verdicts, self.needed)

    def refusal(self, reviewer: str) -> BadInput | None:
        """Return the error that says why a reviewer may give no verdict; None where one may. reviewer: its key."""
        said = [one.reviewer for one in self.verdicts]
        if self.annotator and _key(self.annotator) == reviewer:
            what, fix = f"{reviewer} recorded {self.name}", "somebody else reviews it"
        elif reviewer in said and self.state == "disputed":
            what, fix = f"{reviewer} is one of the two who disagree about {self.name}", "a third person decides"
        elif reviewer in said:
            what, fix = f"{reviewer} has reviewed {self.name} already", "a verdict is given once; go on to the next"
        elif self.state in ("accepted", "refused"):
            what, fix = f"{self.name} is {self.state} already", "go on to the next"
        else:
            return None
        return BadInput(what, where="flywheel review recordings", fix=fix)


def _key(name: str) -> str:
    try:
        return labels.normalise_reviewer(name)
    except BadInput:  # a name that no reviewer can have
        return ""


def needed_reviewers(settings: Settings) -> int:
    """Return how many people review a recording: `curation.reviewers`, or 2 where that is 0 and people review still."""
    return settings.curation.reviewers or 2


def list_reviewed(ws: Workspace, settings: Settings) -> list[ReviewedSubject]:
    """List the recordings that no iteration has taken in, by name, then the trajectories that somebody asked for.

    Raises DataError for a damaged file of verdicts or of the catalogue, and as `selection.list_taken_sessions`;
    BadInput where the recordings folder is missing.
    """
    said = read_recording_verdicts(ws)
    folder = ws.resolve(settings.recording.folder)
    recordings, _, _ = list_session_folders(folder, list_taken_sessions(ws, folder))
    # Of a recording of which nothing was said the files need not be read.
    found = [_recording(path, said.get(path.name, ()), settings, hashed=path.name in said) for path in recordings]
    asked = {one.subject for many in said.values() for one in many if one.iteration}
    return found + _trajectories(ws, sorted(asked), said)


def find_reviewed(ws: Workspace, settings: Settings, name: str) -> ReviewedSubject:
    """Find a recording by its folder's name, or a trajectory by its id, with its verdicts.

    Raises BadInput where there is neither; DataError for a damaged file of verdicts or of the catalogue.
    """
    said = read_recording_verdicts(ws)
    path = find_recording_folder(ws, settings, name)
    if path and (path / "session.json").is_file():
        return _recording(path, said.get(name, ()), settings)
    if found := _trajectories(ws, [name], said):
        return found[-1]
    what = f"no recording and no trajectory is called {name[:80]!r}"
    raise BadInput(what, where=settings.recording.folder, fix="`flywheel review recordings` lists them")


def find_recording_folder(ws: Workspace, settings: Settings, name: str) -> Path | None:
    """Find the folder of the recording `name`; None where there is none, also for a name with slashes."""
    folder = ws.resolve(settings.recording.folder)
    there = folder.iterdir() if folder.is_dir() else ()
    return next((path for path in there if path.name == name and path.is_dir()), None)


def _recording(
    path: Path, said: Sequence[RecordingVerdict], settings: Settings, *, hashed: bool = True
) -> ReviewedSubject:
    try:
        meta, task = load_session_meta(path)
        instruction, annotator = task.instruction, meta.annotator
    except FlywheelError:  # ingest tells why
        instruction = annotator = ""
    sha256 = folder_digest(path) if hashed else ""
    counting = tuple(one for one in said if one.sha256 == sha256 and one.correct is not None)
    return ReviewedSubject(path.name, 0, instruction, annotator, sha256, counting, needed_reviewers(settings))


def _trajectories(
    ws: Workspace, names: Sequence[str], said: Mapping[str, Sequence[RecordingVerdict]]
) -> list[ReviewedSubject]:
    if not names:
        return []
    with database.connect_catalog(ws, tables_alone=True, reads=_SQL) as connection:
        rows = database.query_rows(connection, _SQL, {"names": list(names)})
    newest = {row["trajectory_id"]: row for row in rows}
    return [
        ReviewedSubject(
            name,
            row["iteration"],
            row["instruction"] or "",
            row["annotator"] or "",
            "",
            tuple(one for one in said.get(name, ()) if one.correct is not None),
            2,
        )
        for name, row in newest.items()
    ]


def give_recording_verdict(
    ws: Workspace,
    settings: Settings,
    name: str,
    answers: Mapping[str, bool] | None,
    *,
    reviewer: str,
    comment: str = "",
    sha256: str = "",
) -> ReviewedSubject:
    """Store one reviewer's answers about a recording or a trajectory; return it with its verdicts.

    name: of the session's folder, or the trajectory_id. answers: each name in `QUESTIONS` -> yes or no; None asks
    others to review the trajectory. reviewer: the name as typed. sha256: of the recording as the reviewer saw it, as in
    `ReviewedSubject`; "": as it is. Raises BadInput for a name that is not valid or does not exist, a reviewer who
    recorded it or has reviewed it, a review that is over, an answer that is missing, a comment that is too long, a
    recording that changed since, or None for a recording; DataError for a damaged file, or after 10 seconds of others'
    writing; DiskFull.
    """
    key = labels.normalise_reviewer(reviewer)
    if answers is not None and set(answers) != set(QUESTIONS):
        raise BadInput(f"an answer to each question is needed: {', '.join(QUESTIONS)}", fix="yes or no to each")
    with labels.lock_reviews(ws):
        subject = find_reviewed(ws, settings, name)
        if answers is None and not subject.iteration:
            raise BadInput(
                f"{name} is a recording", where="--ask", fix="recordings are reviewed without being asked for"
            )
        if answers is not None and (why := subject.refusal(key)):
            raise why
        if sha256 not in ("", subject.sha256):
            raise BadInput(f"{name} changed while you looked at it", fix="look at it again")
        said = answers or dict.fromkeys(QUESTIONS)
        at = datetime.now(UTC).isoformat()
        about = {"subject": subject.name, "iteration": subject.iteration, "sha256": subject.sha256}
        append_recording_verdict(ws, RecordingVerdict(**about, **said, comment=comment.strip(), reviewer=key, at=at))
    return find_reviewed(ws, settings, name)


def acceptance_rule(ws: Workspace, settings: Settings) -> AcceptSession | None:
    """Return a rule that chooses accepted recordings for ingest; None where none is reviewed (`curation.reviewers` 0).

    The rule takes the folders of recordings, announces how many are left out, and returns the accepted ones. Raises,
    when it is applied, DataError for a damaged file of verdicts.
    """
    if not settings.curation.reviewers:
        return None

    def accepted(folders: Sequence[Path]) -> list[Path]:
        said = read_recording_verdicts(ws)
        states = {
            path: _recording(path, said.get(path.name, ()), settings, hashed=path.name in said).state
            for path in folders
        }
        left = Counter(state for state in states.values() if state != "accepted")
        if left:
            told = ", ".join(f"{count} {state}" for state, count in sorted(left.items()))
            announce("ingest", f"recordings that are not taken in: {told} (`flywheel review recordings`)")
        return [path for path, state in states.items() if state == "accepted"]

    return accepted


def measure_review_agreement(ws: Workspace) -> dict[str, Agreement]:
    """Measure how far the two blind reviewers of recordings and trajectories agree; return it by question.

    Keys are the names in `QUESTIONS`, and `TAKES`: a yes to all of them. A third one's verdicts are left out, as their
    subjects were disputed. Raises DataError for a damaged file of verdicts.
    """
    pairs = []
    for said in read_recording_verdicts(ws).values():
        newest = said[-1].sha256  # of a recording that changed, those of the newest files
        pairs.append([one for one in said if one.sha256 == newest and one.correct is not None][:2])
    asked = {name: [[one.answers[name] for one in two] for two in pairs] for name in QUESTIONS}
    asked[TAKES] = [[one.takes for one in two] for two in pairs]
    return {name: measure_agreement(answers, 2) for name, answers in asked.items()}
