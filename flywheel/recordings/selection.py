"""Choose the recorded sessions that an iteration ingests, once, and store the choice in `sessions.json`.

The recordings folder grows between iterations. A stage that depended on the folder would mark every past iteration
changed with each new session, so an iteration depends on its `iterations/NNN/sessions.json`: the chosen sessions, each
with the sha256 of its files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from flywheel.config.workspace import Workspace
from flywheel.recordings.annotation.journal import is_annotation
from flywheel.recordings.session import load_session_meta
from flywheel.store import manifest, partitions
from flywheel.store.interop.demonstration import is_demonstration
from flywheel.store.schema import session_trajectory_id
from flywheel.store.versioning import dvc_files
from flywheel.utils.errors import BadInput, DataError
from flywheel.utils.files import sha256_file, write_json
from flywheel.utils.progress import announce


@dataclass(frozen=True)
class SessionFolder:
    """Hold a session that an iteration chose. id: the folder's name. path: the folder, relative to the workspace (or
    absolute). sha256: its `folder_digest` when it was chosen."""

    id: str
    path: str
    sha256: str


DeferSession = Callable[[Path], bool]  # session's folder -> whether it comes after all others
AcceptSession = Callable[[Sequence[Path]], list[Path]]  # sessions' folders -> those that may be taken in
UNFINISHED = ".recording"  # ending of a folder that a recorder writes into


def choose_sessions(
    ws: Workspace,
    iteration: int,
    folder: str,
    limit: int,
    imports: int = 0,
    later: DeferSession | None = None,
    annotations: tuple[str, int] = ("", 0),
    accepted: AcceptSession | None = None,
) -> list[SessionFolder]:
    """Choose the recordings and annotation sessions that an iteration ingests, and return them; none is ingested twice.

    They are taken by name, what `flywheel record` made before other recordings. The choice is written to the
    iteration's `sessions.json`, with a hash of each session's files, and is final: a later call reads it. Until the
    stage `ingest` is recorded, a later call takes the chosen sessions as they are on disk by then, so that they can be
    corrected or removed. A damaged session that an earlier iteration set aside and that was corrected since is chosen
    again.

    folder: of the recordings, relative to the workspace. limit: recorded sessions chosen at most. imports: imported
    demonstrations chosen at most. later: tells whether a session, by the path of its folder, is chosen after all
    others, where there are more than `limit`; None: none is. annotations: folder of annotation sessions, relative to
    the workspace, and how many finished ones to choose at most. accepted: returns, of the paths of recordings' folders,
    those that reviewers accepted; None: all may be taken. A recording that is not whole yet is left for the next
    iteration, and announced. Raises BadInput where the recordings' folder is missing (and `limit` is not 0); DataError
    where the iteration's list, or a manifest, list or table of earlier ones, is missing or damaged; DiskFull; and what
    `later` and `accepted` raise.
    """
    path = _path(ws, iteration)
    if not path.exists():
        recordings, (annotated, most) = ws.resolve(folder), annotations
        chosen = []
        if limit or recordings.is_dir() or (most and ws.resolve(annotated).is_dir()):
            taken = set(manifest.read_manifest(ws, iteration - 1).sessions)
            taken -= _repaired_sessions(ws, iteration, recordings)
            chosen = _choose(ws, taken, recordings, limit, imports, later, accepted)
            chosen += _choose_annotations(ws, taken, *annotations)
        _write(path, chosen)
    elif "ingest" not in dvc_files.recorded_stages(ws, iteration):
        before = read_chosen_sessions(ws, iteration)
        now = [session for session in (_as_it_is(ws, session, accepted) for session in before) if session]
        if now != before:
            _write(path, now)
    return read_chosen_sessions(ws, iteration)


def read_chosen_sessions(ws: Workspace, iteration: int) -> list[SessionFolder]:
    """Read the sessions that an iteration chose.

    Raises DataError where the list is missing or damaged.
    """
    path = _path(ws, iteration)
    try:
        return [SessionFolder(**raw) for raw in json.loads(path.read_text(encoding="utf-8"))["sessions"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = "restore it from git, or begin the iteration"
        raise DataError(f"no list of sessions: {error}", where=ws.relative(path), fix=fix) from None


def list_taken_sessions(ws: Workspace, folder: Path) -> set[str]:
    """Return the names of the sessions that iterations chose, without those that were set aside and mended since.

    folder: of the recordings. Raises DataError where a list, or a table of trajectories, is missing or damaged.
    """
    begun = [k for k in ws.list_iteration_folders() if _path(ws, k).exists()]
    chosen = {session.id for k in begun for session in read_chosen_sessions(ws, k)}
    return chosen - _repaired_sessions(ws, max(begun, default=0) + 1, folder)


def count_chosen_before(ws: Workspace, session: Path) -> int:
    """Count the recordings beside the recording `session` that no iteration took and that are chosen before it.

    session: path of its folder; imported demonstrations are not counted. Raises BadInput where the folder around it is
    missing, DataError where a list, or a table of trajectories, is missing or damaged.
    """
    recorded, _, _ = list_session_folders(session.parent, list_taken_sessions(ws, session.parent))
    own = _is_own(session)
    return sum((not _is_own(path), path.name) < (not own, session.name) for path in recorded)


def check_sessions_unchanged(ws: Workspace, sessions: Iterable[SessionFolder]) -> None:
    """Check that the sessions' files are as they were when chosen; all files are read.

    Raises DataError naming the first session that changed or is missing.
    """
    for session in sessions:
        if folder_digest(ws.resolve(session.path)) != session.sha256:
            raise DataError(
                "a recorded session is missing, or changed after it was chosen",
                where=session.path,
                fix="type `flywheel run`: an iteration whose ingest is not done takes it as it is now, and one that "
                "was set aside comes again in the next iteration",
            )


def _path(ws: Workspace, iteration: int) -> Path:
    return ws.iteration(iteration) / "sessions.json"


def _write(path: Path, sessions: list[SessionFolder]) -> None:
    write_json(path, {"sessions": [vars(session) for session in sessions]})


def _as_it_is(ws: Workspace, session: SessionFolder, accepted: AcceptSession | None) -> SessionFolder | None:
    folder = ws.resolve(session.path)
    if not folder.is_dir():
        announce("ingest", f"{session.path} was removed since it was chosen: the iteration goes on without it")
        return None
    now = replace(session, sha256=folder_digest(folder))
    if now != session:
        if accepted and (folder / "session.json").exists() and not accepted([folder]):
            announce("ingest", f"{session.path} changed since it was chosen: the iteration goes on without it")
            return None
        announce("ingest", f"{session.path} changed since it was chosen: it is taken as it is now")
    return now


def folder_digest(folder: Path) -> str:
    """Hash the names and contents of the files of `folder` to 64 hex digits (sha256); no files give that of b""."""
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            state.update(f"{path.relative_to(folder).as_posix()}\0{sha256_file(path)}\n".encode())
    return state.hexdigest()


def _choose_annotations(ws: Workspace, taken: Set[str], folder: str, limit: int) -> list[SessionFolder]:
    there = sorted(ws.resolve(folder).iterdir()) if limit and ws.resolve(folder).is_dir() else []
    fresh = [path for path in there if path.name not in taken and is_annotation(path)]
    for path in there:
        if path.is_dir() and not is_annotation(path):
            announce("ingest", f"{path.name} is still being annotated: it is left for the next iteration")
    return [SessionFolder(path.name, _name(ws, path), folder_digest(path)) for path in fresh[:limit]]


def _choose(
    ws: Workspace,
    taken: Set[str],
    folder: Path,
    limit: int,
    imports: int,
    later: DeferSession | None,
    accepted: AcceptSession | None,
) -> list[SessionFolder]:
    if not limit and not folder.is_dir():
        return []
    recorded, imported, unfinished = list_session_folders(folder, taken)
    for path in unfinished:
        announce("ingest", f"{path.name} is not whole yet: it is left for the next iteration")
    if accepted is not None:
        recorded = accepted(recorded)
    if len(recorded) > limit:
        recorded.sort(key=lambda path: (later is not None and later(path), not _is_own(path)))
    chosen = recorded[:limit] + imported[:imports]
    return [SessionFolder(path.name, _name(ws, path), folder_digest(path)) for path in sorted(chosen)]


def _is_own(folder: Path) -> bool:
    """Tell whether `flywheel record` made the session: its task can be played nowhere else."""
    try:
        return load_session_meta(folder)[1].environment == "recorded"
    except DataError:  # ingest tells why
        return False


def list_session_folders(folder: Path, taken: Set[str]) -> tuple[list[Path], list[Path], list[Path]]:
    """List the folders of recorded sessions, imported demonstrations and unfinished recordings, each by name.

    folder: of the recordings. taken: names to leave out. Hidden folders are left out: an import may be at work in one.
    A recording is unfinished while its name ends in `.recording` or it lacks its `session.json`, which is written last.
    Raises BadInput where `folder` is missing.
    """
    if not folder.is_dir():
        fix = "set recording.folder, or recording.sessions_per_iteration to 0"
        raise BadInput("no recordings folder", where=folder, fix=fix)
    fresh = sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in taken)
    whole = [path for path in fresh if not path.name.startswith(".")]
    imported = [path for path in whole if is_demonstration(path)]
    rest = [path for path in whole if path not in imported]
    recorded = [p for p in rest if p.suffix != UNFINISHED and (p / "session.json").exists()]
    return recorded, imported, [path for path in rest if path not in recorded]


def _repaired_sessions(ws: Workspace, iteration: int, folder: Path) -> set[str]:
    """Return the sessions that were invalid when last ingested, and whose files have changed since."""
    aside: dict[str, SessionFolder] = {}
    for k in range(1, iteration):
        if not ws.partition("trajectories", k, "ingest").is_dir():
            continue
        columns = ["trajectory_id", "task_id", "status"]
        rows = partitions.read_partition(ws, "trajectories", k, "ingest", columns).to_pylist()
        invalid = {row["trajectory_id"]: row["task_id"] for row in rows if row["status"] == "invalid"}
        for session in read_chosen_sessions(ws, k):
            names = {session_trajectory_id(k, task, session.id) for task in invalid.values()}
            aside.pop(session.id, None)
            if names & set(invalid):
                aside[session.id] = session
    recorded = {name: folder / name for name in aside if (folder / name).is_dir()}
    return {
        name for name, one in aside.items() if folder_digest(recorded.get(name, ws.resolve(one.path))) != one.sha256
    }


def _name(ws: Workspace, path: Path) -> str:
    return ws.relative(path) if path.resolve().is_relative_to(ws.root) else str(path.resolve())
