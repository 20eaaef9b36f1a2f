"""A workspace of an earlier version: one dvc.yaml and one dvc.lock for all iterations, and an index of them.

What they say of each iteration is moved, as it stands, into a file of its own, once. The old files are read until the
new dvc.yaml has taken the place of theirs: a move that was killed begins anew.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

from flywheel.config.workspace import Workspace, iteration_label
from flywheel.pipeline import dag
from flywheel.store.versioning import dvc_files
from flywheel.utils.errors import DataError
from flywheel.utils.files import write_text
from flywheel.utils.progress import announce

_NAMED = re.compile(r"^  ['\"]?[\w-]+@(\d+)['\"]?:", re.MULTILINE)


def migrate_earlier_layout(ws: Workspace) -> None:
    """Move what an earlier version left; nothing happens in other workspaces.

    Raises DataError where its index of iterations is lost or damaged.
    """
    if not (_is_looped(ws) or _has_earlier_index(ws)):
        return
    with dvc_files.open_dvc(ws) as repo:
        if _is_looped(ws):
            _check_index(ws)
            _move(ws, _declared(ws, repo))
    begun = [int(path.parent.name) for path in ws.root.glob("iterations/*/dvc.yaml")]
    dvc_files.write_workspace_dvc_yaml(ws, max(begun, default=0))
    if begun:
        announce(
            "dvc", f"what DVC knows of {len(begun)} iterations lies in a file of each now: iterations/NNN/dvc.yaml"
        )


def _is_looped(ws: Workspace) -> bool:
    return "foreach: ${turns}" in _text(ws.root / "dvc.yaml")


def _has_earlier_index(ws: Workspace) -> bool:
    return _text(ws.root / "iterations.yaml").startswith("turns:")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _move(ws: Workspace, declared: dict[int, dict[str, Any]]) -> None:
    recorded = dvc_files.read_dvc_lock(ws.root / "dvc.lock")
    for k, stages in declared.items():
        addresses = {name: f"{name}@{iteration_label(k)}" for name in stages}
        entries = {name: recorded[address] for name, address in addresses.items() if address in recorded}
        if entries:
            write_text(dvc_files.dvc_lock_path(ws, k), dvc_files.dump_dvc_lock(entries))
        text = yaml.safe_dump({"stages": stages}, sort_keys=False, width=1000)
        write_text(dag.dvc_yaml_path(ws, k), dag.DVC_YAML_HEAD + text)
    dvc_files.write_workspace_dvc_yaml(ws, max(declared, default=0))


def _declared(ws: Workspace, repo: Any) -> dict[int, dict[str, Any]]:
    """Iteration -> name of a stage -> its declaration, its loops unrolled by DVC."""
    from dvc.dvcfile import load_file

    loader = load_file(repo, str(ws.root / "dvc.yaml")).stages
    found: dict[int, dict[str, Any]] = defaultdict(dict)
    for address in loader:
        name, _, iteration = address.rpartition("@")
        stage = loader.resolver.resolve_one(address)[address]
        found[int(iteration)][name] = {"wdir": dag.WORKSPACE_FROM_ITERATION, **stage}
    return dict(found)


def _check_index(ws: Workspace) -> None:
    path, lock = ws.root / "iterations.yaml", ws.root / "dvc.lock"
    try:
        known = {str(name) for name in yaml.safe_load(path.read_text(encoding="utf-8"))["turns"] or {}}
    except FileNotFoundError:
        known = set()
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise DataError(f"not an index of iterations: {error}", where=path, fix="restore it from git") from None
    recorded = set(_NAMED.findall(lock.read_text(encoding="utf-8"))) if lock.exists() else set()
    if lost := sorted(recorded - known):
        raise DataError(
            f"the index of iterations {'lacks' if path.exists() else 'is missing, and with it'} {', '.join(lost)}, "
            "which dvc.lock records",
            where=path,
            fix="restore it: `git checkout HEAD -- iterations.yaml`",
        )
