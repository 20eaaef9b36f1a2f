"""Names by which what an orchestrator knows is told apart: of a workspace, since many may share one server, and of a
turn, since an iteration that was set aside or given up may be begun again under the same number."""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path

from flywheel.files import write_json
from flywheel.workspace import Workspace, label


def of(ws: Workspace) -> str:
    """`night-3fa9c1`: its folder's name and six digits, made at the first call. A copy elsewhere gets a name of its
    own."""
    path, root = ws.state / "identity.json", str(ws.root.resolve())
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        if known["root"] == root:
            return known["name"]
    except (OSError, ValueError, KeyError):
        pass
    name = f"{of_folder(ws.root)}-{secrets.token_hex(3)}"
    write_json(path, {"name": name, "root": root})
    return name


def of_folder(folder: Path) -> str:
    """Its name in small letters, digits and hyphens."""
    return (re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-") or "workspace")[:40]


def of_turn(ws: Workspace, iteration: int) -> str:
    """`003-9c41d2`: of the turn that makes this iteration here, however often it is gone on with."""
    path = _turn(ws, iteration)
    if not path.is_file():
        begin_turn(ws, iteration)
    return f"{label(iteration)}-{json.loads(path.read_text(encoding='utf-8'))}"


def begin_turn(ws: Workspace, iteration: int) -> None:
    """The iteration is begun: what was made under its number before is another turn."""
    write_json(_turn(ws, iteration), secrets.token_hex(3))


def _turn(ws: Workspace, iteration: int) -> Path:
    return ws.state / "turns" / f"{label(iteration)}.json"
