"""Name a workspace and its iterations' runs, so that many may share one Prefect server."""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.utils.files import write_json


def workspace_name(ws: Workspace) -> str:
    """Return the workspace's name, such as `night-3fa9c1`: its folder's name and six hex digits.

    It is made, and written to `.flywheel/identity.json`, at the first call, and anew where the folder was moved or
    copied or the file is damaged.
    """
    path, root = ws.state / "identity.json", str(ws.root.resolve())
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        if known["root"] == root:
            return known["name"]
    except (OSError, ValueError, KeyError):
        pass
    name = f"{folder_slug(ws.root)}-{secrets.token_hex(3)}"
    write_json(path, {"name": name, "root": root})
    return name


def folder_slug(folder: Path) -> str:
    """Return the name of `folder` in small letters, digits and hyphens, 40 at most; `workspace` where none is left."""
    return (re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-") or "workspace")[:40]


def iteration_run_id(ws: Workspace, iteration: int) -> str:
    """Return the id of the attempt that makes this iteration here, such as `003-9c41d2`, however often it is resumed.

    It is made, and kept under `.flywheel`, at the first call.
    """
    path = _iteration_run_path(ws, iteration)
    if not path.is_file():
        renew_iteration_run_id(ws, iteration)
    return f"{iteration_label(iteration)}-{json.loads(path.read_text(encoding='utf-8'))}"


def renew_iteration_run_id(ws: Workspace, iteration: int) -> None:
    """Give the iteration, which begins, a new id: what was made under its number before is another attempt."""
    write_json(_iteration_run_path(ws, iteration), secrets.token_hex(3))


def _iteration_run_path(ws: Workspace, iteration: int) -> Path:
    return ws.state / "turns" / f"{iteration_label(iteration)}.json"
