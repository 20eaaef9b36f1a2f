"""Choose the recorded sessions that an iteration ingests, once, and store the choice in `sessions.json`.

The recordings folder grows between iterations. A stage that depended on the folder would mark every past iteration
changed with each new session, so an iteration depends on its `iterations/NNN/sessions.json`: the chosen sessions, each
with the sha256 of its files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from flywheel.config.workspace import Workspace
from flywheel.store import manifest, partitions
from flywheel.store.interop.demonstration import is_demonstration
from flywheel.store.schema import session_trajectory_id
from flywheel.store.versioning import dvc_files
from flywheel.utils.errors import BadInput, DataError
from flywheel.utils.files import sha256_file, write_json
from flywheel.utils.progress import announce


@dataclass(frozen=True)
class SessionFolder:
    """Name a chosen session. id: the folder's name. path: the folder, relative to the workspace (or absolute). sha256:
    its `folder_digest` when it was chosen."""

    id: str
    path: str
    sha256: str


DeferSession = Callable[[Path], bool]  # session's folder -> whether it comes after all others


def choose_sessions(
    ws: Workspace, iteration: int, folder: str, limit: int, imports: int = 0, later: DeferSession | None = None
) -> list[SessionFolder]:
    """Choose the recorded sessions that an iteration ingests, by name, none that an earlier iteration used.

    The choice is written to the iteration's `sessions.json`, with a hash of each session's files, and is final: a later
    call reads it. Until the stage `ingest` is recorded, a later call takes the chosen sessions as they are on disk by
    then, so that they can be corrected or removed. A damaged session that an earlier iteration set aside and that was
    corrected since is chosen again.

    folder: of the recordings, relative to the workspace. limit, imports: most recorded and most imported sessions.
    later: true for a session to choose after all others, where there are more than `limit`. Raises BadInput where the
    folder is missing (and `limit` is not 0); DataError where the iteration's list, or a manifest, list or table of
    earlier ones, is missing or damaged; DiskFull; and what `later` raises.
    """
    path = _path(ws, iteration)
    if not path.exists():
        chosen = _choose(ws, iteration, ws.resolve(folder), limit, imports, later)
        _write(path, chosen)
    elif "ingest" not in dvc_files.recorded_stages(ws, iteration):
        before = read_chosen_sessions(ws, iteration)
        now = [session for session in (_as_it_is(ws, session) for session in before) if session]
        if now != before:
            _write(path, now)
    return read_chosen_sessions(ws, iteration)


def read_chosen_sessions(ws: Workspace, iteration: int) -> list[SessionFolder]:
    """Read the sessions of an iteration, as they were chosen, sorted by folder.

    Raises DataError where the list is missing or damaged.
    """
    path = _path(ws, iteration)
    try:
        return [SessionFolder(**raw) for raw in json.loads(path.read_text(encoding="utf-8"))["sessions"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = "restore it from git, or begin the iteration"
        raise DataError(f"no list of sessions: {error}", where=ws.relative(path), fix=fix) from None


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


def _as_it_is(ws: Workspace, session: SessionFolder) -> SessionFolder | None:
    folder = ws.resolve(session.path)
    if not folder.is_dir():
        announce("ingest", f"{session.path} was removed since it was chosen: the iteration goes on without it")
        return None
    now = replace(session, sha256=folder_digest(folder))
    if now != session:
        announce("ingest", f"{session.path} changed since it was chosen: it is taken as it is now")
    return now


def folder_digest(folder: Path) -> str:
    """Hash the names and contents of the files of `folder` to 64 hex digits (sha256); no files give that of b""."""
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            state.update(f"{path.relative_to(folder).as_posix()}\0{sha256_file(path)}\n".encode())
    return state.hexdigest()


def _choose(
    ws: Workspace, iteration: int, folder: Path, limit: int, imports: int, later: DeferSession | None
) -> list[SessionFolder]:
    if not folder.is_dir():
        if not limit:
            return []
        fix = "set recording.folder, or recording.sessions_per_iteration to 0"
        raise BadInput("no recordings folder", where=folder, fix=fix)
    taken = set(manifest.read_manifest(ws, iteration - 1).sessions) - _repaired_sessions(ws, iteration, folder)
    fresh = sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in taken)
    whole = [path for path in fresh if not path.name.startswith(".")]  # a hidden folder may be an import at work
    imported = [path for path in whole if is_demonstration(path)]
    recorded = [path for path in whole if path not in imported]
    if later is not None and len(recorded) > limit:
        recorded.sort(key=later)
    chosen = recorded[:limit] + imported[:imports]
    return [SessionFolder(path.name, _name(ws, path), folder_digest(path)) for path in sorted(chosen)]


def _repaired_sessions(ws: Workspace, iteration: int, folder: Path) -> set[str]:
    """Return the sessions that were invalid when last ingested, and whose files have changed since."""
    aside: dict[str, str] = {}
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
                aside[session.id] = session.sha256
    return {name for name, sha256 in aside.items() if folder_digest(folder / name) != sha256}


def _name(ws: Workspace, path: Path) -> str:
    return ws.relative(path) if path.resolve().is_relative_to(ws.root) else str(path.resolve())
