"""Which recorded sessions an iteration takes in: chosen once, and kept as a small file that DVC depends on.

The recordings folder grows between iterations. A stage that depended on the folder would mark every past
iteration changed with each new session, so iteration k depends on `iterations/NNN/sessions.json`: the
sessions chosen, each with the sha256 of its files.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from flywheel.errors import BadInput, DataError
from flywheel.store import manifest
from flywheel.store.partitions import sha256_file, write_json
from flywheel.workspace import Workspace


@dataclass(frozen=True)
class Session:
    """id: the folder's name. path: the folder, relative to the workspace (or absolute)."""

    id: str
    path: str
    sha256: str


def plan(ws: Workspace, iteration: int, folder: str, limit: int) -> list[Session]:
    """Choose the next `limit` sessions, by name, that no earlier iteration took; a choice once made stands.

    Raises BadInput where the folder is missing (and sessions are wanted).
    """
    path = ws.iteration(iteration) / "sessions.json"
    if not path.exists():
        chosen = _choose(ws, iteration, ws.resolve(folder), limit) if limit else []
        write_json(path, {"sessions": [vars(session) for session in chosen]})
    return planned(ws, iteration)


def planned(ws: Workspace, iteration: int) -> list[Session]:
    """The sessions of iteration k, checked against their sha256. Raises DataError naming one that changed
    since.
    """
    path = ws.iteration(iteration) / "sessions.json"
    try:
        sessions = [Session(**raw) for raw in json.loads(path.read_text(encoding="utf-8"))["sessions"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"no list of sessions: {error}",
            where=ws.relative(path),
            fix="restore it from git, or begin the iteration",
        ) from None
    for session in sessions:
        if digest(ws.resolve(session.path)) != session.sha256:
            raise DataError(
                "a recorded session is missing, or changed after it was chosen", where=session.path,
                fix=f"put it back, or take it out of {ws.relative(path)}",
            )  # fmt: skip
    return sessions


def digest(folder: Path) -> str:
    """sha256 over names and contents of a folder's files; of nothing where there are none."""
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            state.update(f"{path.relative_to(folder).as_posix()}\0{sha256_file(path)}\n".encode())
    return state.hexdigest()


def _choose(ws: Workspace, iteration: int, folder: Path, limit: int) -> list[Session]:
    if not folder.is_dir():
        raise BadInput(
            "no recordings folder",
            where=folder,
            fix="set recording.folder, or recording.sessions_per_iteration to 0",
        )
    taken = set(manifest.read(ws, iteration - 1).sessions)
    fresh = sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in taken)[:limit]
    return [Session(path.name, _name(ws, path), digest(path)) for path in fresh]


def _name(ws: Workspace, path: Path) -> str:
    return ws.relative(path) if path.resolve().is_relative_to(ws.root) else str(path.resolve())
