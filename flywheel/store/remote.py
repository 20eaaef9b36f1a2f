"""The copy of what is recorded elsewhere (`versioning.remote`): pushed to after each iteration.

The remote stands in `.dvc/config`, which git keeps, so that clones have it, and `dvc pull` works there as it is.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path

from flywheel.errors import BadInput, FlywheelError
from flywheel.files import write_json
from flywheel.progress import tell
from flywheel.store import dvc_lock, pipeline, versioning
from flywheel.store.copying import copying, look
from flywheel.workspace import Workspace, label

NAME = "flywheel"


def check(url: str) -> None:
    """Whether DVC as it is installed knows this kind of store. Raises BadInput; nothing is asked of the store."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return
    if ":" in rest.rpartition("@")[0].partition("/")[0]:
        raise BadInput(
            "a password stands in the address, and would stand in git with it",
            where="versioning.remote",
            fix="leave it out: `dvc remote modify --local flywheel password` keeps it on this machine",
        )
    from dvc_objects.fs import known_implementations

    if scheme not in known_implementations:
        kinds = ", ".join(sorted(known_implementations.keys() - {"local", "memory"}))
        raise BadInput(f"DVC knows no {scheme}://", where="versioning.remote", fix=f"a folder, or one of {kinds}")
    package = known_implementations[scheme]["class"].partition(".")[0]
    if importlib.util.find_spec(package) is None:
        fix = "pip install -e '.[s3]'" if scheme == "s3" else f"pip install {package.replace('_', '-')}"
        raise BadInput(f"DVC's part for {scheme}:// is not installed", where="versioning.remote", fix=fix)


def name(ws: Workspace, url: str) -> None:
    """Let DVC know the remote, as the one that is taken where none is named; "": nothing happens."""
    if not url:
        return
    url = url if "://" in url else str(ws.resolve(str(Path(url).expanduser())).resolve())
    with versioning.repository(ws) as repo, repo.config.edit("repo") as config:
        if config["remote"].get(NAME, {}).get("url") != url or config["core"].get("remote") != NAME:
            config["remote"][NAME] = {"url": url}
            config["core"]["remote"] = NAME


def push(ws: Workspace, url: str) -> list[int]:
    """Copy what iterations recorded since they were pushed; returns these iterations.

    One that cannot be reached is told, and what it lacks is pushed with the next iteration.
    """
    if not url:
        return []
    name(ws, url)
    known = _known(ws, url)
    locks = {k: dvc_lock.path(ws, k) for k in versioning.iterations(ws) if dvc_lock.path(ws, k).exists()}
    now = {label(k): hashlib.sha256(path.read_bytes()).hexdigest() for k, path in locks.items()}
    fresh = [k for k in locks if known.get(label(k)) != now[label(k)]]
    if not fresh:
        return []
    try:
        with versioning.repository(ws) as repo, copying(url):
            look(repo, NAME)
            repo.push(targets=[str(pipeline.path(ws, k)) for k in fresh], remote=NAME)
    except (FlywheelError, OSError) as error:
        tell("data", f"not copied to the remote: {error}. The next iteration tries again, or `dvc push`")
        return []
    write_json(_path(ws), {"url": url, "pushed": now})
    tell("data", f"iteration {', '.join(map(label, fresh))} copied to {url}")
    return fresh


def _known(ws: Workspace, url: str) -> dict[str, str]:
    try:
        told = json.loads(_path(ws).read_text(encoding="utf-8"))
        return told["pushed"] if told["url"] == url else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _path(ws: Workspace) -> Path:
    return ws.state / "pushed.json"
